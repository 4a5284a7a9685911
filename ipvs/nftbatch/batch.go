// Package nftbatch changes and lists elements of nftables' sets and maps over netlink
// (include/uapi/linux/netfilter/nf_tables.h). It is for sets of many or often changed elements, where the program nft
// costs too much: it takes milliseconds to start, and a second to parse a hundred thousand elements. Rules and sets are
// left to that program, except for [Owned] tables: they end with the process that adds them.
package nftbatch

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// Verdicts of an element of a map.
const (
	Goto   = unix.NFT_GOTO
	Jump   = unix.NFT_JUMP
	Return = unix.NFT_RETURN
)

// Element is an element of a set, or of a map if it has a Value or a Verdict.
type Element struct {
	// Key and Value are as in the kernel's registers: [Uint32], or parts of [Concat].
	Key, Value []byte
	// Verdict is followed by the Chain for Goto and Jump.
	Verdict int32
	Chain   string
	// Comment is up to 254 octets.
	Comment string
	// Timeout is set for a listed element that expires, Packets and Bytes are those of its counter. A batch does not write
	// them.
	Timeout        bool
	Packets, Bytes uint64
}

// Batch is a transaction of changes of one table. The kernel carries out all of them or none.
type Batch struct {
	family byte
	table  string
	buf    []byte
	len    int
	// seq is the number of the last message, which begins at start. Its list of elements begins at list.
	seq         uint32
	start, list int
	kind        uint16
	set         string
}

// New returns an empty batch for a table of a family (unix.NFPROTO_IPV4 and others).
func New(family byte, table string) *Batch { return &Batch{family: family, table: table} }

// Len returns the number of elements in the batch.
func (b *Batch) Len() int { return b.len }

// Contains reports whether the messages contain these octets.
func (b *Batch) Contains(octets []byte) bool { return bytes.Contains(b.buf, octets) }

// Add adds an element. It must not exist with another value.
func (b *Batch) Add(set string, e Element) { b.element(unix.NFT_MSG_NEWSETELEM, set, e) }

// Delete deletes an element, which must exist, by its key.
func (b *Batch) Delete(set string, key []byte) {
	b.element(unix.NFT_MSG_DELSETELEM, set, Element{Key: key})
}

// userComment is the type of a comment in the user data of an element (NFTNL_UDATA_SET_ELEM_COMMENT of libnftnl).
const userComment = 0

// maxList is less than the length that an attribute can have, by more than an element has.
const maxList = 1<<16 - 1<<10

func (b *Batch) element(kind uint16, set string, e Element) {
	if b.len == 0 || kind != b.kind || set != b.set || len(b.buf)-b.list > maxList {
		b.end()
		b.begin(kind, set)
	}
	b.len++
	element := b.nest(unix.NFTA_LIST_ELEM)
	b.value(unix.NFTA_SET_ELEM_KEY, e.Key)
	switch {
	case e.Verdict != 0:
		data := b.nest(unix.NFTA_SET_ELEM_DATA)
		b.verdict(e.Verdict, e.Chain)
		b.endNest(data)
	case e.Value != nil:
		b.value(unix.NFTA_SET_ELEM_DATA, e.Value)
	}
	if e.Comment != "" {
		b.attr(unix.NFTA_SET_ELEM_USERDATA, append([]byte{userComment, byte(len(e.Comment) + 1)}, e.Comment+"\x00"...))
	}
	b.endNest(element)
}

func (b *Batch) verdict(code int32, chain string) {
	verdict := b.nest(unix.NFTA_DATA_VERDICT)
	b.attr(unix.NFTA_VERDICT_CODE, binary.BigEndian.AppendUint32(nil, uint32(code)))
	if chain != "" {
		b.text(unix.NFTA_VERDICT_CHAIN, chain)
	}
	b.endNest(verdict)
}

// begin begins a message.
func (b *Batch) begin(kind uint16, set string) {
	flags := uint16(unix.NLM_F_REQUEST)
	if kind == unix.NFT_MSG_NEWSETELEM {
		flags |= unix.NLM_F_CREATE
	}
	b.kind, b.set = kind, set
	b.header(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, b.family, 0)
	b.text(unix.NFTA_SET_ELEM_LIST_TABLE, b.table)
	b.text(unix.NFTA_SET_ELEM_LIST_SET, set)
	b.list = b.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
}

// end completes the message that was begun last. The first call begins the batch.
func (b *Batch) end() {
	if len(b.buf) == 0 {
		b.header(unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	} else if b.list != noList {
		b.endNest(b.list)
	}
	b.length()
}

// noList is where the list begins in a message without one.
const noList = -1

// header begins a message of nfnetlink (include/uapi/linux/netfilter/nfnetlink.h).
func (b *Batch) header(kind, flags uint16, family byte, resource uint16) {
	b.seq++
	b.start = len(b.buf)
	b.buf = binary.NativeEndian.AppendUint32(b.buf, 0) // length
	b.buf = binary.NativeEndian.AppendUint16(b.buf, kind)
	b.buf = binary.NativeEndian.AppendUint16(b.buf, flags)
	b.buf = binary.NativeEndian.AppendUint32(b.buf, b.seq)
	b.buf = binary.NativeEndian.AppendUint32(b.buf, 0) // port of the sender: the kernel fills it in
	b.buf = append(b.buf, family, unix.NFNETLINK_V0)
	b.buf = binary.BigEndian.AppendUint16(b.buf, resource)
}

func (b *Batch) length() {
	binary.NativeEndian.PutUint32(b.buf[b.start:], uint32(len(b.buf)-b.start))
}

// attr appends an attribute with its padding.
func (b *Batch) attr(kind uint16, value []byte) {
	b.buf = binary.NativeEndian.AppendUint16(b.buf, uint16(unix.SizeofNlAttr+len(value)))
	b.buf = binary.NativeEndian.AppendUint16(b.buf, kind)
	b.buf = append(b.buf, value...)
	for len(b.buf)%unix.NLMSG_ALIGNTO != 0 {
		b.buf = append(b.buf, 0)
	}
}

func (b *Batch) text(kind uint16, value string) { b.attr(kind, append([]byte(value), 0)) }

func (b *Batch) value(kind uint16, value []byte) {
	data := b.nest(kind)
	b.attr(unix.NFTA_DATA_VALUE, value)
	b.endNest(data)
}

// nest begins a nested attribute, and returns where.
func (b *Batch) nest(kind uint16) int {
	start := len(b.buf)
	b.attr(kind|unix.NLA_F_NESTED, nil)
	return start
}

func (b *Batch) endNest(start int) {
	binary.NativeEndian.PutUint16(b.buf[start:], uint16(len(b.buf)-start))
}

// Uint32 is a number as nft's type integer has it in expressions, in the byte order of the host.
func Uint32(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// register is the length of the parts of a key.
const register = 4

// Concat joins parts of a key. Each begins at a register.
func Concat(parts ...[]byte) (key []byte) {
	for _, p := range parts {
		key = append(key, p...)
		for len(key)%register != 0 {
			key = append(key, 0)
		}
	}
	return key
}

// VirtualServer is the key of an address, a protocol and a port.
func VirtualServer(key ipvs.Key) []byte {
	return Concat(key.Addr.AsSlice(), []byte{byte(key.Protocol)}, binary.BigEndian.AppendUint16(nil, key.Port))
}
