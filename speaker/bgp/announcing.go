package bgp

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/plan"
)

// waitingMost is the maximum number of pending changes; an ironlb-bgpd of version 1 never reports that it has applied
// one.
const waitingMost = 1024

// announcing measures the time until a prefix to announce is in GoBGP.
type announcing struct {
	took prometheus.Histogram
	// serial is that of the last change. It starts from the time, so that it differs from the serials of an earlier
	// process.
	serial  uint64
	waiting []telling // with ascending serials
}

// telling is a change and the number of prefixes that it announces.
type telling struct {
	serial   uint64
	prefixes int
	at       time.Time
}

func newAnnouncing(reg prometheus.Registerer) announcing {
	a := announcing{serial: uint64(time.Now().UnixNano()), took: prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: "ironlb", Subsystem: "bgp", Name: "announce_duration_seconds",
		Help:    "From the moment that a prefix was programmed and this node's to announce, anew or differently, until GoBGP had it. What a speaker finds when it starts does not count.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	})}
	if reg != nil {
		reg.MustRegister(a.took)
	}
	return a
}

// set records a change, which is measured unless it is the first one, and returns its serial.
func (a *announcing) set(c plan.BGPChange, counts bool, now time.Time) uint64 {
	a.serial++
	prefixes := 0
	for _, r := range c.Routes {
		if len(r) > 0 {
			prefixes++
		}
	}
	if counts && prefixes > 0 {
		if len(a.waiting) == waitingMost {
			a.waiting = a.waiting[1:]
		}
		a.waiting = append(a.waiting, telling{serial: a.serial, prefixes: prefixes, at: now})
	}
	return a.serial
}

// applied records that GoBGP has applied a change and all before it.
func (a *announcing) applied(serial uint64, now time.Time) {
	if serial > a.serial {
		return // of an earlier process with a clock ahead of this one
	}
	for len(a.waiting) > 0 && a.waiting[0].serial <= serial {
		took := now.Sub(a.waiting[0].at).Seconds()
		for range a.waiting[0].prefixes {
			a.took.Observe(took)
		}
		a.waiting = a.waiting[1:]
	}
}
