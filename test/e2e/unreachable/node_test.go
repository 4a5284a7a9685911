package unreachable

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/rare"
)

var faults = map[string]struct {
	begin, end func(context.Context, *lab.Node) error
}{
	"power-off": {
		func(ctx context.Context, n *lab.Node) error { return n.PowerOff(ctx) },
		func(ctx context.Context, n *lab.Node) error {
			if err := n.PowerOn(ctx); err != nil {
				return err
			}
			return n.StartSpeaker(ctx, "--config", speakerConfig())
		},
	},
	"link cut": {
		func(ctx context.Context, n *lab.Node) error { return n.CutLAN(ctx) },
		func(ctx context.Context, n *lab.Node) error { return n.RestoreLAN(ctx) },
	},
}

// TestNodeDies: the owner of the address, or another node, is powered off or its link cut. New connections reach the
// other endpoints within a second, from outside and, by ClusterIP, from a Pod; and all endpoints after its return.
func TestNodeDies(t *testing.T) {
	external, internal := service(t, "dies")
	for fault, f := range faults {
		for _, who := range []string{"owner", "other"} {
			t.Run(fault+" of "+who, func(t *testing.T) {
				if (fault == "link cut") == (who == "owner") {
					rare.Test(t)
				}
				times := map[string][]time.Duration{}
				failures := map[string][2]int{}
				for range *rounds {
					holder := owner(t, external[0].Addr())
					victim, pod := holder, ""
					if who == "other" {
						victim = cluster.Nodes[(slices.Index(cluster.Nodes, holder)+1)%len(cluster.Nodes)]
					}
					for name, at := range podNodes {
						if cluster.Node(at) != victim {
							pod = max(pod, name)
						}
					}
					all := clients(t, pod, external, internal, time.Second, *which)
					began := time.Now()
					if err := f.begin(t.Context(), victim); err != nil {
						t.Fatal(err)
					}
					repaired := false
					repair := func() {
						if err := f.end(context.WithoutCancel(t.Context()), victim); err != nil && !repaired {
							t.Error(err)
						}
						repaired = true
					}
					t.Cleanup(func() {
						if !repaired {
							repair()
						}
					})
					answered(t, all, share(3*time.Second))
					for _, o := range stopAll(t, all) {
						times[o.name] = append(times[o.name], o.last)
						failures[o.name] = [2]int{failures[o.name][0] + o.failed, failures[o.name][1] + o.sent}
						if o.last > *bound {
							t.Errorf("%s: connections failed for %v, with a fault that began at %s, Pod %s, victim %s: %s",
								o.name, o.last, began.Format(time.RFC3339Nano), pod, victim.Name, o.summary)
						}
						if o.sent < share(2*time.Second) {
							t.Errorf("%s: only %d sent since the fault", o.name, o.sent)
						}
					}
					repair()
					settled(t, external)
				}
				for _, name := range sortedKeys(times) {
					t.Logf("%s: failed for p50 %v, p99 %v, most %v; %d of %d failed", name,
						quantile(times[name], 0.5), quantile(times[name], 0.99), quantile(times[name], 1), failures[name][0], failures[name][1])
				}
			})
		}
	}
}

func sortedKeys[V any](m map[string]V) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// quantile returns the given quantile of the times.
func quantile(times []time.Duration, share float64) time.Duration {
	times = slices.Sorted(slices.Values(times))
	at := min(int(share*float64(len(times))), len(times)-1)
	return times[at].Round(time.Millisecond)
}

