package member

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/bpf"
)

const (
	// unknownMost is how many datagrams with one of the keys' ids may come in a second from elsewhere than the speakers
	// without being right. Beyond it the kernel drops those but for a sample, until for calmFor fewer than unknownFew
	// of the sample came in each second.
	unknownMost, unknownFew = 500, 8
	calmFor                 = 10 * time.Second
	// originFor is how long an origin counts without a datagram that was right.
	originFor = time.Minute
	// originsMost is for how many origins a filter has room (4096 instructions, 11 for one of IPv6).
	originsMost = 350
)

// origin is where a datagram comes from: a Pod may send with a node's address, but not by that node's interface.
type origin struct {
	source netip.Addr // without zone
	index  int
}

// origins are those of datagrams that were right, and decide when nothing else is to pass.
type origins struct {
	seen map[origin]time.Time
	// unknown is how many datagrams in this second were not right and from elsewhere, the last one from last.
	unknown int
	last    origin
	// only is set while nothing else passes but a sample. quiet is since when few came.
	only  bool
	quiet time.Time
}

// right records a datagram that was right, and reports whether the filters have to be made again.
func (o *origins) right(now time.Time, from origin) bool {
	_, known := o.seen[from]
	if !known && len(o.seen) >= 2*originsMost {
		return false
	}
	if o.seen == nil {
		o.seen = map[origin]time.Time{}
	}
	o.seen[from] = now
	return !known && o.only
}

func (o *origins) known(from origin) bool {
	_, is := o.seen[from]
	return is
}

// wrong records a datagram that was not right.
func (o *origins) wrong(why Drop, from origin) {
	switch why {
	case DropVersion, DropCluster, DropKey: // a neighbour's, or a sample of them already
		return
	}
	if !o.known(from) {
		o.unknown++
		o.last = from
	}
}

// evaluate ends a second, and reports whether only has changed.
func (o *origins) evaluate(now time.Time) bool {
	n := o.unknown
	o.unknown = 0
	for from, at := range o.seen {
		if now.Sub(at) > originFor {
			delete(o.seen, from)
		}
	}
	if !o.only {
		o.only, o.quiet = n > unknownMost && len(o.seen) > 0, now
		return o.only
	}
	if n >= unknownFew {
		o.quiet = now
	}
	o.only = now.Sub(o.quiet) < calmFor
	return !o.only
}

// list returns the origins to which datagrams are limited, in order, nil for no limit.
func (o *origins) list() (list []origin) {
	if !o.only {
		return nil
	}
	for from := range o.seen {
		list = append(list, from)
	}
	slices.SortFunc(list, func(a, b origin) int {
		return cmp.Or(a.source.Compare(b.source), cmp.Compare(a.index, b.index))
	})
	return list
}

// passes passes what is of one of the origins and a sample of all else; without a limit, or without room for it, all.
func (s *socket) passes(limit []origin) (p []bpf.Instruction) {
	list := slices.DeleteFunc(slices.Clone(limit), func(from origin) bool {
		return from.source.Is6() != s.v6 || s.index != 0 && s.index != from.index
	})
	if len(limit) == 0 || len(list) > originsMost {
		return nil
	}
	at := uint32(netOff + 12) // the source (RFC 791, 3.1; RFC 8200, 3)
	if s.v6 {
		at = netOff + 8
	}
	for _, from := range list {
		octets := from.source.AsSlice()
		left := uint8(len(octets)/2 + 3) // instructions of this origin
		for i := 0; i < len(octets); i += 4 {
			left -= 2
			p = append(p, bpf.LoadAbsolute{Off: at + uint32(i), Size: 4}, bpf.JumpIf{
				Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(octets[i:]), SkipTrue: left,
			})
		}
		p = append(p,
			bpf.LoadExtension{Num: bpf.ExtInterfaceIndex},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(from.index), SkipTrue: 1},
			bpf.RetConstant{Val: 0xffff})
	}
	return append(p,
		bpf.LoadExtension{Num: bpf.ExtRand},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: sample - 1, SkipTrue: 1},
		bpf.RetConstant{Val: 0})
}
