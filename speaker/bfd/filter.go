package bfd

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	// netOff is the offset of the network header for a filter (SKF_NET_OFF of linux/filter.h). The socket's own data
	// begins at the UDP header.
	netOff = 0xfff00000
	// bfdOff is the offset of the BFD packet, after the UDP header.
	bfdOff = 8
	// sample is the rate at which off-link packets pass the filter, one in sample, so that the status and the metrics
	// can report them.
	sample = 16
	// sampleInitial is the same rate for packets without a discriminator, of a peer that sends too many of them.
	sampleInitial = 64
	// accept passes a packet.
	accept = 0xffff
)

// Packets that match no session are counted and reported, up to tolerated per second. The same holds for packets
// without a discriminator, per peer: a peer sends one per second while it is down (RFC 5880, 6.8.3). Above that rate,
// for the time of filtered, the kernel drops packets that cannot match a session, and packets without a discriminator
// of a peer that sends too many of them. So a flood costs the loop no time, and the socket no room. The real peer is
// still received, because its answers to this node's packets have the session's discriminator; for a passive session,
// one in sampleInitial passes.
const (
	tolerated = 100
	filtered  = 5 * time.Second
	// maxGates is the number of sessions of a socket that fit into a filter (4096 instructions).
	maxGates = 200
)

// gate describes the packets of a session: its peer's address, the interface unless that is 0, and its discriminator,
// or none in a packet that is Down or AdminDown (RFC 5880, 6.8.6). A packet without a discriminator must have remote as
// its sender's discriminator unless remote is 0. If overLimit is set, no such packet passes, or few if this side is
// passive.
type gate struct {
	peer               netip.Addr
	index              int
	discr              uint32
	remote             uint32
	overLimit, passive bool
}

// flood is the handling of packets that match no session, per socket.
type flood struct {
	gates []gate
	// since is the start of the current second. In that second, unmatched packets matched no session, and initial ones
	// had no discriminator but matched these sessions.
	since     time.Time
	unmatched int
	initial   map[uint32]int
	// overLimit are the sessions with too many initial packets.
	overLimit map[uint32]bool
	// until is when the filter is removed, zero without a filter; attached is set if the socket has it.
	until    time.Time
	attached bool
	drops    uint32
}

// count counts a packet without a discriminator of the session, or of no session if that is 0. It reports whether the
// limit is exceeded: then the filter must be updated.
func (r *receiver) count(now time.Time, session uint32) bool {
	if now.Sub(r.since) >= time.Second {
		r.since, r.unmatched = now, 0
		clear(r.initial)
	}
	if session == 0 {
		if r.unmatched++; r.unmatched <= tolerated || !r.until.IsZero() {
			return false
		}
	} else {
		if r.initial[session]++; r.initial[session] <= tolerated || r.overLimit[session] {
			return false
		}
		r.overLimit[session] = true
	}
	if r.until.IsZero() {
		r.until, r.drops = now.Add(filtered), r.dropped()
	}
	return true
}

// filter updates each socket's filter to the sessions, removes it in time, and counts what it dropped.
func (l *loop) filter(now time.Time) {
	l.filtersCurrent = true
	gates := map[kind][]gate{}
	l.core.Sessions(func(discr uint32, k Key, _ []string) {
		g := gate{peer: k.Peer, discr: discr}
		g.remote, g.passive = l.core.Initial(discr)
		if p := l.ports[discr]; p != nil && !k.MultiHop {
			g.index = p.on
		}
		if r := l.receivers[kindOf(k)]; r != nil {
			g.overLimit = r.overLimit[discr]
		}
		gates[kindOf(k)] = append(gates[kindOf(k)], g)
	})
	for k, r := range l.receivers {
		others := !slices.Equal(r.gates, gates[k])
		r.gates = gates[k]
		if r.fd < 0 || r.until.IsZero() {
			continue
		}
		dropped := r.dropped()
		l.d.metrics.dropped[DropFiltered].Add(float64(dropped - r.drops))
		r.drops = dropped
		switch {
		case !now.Before(r.until):
			if r.attach(r.fd, r.passAll()) == nil {
				r.until, r.unmatched, r.attached = time.Time{}, 0, false
				clear(r.overLimit)
			}
		case others || !r.attached:
			if r.attached = r.attach(r.fd, r.passKnown()) == nil; !r.attached {
				_ = r.attach(r.fd, r.passAll()) // the previous filter may block a new session
			}
		}
		if !r.until.IsZero() {
			l.resyncAfter(now, max(r.until.Sub(now), time.Millisecond))
		}
	}
}

