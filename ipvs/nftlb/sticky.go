package nftlb

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// addAffinityRules adds the rules of the classes that record affinity, in one transaction in the network namespace of
// the calling thread.
//
// A rule records the destination of a new connection after the translation: the client, its original destination and,
// as the value, the real server. For an existing record it restarts the timeout. It is written in the kernel's own
// instructions because nft 1.0.6 gives a map's key and value 16 octets each and aborts when they are longer, as with
// IPv6; it lists them correctly. In the language of nft it is
//
//	update @affinity { ip saddr . ct original ip daddr . meta l4proto . ct original proto-dst
//		timeout 3h : ip daddr . th dport }
func addAffinityRules(f family, table string, classes []class) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	defer conn.Close()
	messages := []netlink.Message{message(unix.NFNL_MSG_BATCH_BEGIN, netlink.Request, 0, unix.NFNL_SUBSYS_NFTABLES, nil)}
	for _, c := range classes {
		rule, err := encodeRule(table, c.name(), recordRule(f, c.timeout))
		if err != nil {
			return err
		}
		messages = append(messages, message(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE,
			netlink.Request|netlink.Acknowledge|netlink.Create|netlink.Append, f.number, 0, rule))
	}
	messages = append(messages, message(unix.NFNL_MSG_BATCH_END, netlink.Request, 0, unix.NFNL_SUBSYS_NFTABLES, nil))
	if _, err := conn.SendMessages(messages); err != nil {
		return fmt.Errorf("add the affinity rules of table %s: %w", table, err)
	}
	for range classes { // the kernel answers each rule after the full batch
		if _, err := conn.Receive(); err != nil {
			return fmt.Errorf("add the affinity rules of table %s: %w", table, err)
		}
	}
	return nil
}

// message returns a message of nfnetlink (include/uapi/linux/netfilter/nfnetlink.h).
func message(kind uint16, flags netlink.HeaderFlags, family uint8, resource uint16, attributes []byte) netlink.Message {
	header := []byte{family, unix.NFNETLINK_V0}
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: flags},
		Data:   append(binary.BigEndian.AppendUint16(header, resource), attributes...),
	}
}

// expression is one instruction of a rule.
type expression struct {
	name   string
	encode func(*netlink.AttributeEncoder)
}

// recordRule returns the rule. A key uses consecutive 32-bit registers; those of the value follow.
func recordRule(f family, timeout uint32) []expression {
	const client = unix.NFT_REG32_00
	original := client + f.words
	protocol := original + f.words
	port := protocol + 1
	real := port + 1
	return []expression{
		payload(unix.NFT_PAYLOAD_NETWORK_HEADER, f.source, 4*f.words, client),
		conntrack(f.original, original),
		{"meta", func(e *netlink.AttributeEncoder) {
			e.Uint32(unix.NFTA_META_KEY, unix.NFT_META_L4PROTO)
			e.Uint32(unix.NFTA_META_DREG, protocol)
		}},
		conntrack(unix.NFT_CT_PROTO_DST, port),
		payload(unix.NFT_PAYLOAD_NETWORK_HEADER, f.destination, 4*f.words, real),
		payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, real+f.words),
		{"dynset", func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_DYNSET_SET_NAME, mapAffinity)
			e.Uint32(unix.NFTA_DYNSET_OP, unix.NFT_DYNSET_OP_UPDATE)
			e.Uint32(unix.NFTA_DYNSET_SREG_KEY, client)
			e.Uint32(unix.NFTA_DYNSET_SREG_DATA, real)
			e.Uint64(unix.NFTA_DYNSET_TIMEOUT, uint64(timeout)*1000)
		}},
	}
}

func payload(base, offset, length, register uint32) expression {
	return expression{"payload", func(e *netlink.AttributeEncoder) {
		e.Uint32(unix.NFTA_PAYLOAD_DREG, register)
		e.Uint32(unix.NFTA_PAYLOAD_BASE, base)
		e.Uint32(unix.NFTA_PAYLOAD_OFFSET, offset)
		e.Uint32(unix.NFTA_PAYLOAD_LEN, length)
	}}
}

// conntrack loads a value of the connection's original direction.
func conntrack(key, register uint32) expression {
	return expression{"ct", func(e *netlink.AttributeEncoder) {
		const original = 0 // IP_CT_DIR_ORIGINAL
		e.Uint32(unix.NFTA_CT_KEY, key)
		e.Uint32(unix.NFTA_CT_DREG, register)
		e.Uint8(unix.NFTA_CT_DIRECTION, original)
	}}
}

func encodeRule(table, chain string, expressions []expression) ([]byte, error) {
	rule := encoder()
	rule.String(unix.NFTA_RULE_TABLE, table)
	rule.String(unix.NFTA_RULE_CHAIN, chain)
	rule.Nested(unix.NFTA_RULE_EXPRESSIONS, func(list *netlink.AttributeEncoder) error {
		list.ByteOrder = binary.BigEndian
		for _, x := range expressions {
			list.Nested(unix.NFTA_LIST_ELEM, func(one *netlink.AttributeEncoder) error {
				one.ByteOrder = binary.BigEndian
				one.String(unix.NFTA_EXPR_NAME, x.name)
				one.Nested(unix.NFTA_EXPR_DATA, func(data *netlink.AttributeEncoder) error {
					data.ByteOrder = binary.BigEndian
					x.encode(data)
					return nil
				})
				return nil
			})
		}
		return nil
	})
	return rule.Encode()
}

func encoder() *netlink.AttributeEncoder {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	return e
}
