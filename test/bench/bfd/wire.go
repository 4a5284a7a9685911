package main

import (
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/bfd"
	"github.com/ironlb/ironlb/test/bench/capture"
)

func logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// wire captures the packets of both sides on eth0 of one of them.
type wire struct {
	intervals []time.Duration
	sources   map[netip.Addr]int
	close     func()

	mu      sync.Mutex
	begun   bool
	seen    []seen
	senders map[netip.Addr]*sender
}

// seen is the observation of an interval's sessions.
type seen struct {
	late    []time.Duration // delay of each periodic packet beyond its interval
	silence time.Duration
}

// sender holds the times of the last packet and of the last periodic packet of one side of a session.
type sender struct{ received, periodic time.Time }

// watch starts the capture in the thread's namespace.
func watch(intervals []time.Duration, sources map[netip.Addr]int) (*wire, error) {
	w := &wire{intervals: intervals, sources: sources, seen: make([]seen, len(intervals)), senders: map[netip.Addr]*sender{}}
	var err error
	w.close, err = capture.Start(func(p capture.Packet) {
		if p.Protocol != unix.IPPROTO_UDP || p.To.Port() != 3784 {
			return
		}
		if parsed, err := bfd.Parse(p.Payload); err == nil {
			w.packet(p.At, p.From.Addr(), parsed)
		}
	})
	return w, err
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

// packet handles a packet. Packets of a session that is not up are slow by design, and answers to polls are sent on
// request.
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
	if w.begun && !s.received.IsZero() {
		w.seen[i].silence = max(w.seen[i].silence, at.Sub(s.received))
	}
	if p.State != bfd.Up || !w.begun { // an interval that ends here counts only as silence
		*s = sender{}
		return
	}
	s.received = at
	if p.Final {
		return
	}
	if !s.periodic.IsZero() {
		w.seen[i].late = append(w.seen[i].late, max(0, at.Sub(s.periodic)-w.intervals[i]))
	}
	s.periodic = at
}
