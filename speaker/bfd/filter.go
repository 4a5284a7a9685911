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
	// netOff is where the network header begins for a filter (SKF_NET_OFF of linux/filter.h). The socket's own data
	// begins at the UDP header.
	netOff = 0xfff00000
	// bfdOff is where the BFD packet begins, behind the UDP header.
	bfdOff = 8
	// sample is how many packets from off link there are for each one that is passed on, so that the status and the metrics can tell of them.
	sample = 16
	// sampleNewcomers is how many packets that name no session there are of a peer that sends too many of them for each
	// one that is passed on.
	sampleNewcomers = 64
	// accept passes a packet on.
	accept = 0xffff
)

// Packets of no session are counted and reported, up to tolerated of them in a second, and so are packets that name no
// session, of each peer: a peer sends one in a second while it is down (RFC 5880, 6.8.3). Beyond it the kernel drops
// for the time of filtered what cannot be of a session, and the others of a peer that sends too many of them: a flood costs
// the loop no time, and the socket no room. The peer itself is met nevertheless, for it names the session in its answer
// to what this node sends; where this node waits for it to begin, one of so many passes.
const (
	tolerated = 100
	filtered  = 5 * time.Second
	// maxGates is for how many sessions of a socket there is room in a filter (4096 instructions).
	maxGates = 200
)

// gate is what packets of a session have: its peer's address, the interface unless that is 0, and its discriminator,
// or none in a packet that is Down or AdminDown (RFC 5880, 6.8.6). One without it has remote as the discriminator of
// its sender unless remote is 0. Of those none passes if crowded is set, or few if this side is passive.
type gate struct {
	peer             netip.Addr
	index            int
	discr            uint32
	remote           uint32
	crowded, passive bool
}

// flood is how a socket deals with packets of no session.
type flood struct {
	gates []gate
	// since begins the second in which junk packets were of no session, and newcomers named none but are of these.
	since     time.Time
	junk      int
	newcomers map[uint32]int
	// crowded are the sessions with too many newcomers.
	crowded map[uint32]bool
	// until is when the filter is taken off, zero without; attached, whether the socket has it.
	until    time.Time
	attached bool
	drops    uint32
}

// count counts a packet of the session, 0 for none, that names none itself, and reports whether that is too many: then
// the filter must be brought up to date.
func (r *receiver) count(now time.Time, session uint32) bool {
	if now.Sub(r.since) >= time.Second {
		r.since, r.junk = now, 0
		clear(r.newcomers)
	}
	if session == 0 {
		if r.junk++; r.junk <= tolerated || !r.until.IsZero() {
			return false
		}
	} else {
		if r.newcomers[session]++; r.newcomers[session] <= tolerated || r.crowded[session] {
			return false
		}
		r.crowded[session] = true
	}
	if r.until.IsZero() {
		r.until, r.drops = now.Add(filtered), r.dropped()
	}
	return true
}

// filter has each socket's filter be that of the sessions, takes it off in time, and counts what it dropped.
func (l *loop) filter(now time.Time) {
	l.gated = true
	gates := map[kind][]gate{}
	l.core.Sessions(func(discr uint32, k Key, _ []string) {
		g := gate{peer: k.Peer, discr: discr}
		g.remote, g.passive = l.core.Newcomers(discr)
		if p := l.ports[discr]; p != nil && !k.MultiHop {
			g.index = p.on
		}
		if r := l.receivers[kindOf(k)]; r != nil {
			g.crowded = r.crowded[discr]
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
				r.until, r.junk, r.attached = time.Time{}, 0, false
				clear(r.crowded)
			}
		case others || !r.attached:
			if r.attached = r.attach(r.fd, r.passKnown()) == nil; !r.attached {
				_ = r.attach(r.fd, r.passAll()) // the one before may shut out a session that is new
			}
		}
		if !r.until.IsZero() {
			l.again(now, max(r.until.Sub(now), time.Millisecond))
		}
	}
}

// passAll passes all packets on, but over one hop most of what came over a router (RFC 5881, 5: TTL 255): one of so
// many is, to be counted and reported. IP_MINTTL would be simpler, and is for TCP alone (ip(7)).
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

// passKnown passes on what may be of a session alone.
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

// program passes on what goes through the gate, and goes on behind itself with all else.
func (g gate) program(source uint32) (out []bpf.Instruction) {
	unequal := func(load bpf.Instruction, val uint32) { // where it is another one it is not through this gate
		out = append(out, load, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: val})
	}
	for i, octets := 0, g.peer.AsSlice(); i < len(octets); i += 4 {
		unequal(bpf.LoadAbsolute{Off: netOff + source + uint32(i), Size: 4}, binary.BigEndian.Uint32(octets[i:]))
	}
	if g.index != 0 {
		unequal(bpf.LoadExtension{Num: bpf.ExtInterfaceIndex}, uint32(g.index))
	}
	named := bpf.LoadAbsolute{Off: bfdOff + 8, Size: 4}
	if g.crowded && !g.passive {
		unequal(named, g.discr)
	} else {
		rest := g.newcomers()
		out = append(out, named, bpf.JumpIf{Cond: bpf.JumpEqual, Val: g.discr, SkipTrue: uint8(len(rest))})
		out = append(out, rest...)
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

// newcomers goes on behind itself with those of the packets that name no session, whose discriminator is loaded, that
// may be of the peer, and leaves the gate with all else: its jumps have no distance yet.
func (g gate) newcomers() []bpf.Instruction {
	out := []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0},
		bpf.LoadAbsolute{Off: bfdOff + 1, Size: 1}, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x80}, // Init or Up
	}
	if g.remote != 0 {
		out = append(out, bpf.LoadAbsolute{Off: bfdOff + 4, Size: 4}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: g.remote})
	}
	if g.crowded {
		out = append(out, bpf.LoadExtension{Num: bpf.ExtRand}, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: sampleNewcomers - 1})
	}
	return out
}

// hops and source are where the network header has the TTL and the source (RFC 791, 3.1; RFC 8200, 3).
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

// attach gives a socket a filter in place of the one that it has.
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

// dropped is how many packets the kernel has dropped at the socket (SO_MEMINFO of socket(7), SK_MEMINFO_DROPS), 0 if
// it does not say.
func (r *receiver) dropped() uint32 {
	const words, drops = 9, 8
	info := make([]byte, 4*words)
	if n, err := getsockopt(r.fd, unix.SOL_SOCKET, unix.SO_MEMINFO, info); err != nil || n < len(info) {
		return r.drops
	}
	return binary.NativeEndian.Uint32(info[4*drops:])
}
