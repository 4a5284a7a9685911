package ccm

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/ccm/rig"
	"github.com/ironlb/ironlb/test/eventually"
)

// speakers simulates the speakers of all nodes: the owner of a VirtualIP keeps it until a newer list puts another node
// first.
type speakers struct {
	rig *rig.Rig

	mu     sync.Mutex
	mute   bool              // they neither read lists nor write statuses
	holds  map[string]string // by VirtualIP
	by     map[string]int64  // the generation of the list in use
	moves  int
	atOnce int // the maximum number of simultaneous moves
}

func (s *speakers) list(ctx context.Context) (map[string]*v1alpha1.VirtualIP, error) {
	data, err := s.rig.Kube.Discovery().RESTClient().Get().AbsPath(api, "virtualips").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var list v1alpha1.VirtualIPList
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, err
	}
	out := map[string]*v1alpha1.VirtualIP{}
	for i := range list.Items {
		out[list.Items[i].Name] = &list.Items[i]
	}
	return out, nil
}

// run polls the lists. While the API server is unreachable it does nothing.
func (s *speakers) run(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if vips, err := s.list(ctx); err == nil {
				s.act(ctx, vips)
			}
		}
	}
}

func (s *speakers) act(ctx context.Context, vips map[string]*v1alpha1.VirtualIP) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mute {
		return
	}
	moving := 0
	for name, v := range vips {
		if len(v.Spec.Nodes) == 0 {
			continue
		}
		first, h := v.Spec.Nodes[0], s.holds[name]
		if h != "" && first != h && v.Generation > s.by[name] {
			moving++
		}
		switch {
		case h == "":
			s.holds[name] = first
		case first != h && v.Generation > s.by[name]:
			s.holds[name] = first
			s.moves++
		}
		s.by[name] = v.Generation
		if v.Status.Node != s.holds[name] {
			body := fmt.Sprintf(`{"metadata": {"resourceVersion": %q}, "status": {"node": %q, "since": %q}}`, v.ResourceVersion, s.holds[name], metav1.Now().UTC().Format(time.RFC3339))
			_ = s.rig.Kube.Discovery().RESTClient().Patch(types.MergePatchType).AbsPath(api, "virtualips", name, "status").Body([]byte(body)).Do(ctx).Error() // retried at the next tick
		}
	}
	s.atOnce = max(s.atOnce, moving)
}

// report writes the SpeakerStatus of each node: all nodes receive one another.
func (s *speakers) report(ctx context.Context, nodes ...string) error {
	const path = api + "/speakerstatuses"
	rest := s.rig.Kube.Discovery().RESTClient()
	for _, n := range nodes {
		status := v1alpha1.SpeakerStatusStatus{DataPlane: v1alpha1.DataPlaneStatus{Healthy: true}}
		for _, other := range nodes {
			if other != n {
				status.Members = append(status.Members, v1alpha1.MemberStatus{Node: other, State: v1alpha1.MemberAlive})
			}
		}
		body, err := json.Marshal(map[string]any{"status": status})
		if err != nil {
			return err
		}
		object := fmt.Sprintf(`{"apiVersion": "ironlb.io/v1alpha1", "kind": "SpeakerStatus", "metadata": {"name": %q}}`, n)
		if err := rest.Post().AbsPath(path).Body([]byte(object)).Do(ctx).Error(); err != nil {
			return err
		}
		if err := rest.Patch(types.MergePatchType).AbsPath(path, n, "status").Body(body).Do(ctx).Error(); err != nil {
			return err
		}
	}
	return nil
}

// rest waits until the speakers have read all lists, and none has changed for more than the 5 s after which ironlb-ccm
// makes the order exact. It returns the lists.
func (s *speakers) rest(ctx context.Context, t *testing.T) (vips map[string]*v1alpha1.VirtualIP) {
	t.Helper()
	var generations map[string]int64
	since := time.Now()
	eventually.Nil(t, patience, "the lists to come to rest", func(context.Context) (err error) {
		if vips, err = s.list(ctx); err != nil {
			t.Fatal(err)
		}
		now := map[string]int64{}
		for name, v := range vips {
			now[name] = v.Generation
		}
		received := false
		s.locked(func() { received = maps.Equal(s.by, now) })
		if !received || !maps.Equal(generations, now) {
			generations, since = now, time.Now()
		}
		return eventually.Unless(time.Since(since) > 6*time.Second, "they are %v", generations)
	})
	return vips
}