// TestSpeakers: a killed, paused or replaced speaker removes no endpoint; no connection fails, and none ends.
func TestSpeakers(t *testing.T) {
	external, internal := service(t, "speakers")
	left := func() (n int) {
		for _, node := range cluster.Nodes {
			if count, err := metric(t.Context(), node, "ironlb_endpoint_unreachable_nodes_total"); err != nil {
				t.Fatal(err)
			} else {
				n += count
			}
		}
		return n
	}
	nothing := func(*lab.Node) error { return nil }
	start := func(n *lab.Node) error { return n.StartSpeaker(t.Context(), "--config", speakerConfig()) }
	for name, f := range map[string]struct {
		begin, end func(*lab.Node) error
		times      int
	}{
		"killed":   {(*lab.Node).KillSpeaker, start, *kills},
		"paused":   {func(n *lab.Node) error { return n.Speaker().Pause() }, func(n *lab.Node) error { return n.Speaker().Resume() }, *pauses},
		"replaced": {(*lab.Node).ReplaceSpeaker, start, min(len(cluster.Nodes), *kills)},
		"nothing":  {nothing, nothing, *control},
	} {
		t.Run(name, func(t *testing.T) {
			failed, sent := 0, 0
			for i := range f.times {
				if name != "replaced" { // otherwise the address stays with its owner
					i %= len(cluster.Nodes) - 1
				}
				holder := owner(t, external[0].Addr())
				victim := cluster.Nodes[(slices.Index(cluster.Nodes, holder)+1+i)%len(cluster.Nodes)]
				settled(t, external)
				before := map[*lab.Node]int{}
				for _, n := range cluster.Nodes {
					if n != victim {
						before[n], _ = metric(t.Context(), n, "ironlb_endpoint_unreachable_nodes_total")
					}
				}
				all := append(clients(t, "a1", external, internal, lab.Lost, withoutUDP), streams(t, external)...)
				if err := f.begin(victim); err != nil {
					t.Fatal(err)
				}
				answered(t, all, share(3*time.Second))
				if err := f.end(victim); err != nil {
					t.Fatal(err)
				}
				settled(t, external)
				for _, c := range all {
					s, err := c.Stop()
					if failed, sent = failed+s.Failed, sent+len(s.Results); err != nil || s.Failed > 0 {
						t.Errorf("%s: %s, %v", c.name, s, err)
					}
				}
				for n, count := range before {
					if now, err := metric(t.Context(), n, "ironlb_endpoint_unreachable_nodes_total"); err != nil || now != count {
						t.Errorf("%s left endpoints out: %d, before %d, %v", n.Name, now, count, err)
					}
				}
			}
			t.Logf("%d times; %d of %d connections failed", f.times, failed, sent)
		})
	}
	if n := left(); n > 0 {
		t.Logf("in all tests nodes became unreachable %d times", n)
	}
}

// leftOut waits until a node's speaker runs and leaves out the endpoints of that many nodes.
func leftOut(t *testing.T, n *lab.Node, nodes int) {
	t.Helper()
	cluster.Await(t, patience, fmt.Sprintf("%d nodes are unreachable for %s", nodes, n.Name), func(ctx context.Context) error {
		if got, err := metric(ctx, n, "ironlb_endpoint_unreachable_nodes"); err != nil || got != nodes {
			return fmt.Errorf("unreachable nodes: %d, %w", got, err)
		}
		_, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://127.0.0.1:7950/readyz")
		return err
	})
}

// TestSpeakerStarts: a speaker that starts after a node has died and returned ends no connection to its Pods.
func TestSpeakerStarts(t *testing.T) {
	rare.Test(t)
	external, internal := service(t, "starts")
	holder := owner(t, external[0].Addr())
	victim := cluster.Nodes[(slices.Index(cluster.Nodes, holder)+1)%len(cluster.Nodes)]
	pod := ""
	for name, at := range podNodes {
		if cluster.Node(at) == holder {
			pod = name
		}
	}
	start := func() {
		t.Helper()
		if err := holder.StartSpeaker(t.Context(), "--config", speakerConfig()); err != nil {
			t.Fatal(err)
		}
	}
	restored := true
	restore := func() {
		t.Helper()
		if err := victim.RestoreLAN(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		restored = true
	}
	t.Cleanup(func() {
		if !restored {
			restore()
		}
		settled(t, external)
	})
	cut := func() {
		t.Helper()
		if err := victim.CutLAN(t.Context()); err != nil {
			t.Fatal(err)
		}
		restored = false
		leftOut(t, holder, 1)
		if err := holder.KillSpeaker(); err != nil {
			t.Fatal(err)
		}
	}

	var streams []*lab.Prober
	inside, err := cluster.PodMachine(metav1.NamespaceDefault, pod)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		p, err := inside.StartProbe(t.Context(), lab.Probe{
			Network: "stream", Target: portOf(internal[i%len(internal)], scene.StreamPort), Every: 100 * time.Millisecond, Timeout: lab.Lost,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = p.Stop() })
		streams = append(streams, p)
	}
	more := func(n int) {
		t.Helper()
		for _, p := range streams {
			if err := p.WaitAnswers(t.Context(), patience, n); err != nil {
				t.Fatal(err)
			}
		}
	}
	more(3)
	cut()
	restore()
	start()
	leftOut(t, holder, 0)
	more(10)
	toVictim := 0
	for _, p := range streams {
		s, err := p.Stop()
		if err != nil || s.Failed > 0 {
			t.Errorf("%s, %v", s, err)
		}
		for name := range s.ByPod {
			if cluster.Node(podNodes[name]) == victim {
				toVictim++
			}
		}
	}
	if toVictim == 0 {
		t.Error("no connection led to the node")
	}
}

