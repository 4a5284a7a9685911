package sim

import "time"

// beginBusy stalls a busy node's process, and the thread of its prober, now and then.
func (s *Speaker) beginBusy() {
	if !s.busy {
		return
	}
	b := s.cluster.config.Busy
	s.again(b.Paused, func(d time.Duration) {
		if s.runs() {
			s.Pause(d)
		}
	})
	s.again(b.Blocked, func(d time.Duration) {
		s.prober.blocked = max(s.prober.blocked, s.cluster.now+int64(d))
	})
}

// again calls f at the start of each burst, with its length.
func (s *Speaker) again(b Bursts, f func(time.Duration)) {
	if b.Every == 0 {
		return
	}
	c := s.cluster
	c.After(time.Duration(c.probes.ExpFloat64()*float64(b.Every)), func() {
		f(b.Least + time.Duration(c.probes.Int64N(max(1, int64(b.Most-b.Least)))))
		s.again(b, f)
	})
}

// Gateway is a router on the LAN that answers questions. It is not a node.
type Gateway struct {
	cluster *Cluster
	host
}

// Power switches it on or off.
func (g *Gateway) Power(on bool) { g.cluster.set(&g.host, func() { g.power = on }) }

// Group moves its port into a group; only ports of one group reach one another.
func (g *Gateway) Group(group int) { g.cluster.set(&g.host, func() { g.ports[LAN].group = group }) }
