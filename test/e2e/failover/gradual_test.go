package failover

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/rare"
)

// TestGradual: a pool is rebalanced gradually. While the speaker of a node is absent, nothing is moved to the node,
// although Kubernetes considers it ready. When the speaker has been present for the delay, the node gets its share
// back, without a failed connection and without an abandoned move.
func TestGradual(t *testing.T) {
	rare.Test(t)
	const delay = 5 * time.Second
	setRebalance(t, v1alpha1.RebalanceGradual, &metav1.Duration{Duration: delay})
	t.Cleanup(func() { setRebalance(t, "", nil) })
	s, _ := serving(t, 3)
	began := time.Now()
	before := s.balanced("at the start", cluster.Nodes[:candidates])
	victim := before[s.vips[0].service]
	if err := victim.KillSpeaker(); err != nil {
		t.Fatal(err)
	}
	start := func() {
		if p := victim.Speaker(); p == nil || !p.Running() {
			if err := victim.StartSpeaker(context.WithoutCancel(t.Context()), "--config", speakerConfig()); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(start)
	after := s.leaves(victim)
	s.reported(after)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for since := time.Now(); time.Since(since) < 3*delay; <-tick.C {
		for _, v := range s.vips {
			obj, err := virtualIP(t.Context(), v)
			if err != nil || obj == nil {
				t.Fatal(obj, err)
			}
			follows := time.Since(since) > 3*time.Second // the list, the status
			if follows && obj.Status.Node == after[v.service].Name && obj.Spec.Nodes[0] == victim.Name {
				t.Fatalf("%s is moved to %s, whose speaker is absent: %v", v.service, victim.Name, obj.Spec.Nodes)
			}
		}
	}
	returned := time.Now()
	start()
	s.balanced("after the return", cluster.Nodes[:candidates])
	took := time.Since(returned)
	t.Logf("%s has its share %s after its speaker was started", victim.Name, took.Round(time.Millisecond))
	if took < delay {
		t.Errorf("that is less than preemptDelay")
	}
	notMoved := metav1.ListOptions{FieldSelector: "reason=NotMoved"}
	events, err := cluster.Kube.CoreV1().Events(metav1.NamespaceAll).List(t.Context(), notMoved)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events.Items {
		if e.LastTimestamp.After(began.Truncate(time.Second)) {
			t.Errorf("a move was given up: %s", e.Message)
		}
	}
}

// balanced waits until the VirtualIPs are spread evenly over the nodes.
func (s *scene) balanced(when string, nodes []*lab.Node) (now owners) {
	s.t.Helper()
	cluster.Await(s.t, patience, "the VirtualIPs are spread evenly "+when, func(context.Context) error {
		now = owners{}
		for _, v := range s.vips {
			n, err := s.owner(v)
			if err != nil {
				return err
			}
			now[v.service] = n
		}
		if held := now.held(nodes); !even(held) {
			return fmt.Errorf("they are %v", held)
		}
		return nil
	})
	return now
}

func setRebalance(t *testing.T, policy v1alpha1.RebalancePolicy, delay *metav1.Duration) {
	t.Helper()
	cluster.Await(t, patience, "the pool is rebalanced "+string(policy), func(ctx context.Context) error {
		var pool v1alpha1.IPAddressPool
		if err := cluster.Objects.Get(ctx, client.ObjectKey{Name: "lan"}, &pool); err != nil {
			return err
		}
		pool.Spec.Rebalance, pool.Spec.PreemptDelay = policy, delay
		return cluster.Objects.Update(ctx, &pool)
	})
}
