package virtualip

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/loop"
	"github.com/ironlb/ironlb/ccm/placement"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// mover moves addresses deliberately: one at a time, each after the one before has arrived.
type mover struct {
	log    *slog.Logger
	events record.EventRecorder

	now   *moving // nil: nothing is being moved
	pause time.Time
	// since is when each fit node was first observed as fit, without interruption. It starts over with a restart.
	// missing is since when the speaker of a ready node is not fit.
	since, missing map[string]time.Time
	reached        map[string]map[string]bool
	// refused is until when a unit is not moved to a node.
	refused map[string]map[string]time.Time
	// requests are the values of the requests for each unit.
	requests map[string]string
	// requested are the units to be moved by request; done: no further move improves them.
	requested map[string]bool
	done      bool
	// nextFit is when the next node may be moved to by a pool's policy.
	nextFit time.Time
}

// moving is a move that has begun.
type moving struct {
	placement.Move
	began time.Time
}

// moveTargets are the possible targets of moves, by the latest SpeakerStatuses. Kubernetes may report a
// node as ready whose speaker is absent.
type moveTargets struct {
	// fit are the nodes whose speakers are present and forward.
	fit map[string]bool
	// reached are the nodes that a node's speaker receives, and that it can therefore hand over to. A node without a
	// report of its speaker, or with one that does not list all, has no entry.
	reached map[string]map[string]bool
}

const (
	// moveWithin is the time limit for a node to take over an address that is moved to it deliberately.
	moveWithin = 30 * time.Second
	// movePause is the pause between two moves.
	movePause = time.Second
	// refusedFor is how long nothing is moved to a node that did not take over.
	refusedFor = 10 * time.Minute
)

func newMover(log *slog.Logger, events record.EventRecorder) *mover {
	return &mover{
		log: log, events: events, since: map[string]time.Time{}, missing: map[string]time.Time{},
		refused: map[string]map[string]time.Time{}, requests: map[string]string{},
	}
}

// observe records which of the eligible nodes are fit to be moved to. A node that did not take over is retried once it
// has been unfit: that may have been the cause.
func (m *mover) observe(now time.Time, nodes []placement.Node, t moveTargets) {
	fit, missing := make(map[string]time.Time, len(nodes)), map[string]time.Time{}
	for _, n := range nodes {
		switch {
		case !n.Ready || n.Cordoned:
		case t.fit[n.Name]:
			fit[n.Name] = sinceThen(m.since, n.Name, now)
		default:
			missing[n.Name] = sinceThen(m.missing, n.Name, now)
		}
	}
	m.since, m.missing, m.reached = fit, missing, t.reached
	for _, until := range m.refused {
		maps.DeleteFunc(until, func(node string, at time.Time) bool {
			_, still := fit[node]
			return !now.Before(at) || !still
		})
	}
	maps.DeleteFunc(m.refused, func(_ string, until map[string]time.Time) bool { return len(until) == 0 })
}

// sinceThen returns the time of the node, now if it has none.
func sinceThen(since map[string]time.Time, node string, now time.Time) time.Time {
	if at, ok := since[node]; ok {
		return at
	}
	return now
}

// permit sets the permitted target nodes of each unit. A new request is carried out even if a node
// did not take over before.
func (m *mover) permit(now time.Time, units []placement.Unit, want []wantedVIP, of policies, have map[string]*v1alpha1.VirtualIP) {
	m.requested, m.done, m.nextFit = map[string]bool{}, false, time.Time{}
	targets, before := map[time.Duration]map[string]bool{}, m.requests
	m.requests = map[string]string{}
	for i := range units {
		u := &units[i]
		u.Reached = m.reached[u.Owner]
		if value := of.request(have[u.Name], want[i].pools); value != "" {
			u.Movable = true
			m.requested[u.Name], m.requests[u.Name] = true, value
			if before[u.Name] != value {
				delete(m.refused, u.Name)
			}
		} else if delay, gradual := of.gradual(want[i].pools); gradual {
			if targets[delay] == nil {
				targets[delay] = m.fitFor(now, delay)
			}
			u.Movable, u.Targets = true, targets[delay]
		}
		if until := m.refused[u.Name]; len(until) > 0 {
			u.Refused = map[string]bool{}
			for n := range until {
				u.Refused[n] = true
			}
		}
	}
}

// fitFor returns the nodes that have been fit for the delay.
func (m *mover) fitFor(now time.Time, delay time.Duration) map[string]bool {
	out := map[string]bool{}
	for n, since := range m.since {
		at := since.Add(delay)
		if !now.Before(at) {
			out[n] = true
		} else if m.nextFit.IsZero() || at.Before(m.nextFit) {
			m.nextFit = at
		}
	}
	return out
}

