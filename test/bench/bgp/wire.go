package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/test/lab/controlplane"
)

// wire notes the UPDATEs that come for one address to a router.
type wire struct {
	fd    int
	route []byte // the address as a prefix in an UPDATE (RFC 4271, 4.3)
	done  chan struct{}

	mu      sync.Mutex
	seen    []time.Time
	changed chan struct{} // closed and made anew at each UPDATE
}

// watch begins to watch on the router's interface to the LAN.
func watch(namespace string, addr netip.Addr) (*wire, error) {
	w := &wire{route: append([]byte{32}, addr.AsSlice()...), done: make(chan struct{}), changed: make(chan struct{})}
	err := controlplane.Within(namespace, func() (err error) {
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
		w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("watch the wire: %w", err)
	}
	timeout := unix.Timeval{Usec: 100000}
	err = errors.Join(unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1), unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
	if err != nil {
		unix.Close(w.fd)
		return nil, fmt.Errorf("watch the wire: %w", err)
	}
	go w.read()
	return w, nil
}

func (w *wire) close() { close(w.done) }

func (w *wire) read() {
	data, control := make([]byte, 2048), make([]byte, 128)
	for {
		select {
		case <-w.done:
			unix.Close(w.fd)
			return
		default:
		}
		n, c, _, from, err := unix.Recvmsg(w.fd, data, control, 0)
		if err != nil {
			continue // the timeout
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING || !w.update(data[:n]) {
			continue
		}
		messages, err := unix.ParseSocketControlMessage(control[:c])
		if err != nil || len(messages) == 0 || len(messages[0].Data) < int(unsafe.Sizeof(unix.Timespec{})) {
			continue
		}
		at := time.Unix((*unix.Timespec)(unsafe.Pointer(&messages[0].Data[0])).Unix())
		w.mu.Lock()
		w.seen = append(w.seen, at)
		close(w.changed)
		w.changed = make(chan struct{})
		w.mu.Unlock()
	}
}

// update tells whether a packet of IPv4 carries an UPDATE with the address.
func (w *wire) update(b []byte) bool {
	const marker, kind = 16, 2 // RFC 4271, 4.1
	if len(b) < 40 || b[0]>>4 != 4 || b[9] != unix.IPPROTO_TCP {
		return false
	}
	tcp := b[int(b[0]&15)*4:]
	if len(tcp) < 20 || binary.BigEndian.Uint16(tcp) != 179 && binary.BigEndian.Uint16(tcp[2:]) != 179 {
		return false
	}
	payload := tcp[min(len(tcp), int(tcp[12]>>4)*4):]
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

// after waits for the first UPDATE since a moment, and tells how long after that it was.
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
