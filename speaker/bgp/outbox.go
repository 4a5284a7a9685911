package bgp

import (
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/routes"
)

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

// maxPending is the maximum number of pending changes: GoBGP may hang, or ironlb-bgpd be unreachable. Then the oldest
// are not measured.
const maxPending = 1024

// announcing measures the time until a prefix to announce is in GoBGP.
type announcing struct {
	took prometheus.Histogram
	// serial is that of the last change. It starts from the time, so that it differs from the serials of an earlier
	// process.
	serial  uint64
	pending []pendingChange // with ascending serials
}

// pendingChange is a change and the number of prefixes that it announces.
type pendingChange struct {
	serial   uint64
	prefixes int
	at       time.Time
}

func newAnnouncing(reg prometheus.Registerer) announcing {
	a := announcing{serial: uint64(time.Now().UnixNano()), took: prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: "ironlb", Subsystem: "bgp", Name: "announce_duration_seconds",
		Help:    "Time from programming and ownership of a prefix, or a change of its attributes, to its path in GoBGP. Routes found at the start of a speaker do not count.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	})}
	if reg != nil {
		reg.MustRegister(a.took)
	}
	return a
}

// set records a change, which is measured unless it is the first one, and returns its serial.
func (a *announcing) set(c routes.Change, counts bool, now time.Time) uint64 {
	a.serial++
	prefixes := 0
	for _, r := range c.Routes {
		if len(r) > 0 {
			prefixes++
		}
	}
	if counts && prefixes > 0 {
		if len(a.pending) == maxPending {
			a.pending = a.pending[1:]
		}
		a.pending = append(a.pending, pendingChange{serial: a.serial, prefixes: prefixes, at: now})
	}
	return a.serial
}

// applied records that GoBGP has applied a change and all before it.
func (a *announcing) applied(serial uint64, now time.Time) {
	if serial > a.serial {
		return // of an earlier process with a clock ahead of this one
	}
	for len(a.pending) > 0 && a.pending[0].serial <= serial {
		took := now.Sub(a.pending[0].at).Seconds()
		for range a.pending[0].prefixes {
			a.took.Observe(took)
		}
		a.pending = a.pending[1:]
	}
}
