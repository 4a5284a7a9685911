package bfd

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	// netOff is where the network header begins for a filter (SKF_NET_OFF of linux/filter.h), wherever the socket's own data begins.
	netOff = 0xfff00000
	// sample is how many packets from off link there are for each one that is passed on, so that the status and the metrics can tell of them.
	sample = 16
)

// onLink has the kernel drop what came over a router (RFC 5881, 5: TTL 255) before it wakes the loop, but for one of so many. IP_MINTTL
// would be simpler, and is for TCP alone (ip(7)).
func (r *receiver) onLink(fd int) error {
	hops := uint32(8) // the TTL (RFC 791, 3.1)
	if r.six {
		hops = 7 // the hop limit (RFC 8200, 3)
	}
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: netOff + hops, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 255, SkipTrue: 3},
		bpf.LoadExtension{Num: bpf.ExtRand},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: sample - 1, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: 0xffff},
	})
	if err != nil {
		return err
	}
	raw := make([]unix.SockFilter, len(program))
	for i, p := range program {
		raw[i] = unix.SockFilter{Code: p.Op, Jt: p.Jt, Jf: p.Jf, K: p.K}
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(raw)), Filter: &raw[0]}); err != nil {
		return fmt.Errorf("attach a filter to the socket on %v: %w", r, err)
	}
	return nil
}