// TestReset: connections to a Pod on an unreachable node end with a reset after the configured time, and no others do.
func TestReset(t *testing.T) {
	external, _ := service(t, "reset")
	holder := owner(t, external[0].Addr())
	victim := cluster.Nodes[(slices.Index(cluster.Nodes, holder)+1)%len(cluster.Nodes)]
	line := max(200*time.Millisecond, time.Duration(*established)*time.Millisecond)
	var streams []*lab.Prober
	for _, at := range external {
		p, err := cluster.Client.StartProbe(t.Context(), lab.Probe{
			Network: "streams", Conns: *established / len(external), Target: portOf(at, 90), Every: line, Timeout: 30 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = p.Stop() })
		streams = append(streams, p)
	}
	cluster.Await(t, patience, "all connections are established", func(context.Context) error {
		if open := connections(t, streams); len(open) < *established/len(external)*len(external) {
			return fmt.Errorf("%d of %d have an answer", len(open), *established)
		}
		return nil
	})
	began := time.Now()
	if err := victim.CutLAN(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := victim.RestoreLAN(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		settled(t, external)
	})
	// The client of a dead Pod sends again later and later, and gets the reset then. One of another Pod is still answered
	// when the last of those was reset.
	var all []connection
	cluster.Await(t, patience, "the connections to Pods of "+victim.Name+" are reset, all others answered", func(context.Context) error {
		all = connections(t, streams)
		for _, c := range all {
			switch dead := cluster.Node(podNodes[c.pod]) == victim; {
			case dead && c.failed == "":
				return fmt.Errorf("a connection to %s is open after %v", c.pod, time.Since(began))
			case !dead && c.failed == "" && c.answered.Sub(began) < resetAfter+2*line:
				return fmt.Errorf("a connection to %s was answered %v after the cut", c.pod, c.answered.Sub(began))
			}
		}
		return nil
	})
	dead := 0
	for _, c := range all {
		if cluster.Node(podNodes[c.pod]) != victim {
			if c.failed != "" {
				t.Errorf("a connection to %s broke %v after the cut: %s", c.pod, c.ended.Sub(began), c.failed)
			}
			continue
		}
		dead++
		if took := c.ended.Sub(began); took < resetAfter || took > resetAfter+15*time.Second || !strings.Contains(c.failed, "reset") {
			t.Errorf("a connection to %s ended after %v: %q", c.pod, took, c.failed)
		}
	}
	if dead == 0 {
		t.Fatal("no connection led to a Pod of the node")
	}
	t.Logf("%d of %d connections were reset, and the others answered", dead, len(all))
}

// connection is one of those that stay: the Pod that it leads to, when it was answered last, and what broke it.
type connection struct {
	pod             string
	answered, ended time.Time
	failed          string
}

// connections returns those that were answered at least once.
func connections(t *testing.T, streams []*lab.Prober) (all []connection) {
	t.Helper()
	for _, p := range streams {
		s, err := p.Summary()
		if err != nil {
			t.Fatal(err)
		}
		byNumber := map[int]connection{}
		for _, r := range s.Results {
			c := byNumber[r.Conn]
			if r.OK() {
				c.pod, c.answered = r.Pod, r.End()
			} else {
				c.failed, c.ended = r.Error, r.End()
			}
			byNumber[r.Conn] = c
		}
		for _, c := range byNumber {
			if c.pod != "" {
				all = append(all, c)
			}
		}
	}
	return all
}
