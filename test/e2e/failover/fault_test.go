package failover

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/steady"
	"github.com/ironlb/ironlb/test/rare"
)

// fault is a fault of a node, and its repair.
type fault struct {
	name     string
	do, heal func(context.Context, *lab.Node) error
	// rare marks a fault whose effect other faults or tests show as well.
	rare bool
	// polite is set if the node hands over first, so that clients are not affected.
	polite bool
	// within is the longest time without an answer, for clients and ARP alike; 0 only logs it.
	within time.Duration
	// parted is set if the node runs without receiving the others, so that two may answer until they reconnect.
	parted bool
}

// crashMost is the longest time without an owner after a speaker crashed.
const crashMost = 2 * time.Second

func faults() []fault {
	speaker := func(ctx context.Context, n *lab.Node) error { return n.StartSpeaker(ctx, "--config", speakerConfig()) }
	return []fault{
		{name: "power off", do: func(ctx context.Context, n *lab.Node) error { return n.PowerOff(ctx) }, heal: powerOn},
		{name: "LAN link cut", do: func(ctx context.Context, n *lab.Node) error { return n.CutLAN(ctx) }, heal: func(ctx context.Context, n *lab.Node) error { return n.RestoreLAN(ctx) }, parted: true},
		{name: "LAN carrier lost", rare: true, do: func(ctx context.Context, n *lab.Node) error { return n.LinkDown(ctx) }, heal: func(ctx context.Context, n *lab.Node) error { return n.LinkUp(ctx) }},
		{name: "SIGKILL", do: func(_ context.Context, n *lab.Node) error { return n.KillSpeaker() }, heal: speaker, within: crashMost},
		{name: "cordon", rare: true, do: func(ctx context.Context, n *lab.Node) error { return n.Cordon(ctx) }, heal: func(ctx context.Context, n *lab.Node) error { return n.Uncordon(ctx) }, polite: true},
	}
}

func powerOn(ctx context.Context, n *lab.Node) error {
	if err := n.PowerOn(ctx); err != nil {
		return err
	}
	if err := n.StartSpeaker(ctx, "--config", speakerConfig()); err != nil {
		return err
	}
	return n.WaitReady(ctx, time.Minute, corev1.ConditionTrue)
}

// TestFaults: after any fault of a node its VirtualIPs, and no others, move to the other nodes. No request has two answers,
// and nothing moves back after the repair. test/sim shows that they are spread evenly: here a node that is late to claim
// one loses it to the next.
func TestFaults(t *testing.T) {
	for _, f := range faults() {
		t.Run(f.name, func(t *testing.T) {
			if f.rare {
				rare.Test(t)
			}
			s, before := serving(t, 6)
			victim := before[s.vips[0].service]
			s.victims = []*lab.Node{victim}
			stop := s.client(s.vips[0])

			began := time.Now()
			if err := f.do(t.Context(), victim); err != nil {
				t.Fatal(err)
			}
			healed := false
			heal := func() {
				if healed {
					return
				}
				healed = true
				if err := f.heal(context.WithoutCancel(t.Context()), victim); err != nil {
					t.Fatal(err)
				}
			}
			t.Cleanup(heal)
			after := s.leaves(victim)
			for _, r := range stop(began) {
				t.Log(r)
				if f.polite && r.Failed > 0 && len(s.starved()) == 0 {
					t.Errorf("%d connections failed although the node handed over", r.Failed)
				}
				// What the client itself was late may have been added to the outage.
				if f.within > 0 && r.Outage-r.Late > f.within && len(s.starved()) == 0 {
					t.Errorf("an outage of more than %v: %s, with the client up to %v late", f.within, r, r.Late)
				}
			}
			t.Logf("before: %v; after: %v", before, after)
			if f.polite {
				s.handedOver(began, before, after, victim)
			} else {
				s.stayed(began, before, after, victim)
			}
			if f.within > 0 {
				s.answeredWithin(f.within, began, before, victim)
			}
			after = s.yielded(victim)

			since := time.Now()
			heal()
			if now := s.settledFor(watch, "after the return"); f.parted {
				s.check(since, after, now, reunited)
			} else {
				s.stayed(since, after, now)
			}
			s.reported(after)
		})
	}
}

// answeredWithin checks that no address of a node was without an answer for longer than most.
func (s *scene) answeredWithin(most time.Duration, since time.Time, before owners, n *lab.Node) {
	s.t.Helper()
	for _, v := range s.vips {
		for _, a := range v.addrs {
			if before[v.service] != n {
				continue
			}
			silent := time.Duration(s.seen(a, since, time.Now()).Unanswered) * steady.AskEvery
			s.t.Logf("%v had no answer for %v", a, silent)
			if silent > most && len(s.starved()) == 0 {
				s.t.Errorf("%v had no answer for %v", a, silent)
			}
		}
	}
}

// leaves waits until every VirtualIP has one owner other than that node.
func (s *scene) leaves(n *lab.Node) (now owners) {
	s.t.Helper()
	cluster.Await(s.t, patience, "nothing is on "+n.Name, func(context.Context) error {
		now = owners{}
		for _, v := range s.vips {
			o, err := s.owner(v)
			if err != nil {
				return err
			}
			if o == n {
				return fmt.Errorf("%s is on %s", v.service, n.Name)
			}
			now[v.service] = o
		}
		return nil
	})
	return now
}

// yielded waits until the status of each VirtualIP names its owner, another node than that, and returns the owners: of two
// that claim one at once after a fault, one yields.
func (s *scene) yielded(victim *lab.Node) owners {
	s.t.Helper()
	now := owners{}
	for _, v := range s.vips {
		cluster.Await(s.t, patience, "the status of "+v.service+" names its owner", func(ctx context.Context) error {
			n, err := s.owner(v)
			if err != nil {
				return err
			}
			if n == victim {
				return fmt.Errorf("its owner is %s", n.Name)
			}
			now[v.service] = n
			return statusNames(ctx, v, n)
		})
	}
	return now
}

// others returns the candidate nodes except one.
func others(n *lab.Node) (out []*lab.Node) {
	for _, o := range cluster.Nodes[:candidates] {
		if o != n {
			out = append(out, o)
		}
	}
	return out
}
