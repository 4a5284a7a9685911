package sim

import "time"

// Verdict records that a node considered another one unreachable.
type Verdict struct {
	Node, Of string
	// At is its start, Until its end; 0 while it lasts.
	At, Until time.Duration
	// Wrong is set if the other node answered all the time, over an intact network.
	Wrong bool
	// Back is the time from the node's return until it was considered reachable, 0 if the verdict ended otherwise.
	Back time.Duration
}

// settles is the time after the end of a fault in which it may still cause a verdict.
const settles = 150 * time.Millisecond

// reaches reports whether a node has reached another host's kernel for a time.
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

// Long returns its length so far.
func (c *Cluster) Long(v *Verdict) time.Duration {
	if v.Until == 0 {
		return c.Now() - v.At
	}
	return v.Until - v.At
}

// Mistaken returns the wrong verdicts.
func Mistaken(verdicts []*Verdict) (wrong []*Verdict) {
	for _, v := range verdicts {
		if v.Wrong {
			wrong = append(wrong, v)
		}
	}
	return wrong
}

// Unreachable reports whether a speaker considers another node unreachable.
func (s *Speaker) Unreachable(o *Speaker) bool {
	_, is := s.prober.decided.Unreachable[o.Name]
	return is
}
