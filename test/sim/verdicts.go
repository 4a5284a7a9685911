package sim

import "time"

// Verdict is that a node took another for unreachable.
type Verdict struct {
	Node, Of string
	// At is when, Until is when it ceased to be so; 0 while it lasts.
	At, Until time.Duration
	// Wrong: the other one answered all the time, and the network between them was whole.
	Wrong bool
	// Back is for how long it was there again when it was taken for reachable, 0 if it ended otherwise. Damped: that was
	// delayed since it had happened too often.
	Back   time.Duration
	Damped bool
}

// settles is how long after its end a fault may still be why a node is taken for unreachable.
const settles = 150 * time.Millisecond

// reaches reports whether a node reaches another host's kernel, and has for a time.
func (c *Cluster) reaches(from, to *host, since time.Duration) bool {
	i := NodeNetwork
	if c.config.OneNetwork {
		i = LAN
	}
	return to.answers() && from.ports[i].group == to.ports[i].group &&
		c.now-max(from.changed, to.changed) >= int64(since)
}

// close ends a verdict.
func (c *Cluster) close(v *Verdict) {
	from, to := c.byName[v.Node], &c.byName[v.Of].host
	v.Until = c.Now()
	if c.reaches(&from.host, to, 0) {
		v.Back = v.Until - max(v.At, time.Duration(max(from.changed, to.changed, from.resumed)))
	}
}

// Long is for how long it was so until now.
func (c *Cluster) Long(v *Verdict) time.Duration {
	if v.Until == 0 {
		return c.Now() - v.At
	}
	return v.Until - v.At
}

// Mistaken returns the verdicts that were wrong.
func Mistaken(verdicts []*Verdict) (wrong []*Verdict) {
	for _, v := range verdicts {
		if v.Wrong {
			wrong = append(wrong, v)
		}
	}
	return wrong
}

// Unreachable reports whether a speaker takes another node for unreachable.
func (s *Speaker) Unreachable(o *Speaker) bool {
	_, is := s.prober.decided.Unreachable[o.Name]
	return is
}
