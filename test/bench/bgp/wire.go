package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/test/bench/capture"
	"github.com/ironlb/ironlb/test/lab/controlplane"
)

// wire records the UPDATEs for one address received by a router.
type wire struct {
	route []byte // the address as a prefix in an UPDATE (RFC 4271, 4.3)
	close func()

	mu      sync.Mutex
	seen    []time.Time
	changed chan struct{} // closed and replaced at each UPDATE
}

// watch starts the capture on the router's interfaces.
func watch(namespace string, addr netip.Addr) (*wire, error) {
	w := &wire{route: append([]byte{32}, addr.AsSlice()...), changed: make(chan struct{})}
	err := controlplane.Within(namespace, func() (err error) {
		w.close, err = capture.Start(func(p capture.Packet) {
			if !p.Outgoing && p.Protocol == unix.IPPROTO_TCP && (p.From.Port() == 179 || p.To.Port() == 179) && w.update(p.Payload) {
				w.record(p.At)
			}
		})
		return err
	})
	return w, err
}

func (w *wire) record(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, at)
	close(w.changed)
	w.changed = make(chan struct{})
}

// update reports whether the payload of a TCP segment has an UPDATE with the address.
func (w *wire) update(payload []byte) bool {
	const marker, kind = 16, 2 // RFC 4271, 4.1
	for len(payload) >= 19 {
		length := int(binary.BigEndian.Uint16(payload[marker:]))
		if length < 19 || length > len(payload) {
			return false
		}
		if payload[18] == kind && bytes.Contains(payload[19:length], w.route) {
			return true
		}
		payload = payload[length:]
	}
	return false
}

// after waits for the first UPDATE since a moment, and returns the time from the moment to it.
func (w *wire) after(ctx context.Context, since time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for seen := 0; ; {
		w.mu.Lock()
		all, changed := w.seen, w.changed
		w.mu.Unlock()
		for _, at := range all[seen:] {
			if !at.Before(since) {
				return at.Sub(since), nil
			}
		}
		seen = len(all)
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for an UPDATE: %w", ctx.Err())
		}
	}
}
