package ccm

import (
	"context"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// takers are the nodes to which addresses can be moved, by what the speakers wrote last. Kubernetes thinks a node
// ready whose speaker is absent.
type takers struct {
	// fit are the nodes whose speakers are there, and forward.
	fit map[string]bool
	// reached are the nodes that the speaker of a node receives, and so can hand over to; nothing for a node whose
	// speaker wrote nothing.
	reached map[string]map[string]bool
}

// newTakers reads the reports. What is written by a speaker whose node is not in live does not count.
func newTakers(speakers []v1alpha1.SpeakerStatus, live map[string]bool) takers {
	out := takers{fit: map[string]bool{}, reached: map[string]map[string]bool{}}
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
			case v1alpha1.MemberObserver, v1alpha1.MemberLeaving: // by its own account
				out.fit[m.Node] = false
			}
		}
		out.reached[s.Name] = from
	}
	return out
}

// takersMatter reports whether a SpeakerStatus differs in what newTakers reads.
func takersMatter(before, after *v1alpha1.SpeakerStatus) bool {
	b, a := &before.Status, &after.Status
	return b.DataPlane.Healthy != a.DataPlane.Healthy || (b.Stopped == nil) != (a.Stopped == nil) ||
		!slices.Equal(b.Members, a.Members)
}

// speakerHandler triggers a pass when a report changed in what placement reads.
func (p *placer) speakerHandler() cache.ResourceEventHandler {
	changed := func(any) {
		p.reports.Store(true)
		kicked(p.kick)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: changed, DeleteFunc: changed,
		UpdateFunc: func(before, after any) {
			if takersMatter(before.(*v1alpha1.SpeakerStatus), after.(*v1alpha1.SpeakerStatus)) {
				changed(after)
			}
		},
	}
}

// readTakers brings p.takers up to date. Reading them costs the square of the number of nodes, so it is done on
// change only.
func (p *placer) readTakers(ctx context.Context, nodes []*v1.Node) error {
	live := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		live[n.Name] = !unheard(n)
	}
	if !p.reports.Swap(false) && maps.Equal(live, p.live) {
		return nil
	}
	var list v1alpha1.SpeakerStatusList
	if err := p.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		p.reports.Store(true)
		return fmt.Errorf("listing SpeakerStatuses from the cache: %w", err)
	}
	p.live, p.takers = live, newTakers(list.Items, live)
	return nil
}
