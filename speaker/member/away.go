package member

import (
	"errors"
	"fmt"
	"time"

	"github.com/ironlb/ironlb/speaker/neighbor"
)

// answerWithin is the time in which a neighbor must answer; after it the neighbor counts as silent.
const answerWithin = probeAfter / 2

// rounds probes neighbors in rounds.
type rounds struct {
	table  *neighbor.Table
	probed map[Neighbor]time.Time
	failed string // last logged error
}

// probe probes neighbors, each at its hardware address, and returns which have answered the previous probe, and which
// have not. A neighbor that could not be probed is in neither list, for example one with a static entry. indexes are the
// known interfaces.
func (r *rounds) probe(all []Neighbor, indexes map[string]int) (answered, silent []Neighbor, err error) {
	probed := map[Neighbor]time.Time{}
	var failures []error
	for _, n := range all {
		before, repeated := r.probed[n]
		if repeated && time.Since(before) < answerWithin {
			probed[n] = before
			continue
		}
		index, known := indexes[n.Iface]
		if !known {
			if index, known = r.table.Interface(n.Iface); !known {
				continue
			}
		}
		addr := n.Addr.WithZone("")
		have, err := r.table.Entry(index, addr)
		read := time.Now()
		if err != nil || neighbor.Static(have) {
			failures = append(failures, err)
			continue
		}
		sent, err := r.table.Probe(index, addr, have, n.MAC)
		if err != nil {
			failures = append(failures, fmt.Errorf("on %s: %w", n.Iface, err))
		}
		if err == nil && (sent || repeated) { // else the kernel has given up probing, which counts as silent
			probed[n] = read
		}
		if _, ok := neighbor.Answered(have, read, before); repeated && ok {
			answered = append(answered, n)
		} else if repeated {
			silent = append(silent, n)
		}
	}
	r.probed = probed
	return answered, silent, errors.Join(failures...)
}

// checkAway publishes which nodes to probe, and logs those that have not answered.
func (l *loop) checkAway() {
	away, before := l.core.Away(), l.away.Load()
	switch {
	case away == nil && before != nil:
		l.away.Store(nil)
	case away != nil:
		l.away.Store(&away)
		if before == nil {
			select {
			case l.probing <- struct{}{}:
			default: // follow has not received the last one yet
			}
		}
	}
	for _, node := range l.core.Unanswered() {
		l.options.Log.Warn("a node without a speaker stopped answering ARP or neighbor discovery: "+
			"it counts as dead", "node", node)
	}
}

// probeAway probes which nodes without a process answer, and reports whether there are any.
func (d *Detector) probeAway(l *lister) bool {
	away := d.away.Load()
	if away == nil {
		l.probed = nil
		return false
	}
	answered, silent, err := l.rounds.probe(*away, l.indexes)
	if err != nil && l.failed != err.Error() {
		d.options.Log.Error("cannot probe nodes without a speaker; they count as alive",
			"error", err)
	}
	l.failed = ""
	if err != nil {
		l.failed = err.Error()
	}
	d.put(func(in *inbox) {
		in.answered, in.silent = append(in.answered, answered...), append(in.silent, silent...)
	})
	return true
}
