package nftbatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// Lister lists sets, maps and tables of one network namespace.
type Lister struct{ conn *netlink.Conn }

// bufferSize makes the kernel send as many elements at once as it can (netlink_dump, 32 KiB). For each message it
// passes all elements that it has sent before (nft_rhash_walk), so that small messages make a long list quadratic.
const bufferSize = 64 << 10

// NewLister returns a Lister for the network namespace of the calling thread.
func NewLister() (*Lister, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{MessageBufferSize: bufferSize})
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return &Lister{conn}, nil
}

// Close ends the lister.
func (l *Lister) Close() { l.conn.Close() }

// Elements returns the elements of a set or map, none if it does not exist.
func (l *Lister) Elements(family byte, table, set string) ([]Element, error) {
	e := netlink.NewAttributeEncoder()
	e.String(unix.NFTA_SET_ELEM_LIST_TABLE, table)
	e.String(unix.NFTA_SET_ELEM_LIST_SET, set)
	attributes, err := e.Encode()
	if err != nil {
		return nil, err
	}
	answers, err := l.dump(unix.NFT_MSG_GETSETELEM, family, attributes)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list set %s of nftables table %s: %w", set, table, err)
	}
	var elements []Element
	for _, a := range answers {
		if elements, err = appendElements(elements, a); err != nil {
			return nil, fmt.Errorf("list set %s of nftables table %s: %w", set, table, err)
		}
	}
	return elements, nil
}

// dumpTries is how often a list is repeated that a change of nftables, by any program, has interrupted.
const dumpTries = 20

// dump returns the answers to a request, without struct nfgenmsg, all of one generation of nftables: the kernel sends a
// long list in parts, and resumes at a number of elements.
func (l *Lister) dump(request uint16, family byte, attributes []byte) (answers [][]byte, err error) {
	for range dumpTries {
		messages, err := l.conn.Execute(netlink.Message{
			Header: netlink.Header{
				Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | request),
				Flags: netlink.Request | netlink.Dump,
			},
			Data: append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attributes...),
		})
		if err != nil {
			return nil, err
		}
		answers, generation := make([][]byte, 0, len(messages)), []byte(nil)
		for _, m := range messages {
			const header = 4 // struct nfgenmsg; its res_id is the generation
			if len(m.Data) < header {
				return nil, fmt.Errorf("a message of %d octets", len(m.Data))
			}
			if generation == nil {
				generation = m.Data[2:header]
			}
			if !bytes.Equal(generation, m.Data[2:header]) {
				break
			}
			answers = append(answers, m.Data[header:])
		}
		if len(answers) == len(messages) {
			return answers, nil
		}
	}
	return nil, fmt.Errorf("nftables changed during each of %d lists", dumpTries)
}

// appendElements appends those of a message.
func appendElements(elements []Element, message []byte) ([]Element, error) {
	err := each(message, func(kind uint16, list []byte) error {
		if kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return nil
		}
		return each(list, func(_ uint16, data []byte) error {
			e, err := parseElement(data)
			elements = append(elements, e)
			return err
		})
	})
	return elements, err
}

// each calls do for each attribute.
func each(data []byte, do func(kind uint16, value []byte) error) error {
	const mask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	for len(data) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(data))
		if length < unix.SizeofNlAttr || length > len(data) {
			return fmt.Errorf("an attribute of %d octets among %d", length, len(data))
		}
		if err := do(binary.NativeEndian.Uint16(data[2:])&mask, data[unix.SizeofNlAttr:length]); err != nil {
			return err
		}
		data = data[min(len(data), (length+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return nil
}

func parseElement(data []byte) (e Element, err error) {
	err = each(data, func(kind uint16, value []byte) error {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			return each(value, func(kind uint16, key []byte) error {
				if kind == unix.NFTA_DATA_VALUE {
					e.Key = key
				}
				return nil
			})
		case unix.NFTA_SET_ELEM_DATA:
			return each(value, func(kind uint16, data []byte) error { return e.parseData(kind, data) })
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = commentOf(value)
		case unix.NFTA_SET_ELEM_TIMEOUT:
			e.Timeout = true
		case unix.NFTA_SET_ELEM_EXPR:
			return each(value, func(kind uint16, data []byte) error { return e.parseExpression(kind, data) })
		}
		return nil
	})
	return e, err
}

// commentOf returns the comment in the user data of an element: a sequence of a type, a length, and a value.
func commentOf(data []byte) string {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		if data[0] == userComment {
			return unix.ByteSliceToString(data[2 : 2+int(data[1])])
		}
		data = data[2+int(data[1]):]
	}
	return ""
}

// parseData parses the value of an element of a map.
func (e *Element) parseData(kind uint16, data []byte) error {
	switch kind {
	case unix.NFTA_DATA_VALUE:
		e.Value = data
	case unix.NFTA_DATA_VERDICT:
		return each(data, func(kind uint16, value []byte) error {
			switch {
			case kind == unix.NFTA_VERDICT_CODE && len(value) == 4:
				e.Verdict = int32(binary.BigEndian.Uint32(value))
			case kind == unix.NFTA_VERDICT_CHAIN:
				e.Chain = unix.ByteSliceToString(value)
			}
			return nil
		})
	}
	return nil
}

// parseExpression parses the counter of an element, the only expression that one of this project has.
func (e *Element) parseExpression(kind uint16, data []byte) error {
	if kind != unix.NFTA_EXPR_DATA {
		return nil
	}
	return each(data, func(kind uint16, value []byte) error {
		switch {
		case len(value) != 8:
		case kind == unix.NFTA_COUNTER_PACKETS:
			e.Packets = binary.BigEndian.Uint64(value)
		case kind == unix.NFTA_COUNTER_BYTES:
			e.Bytes = binary.BigEndian.Uint64(value)
		}
		return nil
	})
}

// ParseVirtualServer is the reverse of [VirtualServer].
func ParseVirtualServer(key []byte) (ipvs.Key, bool) {
	const rest = 2 * register // protocol and port, each at a register of its own
	if len(key) < rest {
		return ipvs.Key{}, false
	}
	addr, ok := netip.AddrFromSlice(key[:len(key)-rest])
	protocol, port := key[len(key)-rest:], key[len(key)-register:]
	return ipvs.Key{Addr: addr, Protocol: ipvs.Protocol(protocol[0]), Port: binary.BigEndian.Uint16(port)}, ok
}
