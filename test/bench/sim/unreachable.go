package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/test/sim"
)

// busy is every fifth node, with delayed heartbeats, prober and kernel.
var busy = sim.Busy{
	Share: 0.2, Heartbeat: 10 * time.Millisecond, Prober: 50 * time.Millisecond, Kernel: 5 * time.Millisecond,
	Paused:  sim.Bursts{Every: 30 * time.Second, Least: 50 * time.Millisecond, Most: 2 * time.Second},
	Blocked: sim.Bursts{Every: 10 * time.Second, Least: 50 * time.Millisecond, Most: time.Second},
}

// long is a cluster with 5 % loss and busy nodes, with faults for about an hour.
type long struct {
	*run
	random *rand.Rand
	// decided is the time from a death until other nodes found it unreachable, decidedBusy that of busy nodes.
	decided, decidedBusy sim.Times
	deaths, undecided    int
	crashes, pauses      int
	suspended, flapping  int
	upgrades             int
	cutOff, unwitnessed  int // samples, one for each node and pair in each progress line
	cpuAtStart           float64
}

// unreachable counts nodes wrongly considered unreachable, and measures how soon dead ones are found.
func (o options) unreachable(p member.Profile) {
	const vips = 10
	o.vips = vips
	r := &run{options: o, profile: p}
	r.Cluster = sim.New(sim.Config{Seed: o.seed, Nodes: o.nodes, VIPs: vips, Profile: p, Loss: 0.05, Busy: busy})
	l := &long{run: r, random: rand.New(rand.NewPCG(o.seed, 3)), cpuAtStart: cpu()}
	r.Run(10 * time.Second) // learns the witnesses
	begin := r.Now()
	l.every(time.Minute, l.powerOff)
	l.every(time.Minute, l.crash)
	l.every(time.Minute, l.pause)
	l.every(time.Minute, l.suspend)
	l.every(5*time.Minute, l.flap)
	l.every(15*time.Minute, l.upgrade)
	const step = 30 * time.Second
	for left := o.long; left > 0; left -= step {
		r.Run(min(left, step))
		l.sample()
		fmt.Fprintf(os.Stderr, "%v of %v, %.0f s of CPU: %s\n", r.Now()-begin, o.long, cpu()-l.cpuAtStart, text(l.figures()))
	}
	r.line("unreachable", append([]figure{per("virtual-s", o.long.Seconds())}, l.figures()...)...)
}

// cpu returns the CPU time of this process in seconds.
func cpu() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// every calls f after random intervals of this mean.
func (l *long) every(mean time.Duration, f func()) {
	l.After(time.Duration(l.random.ExpFloat64()*float64(mean)), func() {
		f()
		l.every(mean, f)
	})
}

func (l *long) between(least, most time.Duration) time.Duration {
	return least + time.Duration(l.random.Int64N(int64(most-least)))
}

// some returns a node without a current fault, nil if there is none.
func (l *long) some() *sim.Speaker {
	for range 10 {
		if s := l.Speakers[l.random.IntN(len(l.Speakers))]; s.Healthy() {
			return s
		}
	}
	return nil
}

// powerOff cuts a node's power, and records the nodes that have detected it before its return.
func (l *long) powerOff() {
	dead := l.some()
	if dead == nil {
		return
	}
	at := l.Now()
	l.deaths++
	dead.PowerOff()
	l.After(l.between(10*time.Second, time.Minute), func() {
		for _, s := range l.Speakers {
			if s == dead || !s.Steady(at-5*time.Second) {
				continue
			}
			found, ok := l.found(s, dead, at)
			switch {
			case !ok:
				l.undecided++
				fmt.Fprintf(os.Stderr, "%v: %s has not found %s dead since %v: %+v\n", l.Now(), s.Name, dead.Name, at, s.State())
			case found < 0: // it was already considered unreachable
			case s.Busy():
				l.decidedBusy = append(l.decidedBusy, found)
			default:
				l.decided = append(l.decided, found)
			}
		}
		dead.Start()
	})
}

// found returns how long after the death a node found another one unreachable; less than 0 if it had before.
func (l *long) found(s, dead *sim.Speaker, at time.Duration) (time.Duration, bool) {
	for i := len(l.Verdicts) - 1; i >= 0; i-- {
		v := l.Verdicts[i]
		if v.Node != s.Name || v.Of != dead.Name {
			continue
		}
		if v.At >= at || v.Until == 0 || v.Until >= at {
			return v.At - at, true
		}
		break
	}
	return 0, false
}

func (l *long) crash() {
	if s := l.some(); s != nil {
		l.crashes++
		s.Crash()
		l.After(l.between(200*time.Millisecond, 10*time.Second), s.Start)
	}
}

func (l *long) pause() {
	if s := l.some(); s != nil {
		l.pauses++
		s.Pause(l.between(100*time.Millisecond, 20*time.Second))
	}
}

// suspend suspends a virtual machine, whose kernel does not answer either.
func (l *long) suspend() {
	if s := l.some(); s != nil {
		l.suspended++
		s.Suspend(l.between(50*time.Millisecond, 5*time.Second), 250)
	}
}

// flap takes a node's switch port down and up eight times.
func (l *long) flap() {
	s := l.some()
	if s == nil {
		return
	}
	l.flapping++
	for i := range 16 {
		group := -1
		if i%2 == 1 {
			group = 0
		}
		l.After(time.Duration(i)*time.Second, func() { s.Group(group, sim.LAN, sim.NodeNetwork) })
	}
}

// upgrade replaces all speakers, one after the other.
func (l *long) upgrade() {
	for i, s := range l.Speakers {
		l.After(time.Duration(i)*500*time.Millisecond, func() {
			if s.Healthy() {
				l.upgrades++
				s.Crash()
				l.After(300*time.Millisecond, s.Start)
			}
		})
	}
}

// sample counts the nodes that consider themselves cut off, and the targets without a witness.
func (l *long) sample() {
	for _, s := range l.Speakers {
		if s.Running() {
			if s.State().CutOff {
				l.cutOff++
			}
			l.unwitnessed += len(s.State().Unwitnessed)
		}
	}
}

func (l *long) figures() []figure {
	wrong := sim.Mistaken(l.Verdicts)
	var seconds time.Duration
	for _, v := range wrong {
		seconds += l.Long(v)
	}
	var back sim.Times
	asked := 0
	for _, v := range l.Verdicts {
		if v.Back > 0 {
			back = append(back, v.Back)
		}
	}
	for _, s := range l.Speakers {
		asked += s.Asked
	}
	out := []figure{count("wrong", len(wrong)), per("wrong-node-s", seconds.Seconds()), count("verdicts", len(l.Verdicts)),
		count("deaths", l.deaths), count("undecided", l.undecided)}
	out = append(out, quantiles("decided", l.decided)...)
	out = append(out, quantiles("decided-busy", l.decidedBusy)...)
	out = append(out, quantiles("back", back)...)
	return append(out, count("cut-off", l.cutOff), count("unwitnessed", l.unwitnessed),
		count("crashes", l.crashes), count("pauses", l.pauses), count("suspended", l.suspended),
		count("flapping", l.flapping), count("upgrades", l.upgrades),
		per("asked/s", float64(asked)/l.Now().Seconds()/float64(len(l.Speakers))))
}