// locked calls f while the speakers are stopped.
func (s *speakers) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// TestPlacement: addresses spread evenly. All of them fail over while the API server is unreachable. After its return,
// with late statuses, a node that is not ready and a new node, nothing moves, whether or not ironlb-ccm was restarted.
// On request they spread over the new node, one at a time.
func TestPlacement(t *testing.T) {
	const services = 6
	f := use(t, "placement")
	ctx, cancel := context.WithCancel(f.ctx)
	s := &speakers{rig: f.Rig, holds: map[string]string{}, by: map[string]int64{}}
	var running sync.WaitGroup
	running.Go(func() { s.run(ctx) })
	defer running.Wait()
	defer cancel()
	vips := func() map[string]*v1alpha1.VirtualIP {
		t.Helper()
		list, err := s.list(ctx)
		f.must(err)
		return list
	}
	led := func(list map[string]*v1alpha1.VirtualIP) map[string]int {
		out := map[string]int{}
		for _, v := range list {
			if len(v.Spec.Nodes) > 0 && v.Spec.Nodes[0] == v.Status.Node {
				out[v.Status.Node]++
			}
		}
		return out
	}
	f.apply(`
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: web, labels: {tier: gold}}
spec: {addresses: ["2001:db8:1::/120"]}
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: gold}
spec: {ipAddressPoolSelectors: [{matchLabels: {tier: gold}}]}
`)
	f.must(f.AddNodes(ctx, 3))
	ccm := f.start(alone)
	f.must(f.Serve(ctx, f.namespace, services, nil))
	eventually.Nil(t, patience, "each node to lead two lists", func(context.Context) error {
		n := led(vips())
		return eventually.Unless(maps.Equal(n, map[string]int{"node1": 2, "node2": 2, "node3": 2}), "they lead %v", n)
	})

	for i, restart := range []bool{false, true} {
		// A list written before the outage and not read by the speakers would move its address after it.
		before := s.rest(ctx, t)
		s.locked(func() { s.mute, s.moves = true, 0 })
		if restart {
			f.must(ccm.Kill())
		}
		f.must(f.StopAPIServer())
		s.locked(func() {
			for name, v := range before {
				s.holds[name] = v.Spec.Nodes[1]
			}
		})
		f.must(f.StartAPIServer(ctx))
		f.must(f.SetReady(ctx, "node1", v1.ConditionUnknown))
		joined := fmt.Sprintf("node%d", 4+i)
		f.must(f.AddNode(ctx, joined))
		if restart {
			ccm = f.start(alone)
		}
		late := time.After(3 * time.Second) // the last speaker reconnects to the API server
		<-late
		for name, v := range vips() {
			if v.Generation != before[name].Generation {
				t.Errorf("restarted %v: the list of %s changed from %v to %v before its holder was known", restart, name, before[name].Spec.Nodes, v.Spec.Nodes)
			}
		}
		s.locked(func() { s.mute = false })
		what := fmt.Sprintf("restarted %v: the lists to follow the holders", restart)
		eventually.Nil(t, patience, what, func(context.Context) error {
			for name, v := range vips() {
				if v.Spec.Nodes[0] != v.Status.Node || !slices.Contains(v.Spec.Nodes, joined) {
					return fmt.Errorf("%s of %s has %v", name, v.Status.Node, v.Spec.Nodes)
				}
			}
			return nil
		})
		f.must(f.SetReady(ctx, "node1", v1.ConditionTrue))
		s.locked(func() {
			if s.moves > 0 {
				t.Errorf("restarted %v: %d addresses moved when the API server was back", restart, s.moves)
			}
		})
	}

	f.must(s.report(ctx, "node1", "node2", "node3", "node4", "node5"))
	s.locked(func() { s.moves, s.atOnce = 0, 0 })
	counts := slices.Sorted(maps.Values(led(vips())))
	slices.Reverse(counts)
	moves := 0 // until one node has two and each other node one
	for i, n := range counts {
		if i == 0 {
			n--
		}
		moves += max(0, n-1)
	}
	out, err := f.Plugin(ctx, "rebalance", "web", "--wait", "90s")
	f.must(err)
	if out != "ippool/web: rebalance requested\nippool/web: done\n" {
		t.Errorf("kubectl ironlb rebalance: got\n%s", out)
	}
	if got := led(vips()); len(got) != 5 || slices.Max(slices.Collect(maps.Values(got))) != 2 {
		t.Errorf("after rebalancing led: %v, want one or two on each of five nodes", got)
	}
	s.locked(func() {
		if s.moves != moves || s.atOnce != 1 {
			t.Errorf("from %v: %d moves, at most %d at once; want %d, one at a time", counts, s.moves, s.atOnce, moves)
		}
	})
	events, err := f.Kube.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "reason=Rebalanced"})
	f.must(err)
	if len(events.Items) != moves {
		t.Errorf("%d Events of reason Rebalanced, want %d", len(events.Items), moves)
	}
	out, err = f.Plugin(ctx, "status")
	f.must(err)
	for _, v := range vips() {
		if !strings.Contains(out, v.Spec.Addresses[0]+" ") || !strings.Contains(out, " "+v.Status.Node+" ") {
			t.Errorf("kubectl ironlb status lacks %s on %s:\n%s", v.Spec.Addresses[0], v.Status.Node, out)
		}
	}
	f.stop(ccm)
}
