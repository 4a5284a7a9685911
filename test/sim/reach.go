package sim

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/reach"
	"github.com/ironlb/ironlb/speaker/view"
)

// host is a node or the gateway. Its kernel answers ICMP echo and neighbor discovery while it has power and is not
// suspended, whatever the state of its processes.
type host struct {
	addrs            [networks]netip.Addr
	ports            [networks]port
	power, suspended bool
	busy             bool
	changed          int64 // time of the last change of power, suspension or a port
}

func (h *host) answers() bool { return h.power && !h.suspended }

// set changes a host and records the time.
func (c *Cluster) set(h *host, change func()) {
	change()
	h.changed = c.now
}

// prober models reach.Prober on a node: a thread of ordinary priority with a reach.Core.
type prober struct {
	core *reach.Core
	// at is the next run of its thread, 0 for never. Until blocked, the thread gets no CPU.
	at, blocked int64
	// received and observer are new if updated is set.
	received member.Reception
	updated  bool
	// echoes are replies queued in its socket. neighbors are the questions to the neighbor table.
	echoes    []reach.Probe
	neighbors []neighbor
	decided   view.Reachability
	open      map[string]*Verdict
}

// neighbor is a question to the neighbor table.
type neighbor struct {
	reach.Probe
	asked    int64
	answered int64 // 0: not yet
}

// neighborFor is the timeout of a question to the neighbor table, neighborTick the resolution of its times.
const neighborFor, neighborTick = time.Second, 10 * time.Millisecond

// startProber starts with the API server's nodes and the gateway.
func (s *Speaker) startProber() {
	s.prober = prober{core: reach.NewCore(), open: map[string]*Verdict{}}
	s.setTargets()
	s.prober.core.SetGateways(s.time(), both(s.cluster.Gateway.addrs[LAN]))
	s.core.SetAnswers(s.prober.core.State().Silent)
	s.wakeProber(s.cluster.now)
}

// setTargets sets the other nodes with their InternalIPs.
func (s *Speaker) setTargets() {
	nodes := map[string][]reach.Target{}
	for name, n := range s.view.Nodes {
		if name != s.Name {
			nodes[name] = both(n.Addresses[0])
		}
	}
	s.prober.core.SetNodes(s.time(), nodes)
}

func both(addr netip.Addr) []reach.Target {
	return []reach.Target{{Addr: addr, By: view.WitnessEcho}, {Addr: addr, By: view.WitnessNeighbor}}
}

// stopProber stops the prober when its process ends.
func (s *Speaker) stopProber() {
	for _, v := range s.prober.open {
		s.cluster.close(v)
	}
	s.prober = prober{}
}

// passReceived passes the names of nodes whose speakers are received.
func (s *Speaker) passReceived() {
	if now, changed := s.core.Received(); changed {
		s.prober.received, s.prober.updated = now, true
		s.wakeProber(s.cluster.now)
	}
}

// wakeProber schedules the prober's thread at a time, delayed by the scheduler's latency.
func (s *Speaker) wakeProber(at int64) {
	c, p := s.cluster, &s.prober
	late := time.Millisecond
	if s.busy {
		late = max(late, c.config.Busy.Prober)
	}
	at = max(at, c.now, p.blocked) + c.probes.Int64N(int64(late))
	if p.at != 0 && p.at <= at {
		return
	}
	p.at = at
	c.queue.push(event{at: at, kind: probe, node: s, boot: s.boot})
}

// probe is one tick of its loop.
func (s *Speaker) probe() {
	c, p := s.cluster, &s.prober
	p.at = 0
	if c.now < p.blocked {
		s.wakeProber(p.blocked)
		return
	}
	start, now := s.clock(), s.time()
	if p.updated {
		p.updated = false
		p.core.SetReceived(now, p.received.Nodes, p.received.Observer)
		p.core.SetSilent(now, p.received.Silent, func(string) []reach.Target {
			if !c.Gateway.power {
				return nil
			}
			return both(c.Gateway.addrs[LAN])
		})
	}
	for _, q := range p.echoes {
		p.core.Answered(now, q)
	}
	p.echoes = p.echoes[:0]
	p.neighbors = slices.DeleteFunc(p.neighbors, func(n neighbor) bool {
		if n.answered > 0 {
			ago := time.Duration(c.now - n.answered).Truncate(neighborTick)
			p.core.Answered(now.Add(-min(ago, time.Duration(c.now-n.asked))), n.Probe)
		}
		return n.answered > 0 || c.now-n.asked > int64(neighborFor)
	})
	questions := p.core.Tick(now)
	s.Cost.Reach += s.clock() - start
	for _, q := range questions {
		s.ask(q)
	}
	s.finds()
	s.wakeProber(int64(p.core.Next().Sub(beginning) + s.behind))
}

// ask sends a question.
func (s *Speaker) ask(q reach.Probe) {
	c, p, boot := s.cluster, &s.prober, s.boot
	s.Asked++
	if q.By == view.WitnessNeighbor {
		p.neighbors = append(p.neighbors, neighbor{Probe: q, asked: c.now})
	}
	to := c.byAddr[q.Addr]
	c.packet(&s.host, to.host, to.iface, func() {
		if to.host.answers() {
			c.packet(to.host, &s.host, to.iface, func() {
				if s.boot == boot && s.core != nil && s.answers() {
					s.answered(q)
				}
			})
		}
	})
}

// answered handles an answer. An echo reply wakes the prober; an answer of the neighbor table does not.
func (s *Speaker) answered(q reach.Probe) {
	p := &s.prober
	if q.By == view.WitnessEcho {
		p.echoes = append(p.echoes, q)
		s.wakeProber(s.cluster.now)
		return
	}
	for i := range p.neighbors {
		if n := &p.neighbors[i]; n.Addr == q.Addr && n.answered == 0 {
			n.answered = s.cluster.now
		}
	}
}

// packet delivers a packet between two kernels, unless it is lost.
func (c *Cluster) packet(from, to *host, iface uint8, arrives func()) {
	out, in := &from.ports[iface], &to.ports[iface]
	if out.group != in.group || c.lost(out) || c.lost(in) || loss(c.probes, c.config.Loss) || loss(c.probes, in.lossIn) {
		return
	}
	late := delay(c.probes)
	if to.busy && c.config.Busy.Kernel > 0 {
		late += time.Duration(c.probes.Int64N(int64(c.config.Busy.Kernel)))
	}
	c.After(late, arrives)
}

// finds records the verdicts of its Core.
func (s *Speaker) finds() {
	c, p := s.cluster, &s.prober
	state := p.core.State()
	if !maps.Equal(p.decided.Silent, state.Silent) {
		s.core.SetAnswers(state.Silent)
		s.scheduleTick()
	}
	for _, name := range slices.Sorted(maps.Keys(state.Unreachable)) {
		v := p.open[name]
		if v == nil {
			o := c.byName[name]
			v = &Verdict{Node: s.Name, Of: name, At: c.Now(), Wrong: c.reaches(&s.host, &o.host, settles)}
			p.open[name] = v
			c.Verdicts = append(c.Verdicts, v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.open)) {
		if _, still := state.Unreachable[name]; !still {
			c.close(p.open[name])
			delete(p.open, name)
		}
	}
	s.leaveOut(p.decided, state)
	p.decided = state
}

// State returns the prober's verdicts.
func (s *Speaker) State() view.Reachability { return s.prober.decided }
