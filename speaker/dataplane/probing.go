package dataplane

import "time"

const (
	// probeEvery is the interval of probes while tunnels are not available. A change of the nodes or interfaces hastens
	// the next probe to probeSoon after the last one.
	probeEvery = time.Minute
	probeSoon  = 10 * time.Second
	// A node that proves unable within steadyAfter of a successful probe waits twice as long each time, at most probeMax:
	// every such change moves the connections of its endpoints.
	steadyAfter = 10 * time.Minute
	probeMax    = 32 * time.Minute
)

// probing determines when to find out again whether this node can use tunnels.
type probing struct {
	// last is when that was last found out, by a probe or a failed Apply; zero for never. able is since when it could.
	last, able time.Time
	// wait is the interval to the next probe; zero while no Apply has failed.
	wait time.Duration
	// changed is set if the nodes or interfaces changed since.
	changed bool
}

// begun reports whether there was a probe.
func (p *probing) begun() bool { return !p.last.IsZero() }

// due reports whether a node that cannot use tunnels is to be probed.
func (p *probing) due(now time.Time) bool {
	wait := max(p.wait, probeEvery)
	if p.changed && wait == probeEvery {
		wait = probeSoon
	}
	return !now.Before(p.last.Add(wait))
}

// probed records the result of a probe.
func (p *probing) probed(now time.Time, able bool) {
	p.last, p.changed = now, false
	if able {
		p.able = now
	}
}

// failed records that Apply found that the node cannot use tunnels.
func (p *probing) failed(now time.Time) {
	wait := probeEvery
	if p.wait > 0 && now.Sub(p.able) < steadyAfter {
		wait = min(2*p.wait, probeMax)
	}
	p.last, p.wait, p.changed = now, wait, false
}
