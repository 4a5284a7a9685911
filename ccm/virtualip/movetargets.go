package virtualip

import (
	"context"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/loop"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// moveTargets are the possible targets of moves, by the latest SpeakerStatuses. Kubernetes may report a
// node as ready whose speaker is absent.
type moveTargets struct {
	// fit are the nodes whose speakers are present and forward.
	fit map[string]bool
	// reached are the nodes that a node's speaker receives, and that it can therefore hand over to. A node without a
	// report of its speaker, or with one that does not list all, has no entry.
	reached map[string]map[string]bool
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