// passAll passes all packets, except that over one hop it drops most routed ones (RFC 5881, 5: TTL 255): one in sample
// passes, to be counted and reported. IP_MINTTL would be simpler, but applies to TCP only (ip(7)).
func (r *receiver) passAll() []bpf.Instruction {
	if r.multiHop {
		return []bpf.Instruction{bpf.RetConstant{Val: accept}}
	}
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: netOff + r.hops(), Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 255, SkipTrue: 3},
		bpf.LoadExtension{Num: bpf.ExtRand},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: sample - 1, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: accept},
	}
}

// passKnown passes only packets that may match a session.
func (r *receiver) passKnown() (program []bpf.Instruction) {
	if len(r.gates) > maxGates {
		return r.passAll()
	}
	if !r.multiHop {
		program = append(program, bpf.LoadAbsolute{Off: netOff + r.hops(), Size: 1},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: 255, SkipTrue: 1},
			bpf.RetConstant{Val: 0})
	}
	for _, g := range r.gates {
		program = append(program, g.program(r.source())...)
	}
	return append(program, bpf.RetConstant{Val: 0})
}

// program passes the packets of the gate, and continues after itself with all others.
func (g gate) program(source uint32) (out []bpf.Instruction) {
	unequal := func(load bpf.Instruction, val uint32) { // a mismatch leaves this gate
		out = append(out, load, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: val})
	}
	for i, octets := 0, g.peer.AsSlice(); i < len(octets); i += 4 {
		unequal(bpf.LoadAbsolute{Off: netOff + source + uint32(i), Size: 4}, binary.BigEndian.Uint32(octets[i:]))
	}
	if g.index != 0 {
		unequal(bpf.LoadExtension{Num: bpf.ExtInterfaceIndex}, uint32(g.index))
	}
	named := bpf.LoadAbsolute{Off: bfdOff + 8, Size: 4}
	if g.overLimit && !g.passive {
		unequal(named, g.discr)
	} else {
		initial := g.initial()
		out = append(out, named, bpf.JumpIf{Cond: bpf.JumpEqual, Val: g.discr, SkipTrue: uint8(len(initial))})
		out = append(out, initial...)
	}
	out = append(out, bpf.RetConstant{Val: accept})
	for i := range out {
		if j, is := out[i].(bpf.JumpIf); is && j.SkipTrue == 0 {
			j.SkipTrue = uint8(len(out) - 1 - i)
			out[i] = j
		}
	}
	return out
}

// initial filters packets without a session's discriminator, whose field is loaded. It continues after itself with
// packets that may be the peer's, and leaves the gate with all others: its jumps have no distance yet.
func (g gate) initial() []bpf.Instruction {
	out := []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0},
		bpf.LoadAbsolute{Off: bfdOff + 1, Size: 1}, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x80}, // Init or Up
	}
	if g.remote != 0 {
		out = append(out, bpf.LoadAbsolute{Off: bfdOff + 4, Size: 4}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: g.remote})
	}
	if g.overLimit {
		out = append(out, bpf.LoadExtension{Num: bpf.ExtRand}, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: sampleInitial - 1})
	}
	return out
}

// hops and source are the offsets of the TTL and the source in the network header (RFC 791, 3.1; RFC 8200, 3).
func (r *receiver) hops() uint32 {
	if r.six {
		return 7
	}
	return 8
}

func (r *receiver) source() uint32 {
	if r.six {
		return 8
	}
	return 12
}

// attach replaces a socket's filter.
func (r *receiver) attach(fd int, filter []bpf.Instruction) error {
	program, err := bpf.Assemble(filter)
	if err != nil {
		return err
	}
	raw := make([]unix.SockFilter, len(program))
	for i, p := range program {
		raw[i] = unix.SockFilter{Code: p.Op, Jt: p.Jt, Jf: p.Jf, K: p.K}
	}
	fprog := unix.SockFprog{Len: uint16(len(raw)), Filter: &raw[0]}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &fprog)
	if err != nil {
		return fmt.Errorf("attach a filter to the socket on %v: %w", r, err)
	}
	return nil
}

// dropped returns how many packets the kernel has dropped at the socket (SO_MEMINFO of socket(7), SK_MEMINFO_DROPS), or
// the last value if the kernel does not report it.
func (r *receiver) dropped() uint32 {
	const words, drops = 9, 8
	info := make([]byte, 4*words)
	if n, err := getsockopt(r.fd, unix.SOL_SOCKET, unix.SO_MEMINFO, info); err != nil || n < len(info) {
		return r.drops
	}
	return binary.NativeEndian.Uint32(info[4*drops:])
}
