package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/connections"
)

// Scenario is a fault.
type Scenario struct {
	Name string
	// Kept is what forwarding "direct" keeps: at most this share of the connections with a Pod elsewhere may break.
	Kept float64
	// Routed scenarios are those of an address that is announced to a router; Both are of both.
	Routed, Both bool
	// prepare is before the connections are opened. inject returns when the effect is complete, and records the Pods
	// whose connections may break. heal restores the initial state.
	prepare, inject, heal func(context.Context, *round) error
}

// round is one run of a scenario.
type round struct {
	*Bench
	owner *lab.Node // after prepare
	other *lab.Node // another one with Pods
	node  *lab.Node // that the scenario has changed
	fault connections.Fault
}

// All scenarios, in the order of the table.
var All = []Scenario{
	{Name: Nothing, Both: true, inject: func(context.Context, *round) error { return nil }},
	{
		Name: PlannedMove,
		inject: func(ctx context.Context, r *round) error {
			if err := r.owner.Cordon(ctx); err != nil {
				return err
			}
			return r.moved(ctx, r.owner)
		},
		heal: func(ctx context.Context, r *round) error { return r.owner.Uncordon(ctx) },
	},
	{
		Name: "speaker of the owner stops",
		inject: func(ctx context.Context, r *round) error {
			if err := r.owner.StopSpeaker(); err != nil {
				return err
			}
			return r.moved(ctx, r.owner)
		},
		heal: func(ctx context.Context, r *round) error { return r.startNode(ctx, r.owner) },
	},
	{Name: OwnerOff, inject: ownerOff, heal: nodeBack},
	{
		Name:    "owner back",
		prepare: ownerOff,
		inject: func(ctx context.Context, r *round) error {
			if err := nodeBack(ctx, r); err != nil {
				return err
			}
			return r.settle(ctx)
		},
	},
	{
		Name: "node joins", Both: true,
		inject: func(ctx context.Context, r *round) error {
			r.node = r.Cluster.Node(hosts) // the router has no session with it
			if err := r.node.Join(ctx); err != nil {
				return err
			}
			if err := r.startNode(ctx, r.node); err != nil {
				return err
			}
			return r.Bench.ready(ctx, r.node)
		},
		heal: func(ctx context.Context, r *round) error {
			delete(r.up, r.node)
			return r.node.Leave(ctx)
		},
	},
	{
		Name: ScaleOut, Both: true,
		inject: func(ctx context.Context, r *round) error {
			if err := r.addPod(ctx, seventh, r.other); err != nil {
				return err
			}
			return r.endpoints(ctx, pods+1)
		},
		heal: func(ctx context.Context, r *round) error { return r.removePod(ctx, seventh) },
	},
	{
		Name: ScaleIn, Both: true,
		prepare: func(ctx context.Context, r *round) error { return r.addPod(ctx, seventh, r.other) },
		inject:  scaleIn,
	},
	{
		Name: "6 to 7 endpoints and owner off", Kept: 0.02,
		inject: func(ctx context.Context, r *round) error {
			if err := r.addPod(ctx, seventh, r.other); err != nil {
				return err
			}
			if err := r.endpoints(ctx, pods+1); err != nil {
				return err
			}
			return ownerOff(ctx, r)
		},
		heal: func(ctx context.Context, r *round) error {
			return errors.Join(nodeBack(ctx, r), r.removePod(ctx, seventh))
		},
	},
	{
		Name: "roll-out of all speakers", Both: true,
		inject: func(ctx context.Context, r *round) error {
			for _, n := range r.Cluster.Nodes[:hosts] {
				if err := n.ReplaceSpeaker(); err != nil {
					return err
				}
				if err := r.startNode(ctx, n); err != nil {
					return err
				}
				if err := r.Bench.ready(ctx, n); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		Name: "next hop lost", Routed: true,
		inject: func(ctx context.Context, r *round) error { return r.dropHop(ctx, r.Cluster.Node(0)) },
		heal:   func(ctx context.Context, r *round) error { return r.allHops(ctx) },
	},
	{
		Name: "next hop back", Routed: true,
		prepare: func(ctx context.Context, r *round) error { return r.dropHop(ctx, r.Cluster.Node(0)) },
		inject:  func(ctx context.Context, r *round) error { return r.allHops(ctx) },
	},
}

// Names of scenarios that tests refer to.
const (
	Nothing     = "nothing"
	PlannedMove = "planned move"
	OwnerOff    = "owner off"
	ScaleOut    = "6 to 7 endpoints"
	ScaleIn     = "7 to 6 endpoints"
)

// Of returns the scenarios of an address that is routed, or not.
func Of(routed bool) (all []Scenario) {
	for _, s := range All {
		if s.Both || s.Routed == routed {
			all = append(all, s)
		}
	}
	return all
}

// Named returns a scenario.
func Named(name string) (Scenario, error) {
	if i := slices.IndexFunc(All, func(s Scenario) bool { return s.Name == name }); i >= 0 {
		return All[i], nil
	}
	return Scenario{}, fmt.Errorf("there is no scenario %q", name)
}

// ownerOff cuts the power of the owner, and waits until another node answers and the Pods of the owner are no
// endpoints.
func ownerOff(ctx context.Context, r *round) error {
	r.node = r.owner
	gone := map[string]time.Time{}
	since := time.Now().Add(-2 * r.cfg.Every) // what fails now may have had its last answer an interval before
	for name, n := range r.on {
		if n == r.node {
			gone[name] = since
		}
	}
	r.fault.Gone = gone
	if err := r.powerOff(ctx, r.node); err != nil {
		return err
	}
	if err := r.moved(ctx, r.node); err != nil {
		return err
	}
	r.fault.Done = time.Now()
	return r.endpoints(ctx, len(r.on)-len(gone))
}

func nodeBack(ctx context.Context, r *round) error { return r.powerOn(ctx, r.node) }

// scaleIn deletes a Pod, and waits until it is gone. It serves for its grace period.
func scaleIn(ctx context.Context, r *round) error {
	all := r.Cluster.Kube.CoreV1().Pods(metav1.NamespaceDefault)
	if err := all.Delete(ctx, seventh, metav1.DeleteOptions{}); err != nil {
		return err
	}
	pod, err := all.Get(ctx, seventh, metav1.GetOptions{})
	if err != nil {
		return err
	}
	r.fault.Gone = map[string]time.Time{seventh: pod.DeletionTimestamp.Time}
	return r.removePod(ctx, seventh)
}

// settle waits for the settled state and records who is who.
func (r *round) settle(ctx context.Context) (err error) {
	if r.owner, err = r.settled(ctx); err != nil {
		return err
	}
	for _, n := range r.Cluster.Nodes[:hosts] {
		if n != r.owner && r.up[n] {
			r.other = n
		}
	}
	return nil
}

// Run runs a scenario once.
func (b *Bench) Run(ctx context.Context, s Scenario) (row connections.Row, err error) {
	r := &round{Bench: b}
	row = connections.Row{Fault: s.Name, Mode: b.cfg.Mode}
	if err := r.settle(ctx); err != nil {
		return row, err
	}
	if s.prepare != nil {
		if err := s.prepare(ctx, r); err != nil {
			return row, err
		}
		if err := r.settle(ctx); err != nil {
			return row, err
		}
		r.fault = connections.Fault{}
	}
	k, err := b.connect(ctx)
	if err != nil {
		return row, err
	}
	stopped := false
	defer func() {
		if !stopped {
			err = errors.Join(err, k.Kill())
		}
	}()
	if err := wait(ctx, 2*b.cfg.Every); err != nil {
		return row, err
	}
	disturbed := r.owner
	if disturbed == nil {
		disturbed = b.Cluster.Node(0)
	}
	r.fault.Began = time.Now() // a disturbance breaks connections before it is complete
	undisturbed := b.disturb(ctx, disturbed)
	if err := s.inject(ctx, r); err != nil {
		return row, errors.Join(err, undisturbed())
	}
	if r.fault.Done.IsZero() {
		r.fault.Done = time.Now()
	}
	if err := errors.Join(wait(ctx, b.cfg.Watch), undisturbed()); err != nil {
		return row, err
	}
	stopped = true
	lives, done, err := k.Stop()
	if err != nil {
		return row, err
	}
	b.next = done.Port
	if !b.cfg.Keep {
		if err := k.Drop(); err != nil {
			return row, err
		}
	}
	if b.watcher != nil {
		row.Moves = b.watcher.Moves(b.targets[0].Addr(), r.fault.Began, time.Now())
	}
	row.Answered = b.answered(lives)
	for _, l := range lives {
		if l.Client != "" {
			row.Masked.Add(l.Client != b.client().Addr.String() && l.Client != b.client().Addr6.String())
		}
	}
	fault, err := b.inClientTime(ctx, r.fault)
	if err != nil {
		return row, err
	}
	row.Count, row.Done = connections.CountLives(lives, fault), done
	if row.Before > 0 {
		err = fmt.Errorf("%d connections broke before the fault: %s", row.Before, row.Count)
	}
	if s.heal != nil {
		err = errors.Join(err, s.heal(ctx, r))
	}
	return row, errors.Join(err, b.Cluster.Err())
}

// answered names the stations of the lives, and counts those whose answers came from another one than their Pod's node.
// Behind a router there is only one station.
func (b *Bench) answered(lives []connections.Life) (s connections.Share) {
	for i := range lives {
		w := &lives[i].Wire
		w.ResetBy = b.station(w.ResetBy)
		for j := range w.From {
			w.From[j] = b.station(w.From[j])
		}
		if n := b.on[lives[i].Pod]; n != nil && len(w.From) > 0 && b.routed == nil {
			s.Add(slices.ContainsFunc(w.From, func(name string) bool { return name != n.Name }))
		}
	}
	return s
}
