package nftbatch

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// Owned are filter tables, one in each family, that no other program can change or delete, not even by "nft flush
// ruleset". They end with the process. Before Linux 5.12 they are ordinary tables, without the protection, and stay.
type Owned struct {
	name string
	fd   int
	port uint32
	// plain is set if the kernel knows no owners of tables.
	plain bool
}

// OpenOwned prepares tables in the network namespace of the calling thread.
func OpenOwned(name string) (*Owned, error) {
	fd, err := open()
	if err != nil {
		return nil, err
	}
	var addr unix.Sockaddr
	if err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err == nil {
		addr, err = unix.Getsockname(fd)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind a netlink socket: %w", err)
	}
	return &Owned{name: name, fd: fd, port: addr.(*unix.SockaddrNetlink).Pid}, nil
}

// Close deletes the tables that are owned.
func (o *Owned) Close() { unix.Close(o.fd) }

// Chain drops what matches all of Drop at a hook, and accepts the rest.
type Chain struct {
	Name           string
	Hook, Priority uint32
	Drop           []Match
}

// Match compares what an expression loads. The attributes follow that of its register.
type Match struct {
	expression string
	attributes []uint32
	comparison uint32
	value      []byte
}

// Protocol matches packets of a transport protocol.
func Protocol(p ipvs.Protocol) Match {
	return Match{"meta", []uint32{unix.NFT_META_L4PROTO}, unix.NFT_CMP_EQ, []byte{byte(p)}}
}

// Header matches packets with these octets in the header unix.NFT_PAYLOAD_NETWORK_HEADER or _TRANSPORT_HEADER.
func Header(header, offset uint32, octets []byte) Match {
	return Match{"payload", []uint32{header, offset, uint32(len(octets))}, unix.NFT_CMP_EQ, octets}
}

// Tracked matches packets without a notrack rule.
func Tracked() Match {
	const untracked = 1 << 6 // NF_CT_STATE_UNTRACKED_BIT
	return Match{"ct", []uint32{unix.NFT_CT_STATE}, unix.NFT_CMP_NEQ, Uint32(untracked)}
}

// Replace makes the chains the content of the table of a family. Without chains there is no table.
func (o *Owned) Replace(family byte, chains ...Chain) error {
	err := o.replace(family, chains)
	if !o.plain && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)) {
		o.plain = true
		err = o.replace(family, chains)
	}
	return err
}

func (o *Owned) replace(family byte, chains []Chain) error {
	const owner = 0x2                                                  // NFT_TABLE_F_OWNER
	name, flags := fmt.Sprintf("%s-%d", o.name, o.port), uint32(owner) // another process may have its own
	if o.plain {
		name, flags = o.name, 0
	}
	b := New(family, name)
	table := func() {
		b.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
		b.number(unix.NFTA_TABLE_FLAGS, flags)
	}
	table() // it may exist
	b.message(unix.NFT_MSG_DELTABLE, 0)
	if len(chains) > 0 {
		table()
	}
	for _, c := range chains {
		b.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE)
		b.text(unix.NFTA_CHAIN_NAME, c.Name)
		b.text(unix.NFTA_CHAIN_TYPE, "filter")
		hook := b.nest(unix.NFTA_CHAIN_HOOK)
		b.number(unix.NFTA_HOOK_HOOKNUM, c.Hook)
		b.number(unix.NFTA_HOOK_PRIORITY, c.Priority)
		b.endNest(hook)
		b.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND)
		b.text(unix.NFTA_RULE_CHAIN, c.Name)
		expressions := b.nest(unix.NFTA_RULE_EXPRESSIONS)
		for _, m := range c.Drop {
			b.expression(m.expression, append([]uint32{unix.NFT_REG_1}, m.attributes...), 0, nil)
			b.expression("cmp", []uint32{unix.NFT_REG_1, m.comparison}, unix.NFTA_CMP_DATA, func() {
				b.attr(unix.NFTA_DATA_VALUE, m.value)
			})
		}
		b.expression("immediate", []uint32{unix.NFT_REG_VERDICT}, unix.NFTA_IMMEDIATE_DATA, func() { b.verdict(0, "") }) // NF_DROP
		b.endNest(expressions)
	}
	return b.send(o.fd)
}

// message begins a message without a list of elements. Attribute 1 of each kind is the name of the table.
func (b *Batch) message(kind, flags uint16) {
	b.end()
	b.len++
	b.kind, b.list = kind, noList
	b.header(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_REQUEST|flags, b.family, 0)
	b.text(unix.NFTA_TABLE_NAME, b.table)
}

// expression appends an expression with its attributes, from 1, and one with data.
func (b *Batch) expression(name string, attributes []uint32, kind uint16, data func()) {
	element := b.nest(unix.NFTA_LIST_ELEM)
	b.text(unix.NFTA_EXPR_NAME, name)
	all := b.nest(unix.NFTA_EXPR_DATA)
	for i, value := range attributes {
		b.number(uint16(i+1), value)
	}
	if data != nil {
		nested := b.nest(kind)
		data()
		b.endNest(nested)
	}
	b.endNest(all)
	b.endNest(element)
}

func (b *Batch) number(kind uint16, value uint32) {
	b.attr(kind, binary.BigEndian.AppendUint32(nil, value))
}
