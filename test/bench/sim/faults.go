package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironlb/ironlb/test/sim"
)

// traffic is the traffic sent and received by each speaker.
type traffic struct{ sent, received []sim.Traffic }

func (r *run) traffic() (t traffic) {
	for _, s := range r.Speakers {
		t.sent, t.received = append(t.sent, s.Sent), append(t.received, s.Received)
	}
	return t
}

// since returns the means and the maxima of the traffic sent and received since before, per second.
func (r *run) since(before traffic, d time.Duration) []figure {
	now := r.traffic()
	mean := func(name string, a, b []sim.Traffic) []figure {
		var datagrams, bytes, most float64
		for i := range b {
			m := a[i].Minus(b[i])
			datagrams, bytes, most = datagrams+float64(m.Datagrams), bytes+float64(m.Bytes), max(most, float64(m.Datagrams))
		}
		n := float64(len(b)) * d.Seconds()
		return []figure{per(name+"/s", datagrams/n), per(name+"-B/s", bytes/n), per(name+"-most/s", most/d.Seconds())}
	}
	return append(mean("received", now.received, before.received), mean("sent", now.sent, before.sent)...)
}

// spent returns the CPU time of the first speaker since before, per second.
func (r *run) spent(before sim.Cost, d time.Duration) []figure {
	now := r.Speakers[0].Cost
	s := d.Seconds()
	return []figure{per("core-cpu-ms/s", float64(now.Core-before.Core)/1e6/s), per("plan-cpu-ms/s", float64(now.Plan-before.Plan)/1e6/s),
		per("plans/s", float64(now.Plans-before.Plans)/s)}
}

// writes returns the writes to the API server since before, by kind.
func (r *run) writes(before sim.Writes) []figure {
	w := r.Written().Minus(before)
	return []figure{count("vip-status-writes", w.VirtualIPs), count("list-writes", w.Lists), count("speaker-status-writes", w.Speakers),
		count("events", w.Events)}
}

// longer returns a time that is longer by what the dead time of a cluster of this size exceeds the profile's.
func (r *run) longer(d time.Duration) time.Duration {
	return d + r.profile.Stretched(len(r.Speakers)-1).Dead - r.profile.Dead
}

func (r *run) idle() {
	d := r.window
	r.reset()
	before, cost := r.traffic(), r.Speakers[0].Cost
	r.Run(d)
	figures := append(r.since(before, d), r.spent(cost, d)...)
	figures = append(figures, ms("heartbeat-interval", r.profile.Stretched(len(r.Speakers)-1).Interval))
	r.line("idle", append(figures, count("false-deaths", sim.Wrong(r.Deaths)), count("moves", len(r.Owners.Moves)))...)
}

func (r *run) reset() {
	r.Owners.Mark()
	r.Deaths = nil
}

// victim returns another node each time, except the first: its cost is measured.
func (r *run) victim() *sim.Speaker {
	r.next = (r.next+7)%(len(r.Speakers)-1) + 1
	return r.Speakers[r.next]
}

// found returns how long after a time each other node considered each of these dead.
func (r *run) found(at time.Duration, dead ...*sim.Speaker) (t sim.Times) {
	for _, d := range r.Deaths {
		if slices.ContainsFunc(dead, func(s *sim.Speaker) bool { return s.Name == d.Dead }) && !slices.ContainsFunc(dead, func(s *sim.Speaker) bool { return s.Name == d.Node }) {
			t = append(t, d.At-at)
		}
	}
	return t
}

func quantiles(name string, t sim.Times) []figure {
	return []figure{ms(name+"-p50", t.Quantile(0.5)), ms(name+"-p99", t.Quantile(0.99)), ms(name+"-max", t.Most())}
}

