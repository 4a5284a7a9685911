package bgp

import "net/netip"

// outbox has what a child has not received yet. Daemon.mu guards it.
type outbox struct {
	wake chan struct{} // there is an order
	// urgent orders are sent first, then, if todo is set, a change with the peer and the routes of these prefixes, or all.
	urgent   []order
	todo     bool
	all      bool
	prefixes map[netip.Prefix]struct{}
	// sent and applied are the serials of the last change that was sent and applied.
	sent, applied uint64
}

func newOutbox() outbox {
	return outbox{wake: make(chan struct{}, 1), prefixes: map[netip.Prefix]struct{}{}}
}

// update schedules the route of a prefix, which follows the change with this serial.
func (b *outbox) update(prefix netip.Prefix, serial uint64) {
	if !b.all {
		b.prefixes[prefix] = struct{}{}
	}
	b.send(serial)
}

// send schedules a change; all up to this serial have been sent, unless some wait already.
func (b *outbox) send(serial uint64) {
	if !b.behind() {
		b.sent, b.applied = serial, serial
	}
	b.todo = true
	trigger(b.wake)
}

// sendAll schedules the full configuration of this serial for a new process.
func (b *outbox) sendAll(serial uint64) {
	b.todo, b.all, b.urgent = true, true, nil
	clear(b.prefixes)
	b.applied = max(serial, 1) - 1
	b.sent = b.applied
}

// urge schedules an order before any change.
func (b *outbox) urge(o order) {
	b.urgent = append(b.urgent, o)
	trigger(b.wake)
}

// behind reports whether there is a change that is not applied.
func (b *outbox) behind() bool { return b.todo || b.sent != b.applied }
