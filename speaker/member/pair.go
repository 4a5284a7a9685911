package member

import (
	"fmt"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Unicast datagrams arrive on two sockets per family: the kernel puts routine heartbeats into the second one, which the
// loop polls only while the core is attentive. So they do not wake it, and a flood of them fills no buffer but theirs.

// pair opens the second socket for a socket of openSocket. On an error the first one receives everything.
func pair(s *socket) (*socket, error) {
	shared := option{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1}
	if err := s.set(shared); err != nil {
		return nil, err
	}
	second, err := open(&socket{v6: s.v6, port: s.port, deferred: true}, func(second *socket) error {
		options := []option{shared, {unix.SOL_SOCKET, unix.SO_REUSEADDR, 1}}
		if !s.v6 {
			options = append(options, option{unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0})
		}
		if err := second.set(options...); err != nil {
			return err
		}
		if err := unix.Bind(second.fd, second.any()); err != nil {
			return fmt.Errorf("bind UDP port %d (%s) again: %w", s.port, s.family(), err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	// The kernel runs the program on a unicast datagram, without its UDP header, for the index of its socket.
	program := append(whileRoutine(0, 1), bpf.RetConstant{Val: 1}, bpf.RetConstant{Val: 0})
	if err := s.attachProgram(program, unix.SO_ATTACH_REUSEPORT_CBPF); err != nil {
		second.close()
		return nil, fmt.Errorf("separate routine heartbeats (%s): %w", s.family(), err)
	}
	s.paired = true
	return second, nil
}

// whileRoutine returns instructions that continue if a datagram is a routine heartbeat, as Routine reports, and
// otherwise skip some. The datagram begins at an offset.
func whileRoutine(offset uint32, skip uint8) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: offset + 3, Size: 1}, // the length of the node name
		bpf.TAX{},
		bpf.LoadIndirect{Off: offset + headerSize, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: fieldHello, SkipTrue: skip + 2},
		bpf.LoadIndirect{Off: offset + flagsAt, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: flagRoutine, SkipTrue: skip},
	}
}

// ownClass returns instructions that drop a broadcast that the other socket of a pair accepts: each gets a copy.
func (s *socket) ownClass() []bpf.Instruction {
	switch {
	case s.deferred:
		return append(whileRoutine(payload, 1), bpf.Jump{Skip: 1}, bpf.RetConstant{Val: 0})
	case s.paired:
		return append(whileRoutine(payload, 1), bpf.RetConstant{Val: 0})
	}
	return nil
}

// dropsElsewhere returns how many other sockets have dropped their copy of an accepted datagram.
func (s *socket) dropsElsewhere(a arrival, sockets, deferred []*socket) (n int) {
	if !a.broadcast && !(s.v6 && a.group) {
		return 0
	}
	for _, of := range [][]*socket{sockets, deferred} {
		for _, o := range of {
			if o.v6 == s.v6 && o != s {
				n++
			}
		}
	}
	return n
}

const (
	// maxStep is the change of CLOCK_REALTIME against CLOCK_MONOTONIC between two reads that counts as a step.
	maxStep = time.Millisecond
	// maxRate is the number of datagrams per second from which none waits: more than the largest cluster sends.
	maxRate = 10_000
	// slotSize is the largest memory that a network driver uses for a short datagram, with the kernel's overhead.
	slotSize = 4352
)

// intake records what the loop reads, and when.
type intake struct {
	// polled is the end of the last poll; offset is CLOCK_REALTIME less the time since the start, at the last read.
	polled time.Time
	offset time.Duration
	// read counts the datagrams since the time since. busy is set if they are too many to let any wait.
	read  int
	since time.Time
	busy  bool
}

// stepped reports whether CLOCK_REALTIME was set since the last call.
func (k *intake) stepped(start, now time.Time) bool {
	before := k.offset
	k.offset = time.Duration(now.UnixNano()) - now.Sub(start)
	return (k.offset - before).Abs() > maxStep
}

// add counts datagrams read from a socket at once.
func (k *intake) add(now time.Time, s *socket, n int) {
	if k.read += n; n > s.room/4 {
		k.busy, k.read, k.since = true, 0, now
		return
	}
	if age := now.Sub(k.since); age >= time.Second {
		k.busy = float64(k.read) > maxRate*age.Seconds()
		k.read, k.since = 0, now
	}
}

// age returns how long ago a datagram arrived, by the kernel's time, at most since the socket was last empty: so a step
// of CLOCK_REALTIME has no effect.
func (s *socket) age(stamp int64, now time.Time) time.Duration {
	if !s.stamped || stamp == 0 {
		return 0
	}
	return min(max(0, time.Duration(now.UnixNano()-stamp)), now.Sub(s.emptied))
}
