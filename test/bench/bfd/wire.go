package main

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/bfd"
)

func logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// wire watches the packets of both sides on eth0 of one of them.
type wire struct {
	fd        int
	intervals []time.Duration
	sources   map[netip.Addr]int
	done      chan struct{}

	mu      sync.Mutex
	begun   bool
	seen    []seen
	senders map[netip.Addr]*sender
}

// seen is what was seen of the sessions of an interval.
type seen struct {
	late    []time.Duration // by how much each periodic packet came after its interval
	silence time.Duration
}

// sender is when one side of a session was last heard, and last sent a periodic packet.
type sender struct{ heard, periodic time.Time }

// watch begins to watch in the thread's namespace.
func watch(intervals []time.Duration, sources map[netip.Addr]int) (*wire, error) {
	all := uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return nil, fmt.Errorf("watch the wire: %w", err)
	}
	for name, value := range map[int]int{unix.SO_TIMESTAMPNS: 1, unix.SO_RCVBUF: 4 << 20} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, name, value); err != nil {
			return nil, fmt.Errorf("watch the wire: option %d: %w", name, err)
		}
	}
	timeout := unix.Timeval{Usec: 100000}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, err
	}
	w := &wire{fd: fd, intervals: intervals, sources: sources, done: make(chan struct{}), seen: make([]seen, len(intervals)), senders: map[netip.Addr]*sender{}}
	go w.read()
	return w, nil
}

func (w *wire) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = true
}

func (w *wire) end() []seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = false
	return w.seen
}

func (w *wire) close() { close(w.done) }

func (w *wire) read() {
	data, control := make([]byte, 256), make([]byte, 128)
	for {
		select {
		case <-w.done:
			unix.Close(w.fd)
			return
		default:
		}
		n, c, _, _, err := unix.Recvmsg(w.fd, data, control, 0)
		if err != nil {
			continue
		}
		messages, err := unix.ParseSocketControlMessage(control[:c])
		if err != nil || len(messages) == 0 || len(messages[0].Data) < int(unsafe.Sizeof(unix.Timespec{})) {
			continue
		}
		at := time.Unix((*unix.Timespec)(unsafe.Pointer(&messages[0].Data[0])).Unix())
		if source, p, ok := parse(data[:n]); ok {
			w.packet(at, source, p)
		}
	}
}

// parse reads an IP packet that carries BFD.
func parse(b []byte) (source netip.Addr, p bfd.Packet, ok bool) {
	if len(b) < 40 {
		return source, p, false
	}
	at := 40
	switch b[0] >> 4 {
	case 4:
		if b[9] != unix.IPPROTO_UDP {
			return source, p, false
		}
		source, at = netip.AddrFrom4([4]byte(b[12:16])), int(b[0]&15)*4
	case 6:
		if b[6] != unix.IPPROTO_UDP {
			return source, p, false
		}
		source = netip.AddrFrom16([16]byte(b[8:24]))
	}
	if len(b) < at+8 || binary.BigEndian.Uint16(b[at+2:]) != 3784 {
		return source, p, false
	}
	p, err := bfd.Parse(b[at+8:])
	return source, p, err == nil
}

// packet takes a packet in. Those of a session that is not up are slow on purpose, and answers to polls come when they are asked for.
func (w *wire) packet(at time.Time, source netip.Addr, p bfd.Packet) {
	i, ours := w.sources[source]
	if !ours {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.senders[source]
	if s == nil {
		s = &sender{}
		w.senders[source] = s
	}
	if w.begun && !s.heard.IsZero() {
		w.seen[i].silence = max(w.seen[i].silence, at.Sub(s.heard))
	}
	if p.State != bfd.Up || !w.begun { // an interval that ends here counts as silence only
		*s = sender{}
		return
	}
	s.heard = at
	if p.Final {
		return
	}
	if !s.periodic.IsZero() {
		w.seen[i].late = append(w.seen[i].late, max(0, at.Sub(s.periodic)-w.intervals[i]))
	}
	s.periodic = at
}