// powerOff cuts the power of some nodes at once, and restores it.
func (r *run) powerOff(nodes int) {
	var detect, takeover sim.Times
	var moves, returned, doubled, wrong, late int
	least, most := r.vips, 0
	var figures []figure
	rounds := r.rounds
	if nodes > 1 {
		rounds = max(1, rounds/5)
	}
	var before traffic
	var cost sim.Cost
	written, back := sim.Writes{}, sim.Writes{}
	for i := range rounds {
		r.reset()
		before, cost = r.traffic(), r.Speakers[0].Cost
		start := r.Written()
		at := r.Now()
		var off []*sim.Speaker
		for range nodes {
			s := r.victim()
			off = append(off, s)
			s.PowerOff()
		}
		r.Run(time.Second)
		if i == 0 {
			figures = append(r.since(before, time.Second), r.spent(cost, time.Second)...)
		}
		r.Run(r.longer(r.longer(2 * time.Second)))
		vacant, _ := r.Owners.Each()
		late += vacant
		detect, takeover = append(detect, r.found(at, off...)...), append(takeover, sim.Long(r.Owners.Vacant)...)
		moves += len(r.Owners.Moves)
		doubled, wrong = doubled+len(r.Owners.Doubled), wrong+sim.Wrong(r.Deaths)
		if a, b := r.Owners.Balance(); i == 0 {
			least, most = a, b
		}
		r.Run(2 * time.Second) // the lists follow
		written = written.Plus(r.Written().Minus(start))
		r.reset()
		start = r.Written()
		for _, s := range off {
			s.Start()
		}
		r.Run(r.longer(5 * time.Second))
		back = back.Plus(r.Written().Minus(start))
		returned += len(r.Owners.Moves)
		wrong += sim.Wrong(r.Deaths)
	}
	name := "power-off"
	if nodes > 1 {
		name = fmt.Sprintf("power-off-of-%d", nodes)
	}
	all := append(quantiles("detect", detect), quantiles("takeover", takeover)...)
	all = append(all, count("moves", moves), count("unanswered-later", late), count("two-owners", doubled), count("false-deaths", wrong),
		count("moves-on-return", returned), count("vips-least", least), count("vips-most", most))
	per := func(w sim.Writes, when string) []figure {
		share := func(n int, name string) figure { return per(name+when, float64(n)/float64(rounds)) }
		return []figure{share(w.VirtualIPs, "vip-status-writes"), share(w.Lists, "list-writes"),
			share(w.Speakers, "speaker-status-writes"), share(w.Events, "events")}
	}
	all = append(append(all, per(written, "")...), per(back, "-on-return")...)
	r.line(name, append(all, figures...)...)
}

// leave shuts speakers down gracefully, and restarts them.
func (r *run) leave() {
	var took, both, vacant sim.Times
	var held, moves, returned int
	for range r.rounds {
		r.reset()
		s := r.victim()
		held += len(r.Owners.Of(s))
		s.Leave()
		d, _ := r.Until(6*time.Second, func() bool { return !s.Running() })
		took = append(took, d)
		r.Run(time.Second)
		moves += len(r.Owners.Moves)
		both, vacant = append(both, sim.Long(r.Owners.Doubled)...), append(vacant, sim.Long(r.Owners.Vacant)...)
		r.reset()
		s.Start()
		r.Run(4 * time.Second)
		returned += len(r.Owners.Moves)
	}
	r.line("leave", append(append(quantiles("leave", took), quantiles("both-answer", both)...), count("held", held), count("moves", moves),
		count("unanswered", len(vacant)), ms("unanswered-max", vacant.Most()), count("moves-on-return", returned))...)
}

// join adds nodes.
func (r *run) join() {
	for range min(2, r.rounds) {
		r.reset()
		before, cost, written := r.traffic(), r.Speakers[0].Cost, r.Written()
		s := r.Join()
		d := r.longer(15 * time.Second)
		took, ok := r.Until(d, func() bool { return !s.Observes() })
		r.Run(d - took)
		r.line("join", append(append(append([]figure{ms("observes", took), yes("joined", ok), count("moves", len(r.Owners.Moves)), count("two-owners", len(r.Owners.Doubled)),
			count("false-deaths", sim.Wrong(r.Deaths))}, r.writes(written)...), r.since(before, d)...), r.spent(cost, d)...)...)
	}
}

// linkCut cuts nodes off from the LAN only.
func (r *run) linkCut() {
	var detect, takeover, healed sim.Times
	moves := 0
	for range r.rounds {
		r.reset()
		s, at := r.victim(), r.Now()
		s.Group(-1, sim.LAN)
		r.Run(3 * time.Second)
		detect, takeover = append(detect, r.found(at, s)...), append(takeover, sim.Long(r.Owners.Vacant)...)
		r.reset()
		s.Group(0, sim.LAN)
		d, _ := r.Until(3*time.Second, r.Owners.One)
		healed = append(healed, d)
		r.Run(3 * time.Second)
		moves += len(r.Owners.Moves)
	}
	r.line("link-cut", append(append(quantiles("detect", detect), quantiles("takeover", takeover)...), ms("healed-max", healed.Most()), count("moves-when-healed", moves))...)
}