// follow tracks the current move. It ends when the unit has arrived, when the move is no longer needed or possible, or
// when it takes too long. Otherwise the unit's list must start with the target node.
func (m *mover) follow(now time.Time, units []placement.Unit, have map[string]*v1alpha1.VirtualIP) {
	if m.now == nil {
		return
	}
	move := m.now
	i := slices.IndexFunc(units, func(u placement.Unit) bool { return u.Name == move.Unit })
	vip := have[move.Unit]
	if i < 0 || vip == nil {
		m.now = nil
		return
	}
	_, fit := m.since[move.To]
	if reached := units[i].Reached; reached != nil {
		fit = fit && reached[move.To]
	}
	switch owner := units[i].Owner; {
	case owner == move.To:
		m.now, m.pause = nil, now.Add(movePause)
		m.log.Info("address moved", "vip", move.Unit, "from", move.From, "to", move.To, "reason", move.Reason, "took", now.Sub(move.began).Round(time.Millisecond))
		m.events.Eventf(vip, v1.EventTypeNormal, string(move.Reason), "moved from node %s to node %s", move.From, move.To)
	case owner != move.From || !fit || !slices.Contains(units[i].Eligible, move.To):
		m.now = nil // the speakers, or a user, decided otherwise
		m.log.Info("address move ended", "vip", move.Unit, "from", move.From, "to", move.To, "owner", owner, "fit", fit)
	case !now.Before(move.began.Add(moveWithin)):
		m.now = nil
		if m.refused[move.Unit] == nil {
			m.refused[move.Unit] = map[string]time.Time{}
		}
		m.refused[move.Unit][move.To] = now.Add(refusedFor)
		if units[i].Refused == nil {
			units[i].Refused = map[string]bool{}
		}
		units[i].Refused[move.To] = true
		m.log.Warn("address not moved", "vip", move.Unit, "from", move.From, "to", move.To, "reason", move.Reason, "waited", moveWithin)
		m.events.Eventf(vip, v1.EventTypeWarning, "NotMoved",
			"node %s did not take over from node %s within %s; the owner is unchanged: see kubectl ironlb status, and the log of the speaker on %s", move.To, move.From, moveWithin, move.To)
	default:
		units[i].Lead, units[i].Why = move.To, move.Reason
	}
}

// begin starts the next move, if it improves the placement, and reports whether it did.
func (m *mover) begin(now time.Time, units []placement.Unit, lists []placement.List, nodes []placement.Node) bool {
	if m.now != nil || now.Before(m.pause) {
		return false
	}
	able := slices.Clone(nodes)
	for i := range able {
		_, able[i].Ready = m.since[able[i].Name]
	}
	move, ok := placement.NextMove(units, lists, able)
	if !ok {
		// A list is first adapted to its owner, before its unit is moved.
		follows := func(l placement.List) bool { return l.Reason == placement.OwnerLeads }
		m.done = m.complete(now) && !slices.ContainsFunc(lists, follows)
		return false
	}
	i := slices.IndexFunc(units, func(u placement.Unit) bool { return u.Name == move.Unit })
	units[i].Lead, units[i].Why = move.To, move.Reason
	m.now = &moving{Move: move, began: now}
	return true
}

// complete reports whether no node is about to become fit: it waits for the speaker of a node that has just joined or
// returned.
func (m *mover) complete(now time.Time) bool {
	for _, since := range m.missing {
		if now.Before(since.Add(watch.AbsentFor)) {
			return false
		}
	}
	return true
}

// nextEvaluation returns the time of the next evaluation, zero for never.
func (m *mover) nextEvaluation(now time.Time) time.Time {
	var at time.Time
	earlier := func(t time.Time) {
		if t.After(now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if m.now != nil {
		earlier(m.now.began.Add(moveWithin))
	}
	earlier(m.pause)
	earlier(m.nextFit)
	for _, since := range m.missing {
		earlier(since.Add(watch.AbsentFor))
	}
	for _, until := range m.refused {
		for _, t := range until {
			earlier(t)
		}
	}
	return at
}

// newMoveTargets evaluates the reports. A speaker's report does not count if its node is not in live.
func newMoveTargets(speakers []v1alpha1.SpeakerStatus, live map[string]bool) moveTargets {
	out := moveTargets{fit: map[string]bool{}, reached: map[string]map[string]bool{}}
	absent := v1alpha1.Absent(speakers, func(node string) bool { return live[node] })
	for i := range speakers {
		s := &speakers[i]
		out.fit[s.Name] = absent[s.Name] == "" && s.Status.DataPlane.Healthy
	}
	for i := range speakers {
		s := &speakers[i]
		if absent[s.Name] != "" || !live[s.Name] {
			continue
		}
		from := make(map[string]bool, len(s.Status.Members))
		for _, m := range s.Status.Members {
			switch m.State {
			case v1alpha1.MemberAlive:
				from[m.Node] = true
			case v1alpha1.MemberObserver, v1alpha1.MemberLeaving: // reported by itself
				out.fit[m.Node] = false
			}
		}
		if !s.Partial(len(speakers)) {
			out.reached[s.Name] = from
		}
	}
	return out
}

// moveTargetsChanged reports whether a SpeakerStatus differs in the fields that newMoveTargets and newAttached use.
func moveTargetsChanged(before, after *v1alpha1.SpeakerStatus) bool {
	b, a := &before.Status, &after.Status
	return b.DataPlane.Healthy != a.DataPlane.Healthy || (b.Stopped == nil) != (a.Stopped == nil) ||
		!slices.Equal(b.Members, a.Members) || !sameInterfaces(b.Interfaces, a.Interfaces)
}

// SpeakerHandler triggers a pass when a report changed in the fields relevant to placement.
func (p *Placer) SpeakerHandler() cache.ResourceEventHandler {
	changed := func(any) {
		p.reports.Store(true)
		loop.Trigger(p.Trigger)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: changed, DeleteFunc: changed,
		UpdateFunc: func(before, after any) {
			if moveTargetsChanged(before.(*v1alpha1.SpeakerStatus), after.(*v1alpha1.SpeakerStatus)) {
				changed(after)
			}
		},
	}
}

// readMoveTargets updates p.targets. The cost is the square of the number of nodes, so it runs only on change.
func (p *Placer) readMoveTargets(ctx context.Context, nodes []*v1.Node) error {
	live := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		live[n.Name] = !watch.StatusUnknown(n)
	}
	if !p.reports.Swap(false) && maps.Equal(live, p.live) {
		return nil
	}
	var list v1alpha1.SpeakerStatusList
	if err := p.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		p.reports.Store(true)
		return fmt.Errorf("listing SpeakerStatuses from the cache: %w", err)
	}
	p.live, p.targets, p.attached = live, newMoveTargets(list.Items, live), newAttached(list.Items)
	return nil
}