// pause stalls processes for 5 s.
func (r *run) pause() {
	var takeover, both sim.Times
	moves, later := 0, 0
	for range r.rounds {
		r.reset()
		r.victim().Pause(5 * time.Second)
		r.Run(4900 * time.Millisecond)
		takeover, moves = append(takeover, sim.Long(r.Owners.Vacant)...), moves+len(r.Owners.Moves)
		r.reset()
		r.Run(4 * time.Second)
		both, later = append(both, sim.Long(r.Owners.Doubled)...), later+len(r.Owners.Moves)
	}
	r.line("pause", append(quantiles("takeover", takeover), count("moves", moves), count("moves-when-awake", later), count("two-owners", len(both)), ms("two-owners-max", both.Most()))...)
}

// partition splits both networks of the cluster in two, and heals them.
func (r *run) partition() {
	for range max(1, r.rounds/5) {
		r.reset()
		half := len(r.Speakers) / 3
		for _, s := range r.Speakers[:half] {
			s.Group(1, sim.LAN, sim.NodeNetwork)
		}
		r.Run(5 * time.Second)
		vacant, several := r.Owners.Each()
		takeover := sim.Long(r.Owners.Vacant)
		r.reset()
		before, cost := r.traffic(), r.Speakers[0].Cost
		for _, s := range r.Speakers {
			s.Group(0, sim.LAN, sim.NodeNetwork)
		}
		took, ok := r.Until(10*time.Second, r.Owners.One)
		r.Run(5*time.Second - min(took, 5*time.Second))
		least, most := r.Owners.Balance()
		r.line("partition", append(append([]figure{count("two-owners", several), count("unanswered", vacant), ms("unanswered-max", takeover.Most()), ms("healed", took),
			yes("one-owner", ok), count("moves-when-healed", len(r.Owners.Moves)), ms("unanswered-when-healed-max", sim.Long(r.Owners.Vacant).Most()),
			count("vips-least", least), count("vips-most", most)},
			r.since(before, 5*time.Second)...), r.spent(cost, 5*time.Second)...)...)
	}
}

// loss counts false alarms while datagrams are lost.
func (r *run) loss() {
	for _, loss := range r.losses {
		r.lossy(fmt.Sprintf("loss=%g%%", 100*loss), loss, sim.Bursts{})
	}
	if !r.bursts {
		r.SetLoss(0, sim.Bursts{})
		return
	}
	r.lossy("bursts", 0.01, sim.Bursts{Every: 10 * time.Second, Least: 20 * time.Millisecond, Most: 200 * time.Millisecond})
	r.SetLoss(0, sim.Bursts{})
}

func (r *run) lossy(name string, loss float64, bursts sim.Bursts) {
	r.SetLoss(loss, bursts)
	r.Run(time.Second)
	r.reset()
	before, cost, asked, relayed := r.traffic(), r.Speakers[0].Cost, r.Asked(), r.Relayed()
	r.Run(r.watch)
	hours := r.watch.Hours()
	r.line(name, append(append([]figure{per("virtual-s", r.watch.Seconds()), per("false-deaths/h", float64(sim.Wrong(r.Deaths))/hours),
		per("moves/h", float64(len(r.Owners.Moves))/hours), per("asked/s", float64(r.Asked()-asked)/r.watch.Seconds()),
		per("kept-by-relay/h", float64(r.Relayed()-relayed)/hours)}, r.since(before, r.watch)...), r.spent(cost, r.watch)...)...)
}

// asymmetric gives a node an asymmetric link: it sends but receives nothing, as with a wrong packet filter.
func (r *run) asymmetric() {
	r.reset()
	s := r.victim()
	before, cost := r.traffic(), r.Speakers[0].Cost
	s.SetAsymmetric(true)
	r.Run(5 * time.Second)
	_, several := r.Owners.Each()
	figures := append([]figure{count("claims", len(r.Owners.Moves)), count("two-owners", several), count("false-deaths", sim.Wrong(r.Deaths))}, r.since(before, 5*time.Second)...)
	figures = append(figures, r.spent(cost, 5*time.Second)...)
	r.reset()
	s.SetAsymmetric(false)
	took, ok := r.Until(10*time.Second, r.Owners.One)
	r.line("asymmetric", append(figures, ms("healed", took), yes("one-owner", ok))...)
}
