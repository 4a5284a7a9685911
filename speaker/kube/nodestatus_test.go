package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// writes are the SpeakerStatuses that were written, and the API server's.
type writes struct {
	mu       sync.Mutex
	fail     error
	all      []v1alpha1.SpeakerStatusStatus
	at       []time.Time
	reporter *NodeReporter
	// stored is the SpeakerStatus that the API server has.
	stored *v1alpha1.SpeakerStatus
}

func (w *writes) write(_ context.Context, s v1alpha1.SpeakerStatusStatus) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all, w.at = append(w.all, s), append(w.at, time.Now())
	if w.fail != nil {
		return w.fail
	}
	w.stored = &v1alpha1.SpeakerStatus{}
	if err := json.Unmarshal(encode(s), &w.stored.Status); err != nil {
		return err
	}
	w.reporter.received(w.stored)
	return nil
}

// newReporter returns a NodeReporter of node a that writes there.
func (w *writes) newReporter(log io.Writer) *NodeReporter {
	w.reporter = newNodeReporter("a", w.write, slog.New(slog.NewTextHandler(log, nil)))
	return w.reporter
}

func (w *writes) set(fail error) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = fail
	return len(w.all)
}

func nodeStatus(members map[string]report.MemberState) report.NodeStatus {
	return report.NodeStatus{
		Healthy: true, VirtualIPs: 2, Members: members, Tunnels: &view.Tunnels{MTU: 1450, VirtualServers: 3},
		Links: map[string]view.Link{"eth0": {Name: "eth0", MTU: 1500, Subnets: []netip.Prefix{netip.MustParsePrefix("2001:db8::/64"), netip.MustParsePrefix("192.0.2.0/24")}}},
	}
}

// The SpeakerStatus is written on change, at most once a second, with the time since when each member is in its state.
func TestNodeStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &writes{}
		r := w.newReporter(io.Discard)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		defer func() { stop(); <-done }()
		began := metav1.Now().Rfc3339Copy()
		r.ReportNode(nodeStatus(map[string]report.MemberState{"b": report.MemberAlive, "c": report.MemberObserver}))
		time.Sleep(time.Minute)
		if n := w.set(nil); n != 1 {
			t.Fatalf("%d writes", n)
		}
		for i := range 100 {
			state := []report.MemberState{report.MemberSilent, report.MemberAlive}[i%2]
			r.ReportNode(nodeStatus(map[string]report.MemberState{"b": report.MemberAlive, "c": state}))
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		if n := w.set(nil); n < 5 || n > 13 {
			t.Errorf("%d writes in ten seconds of changes", n)
		}
		for i := range w.at[1:] {
			if d := w.at[i+1].Sub(w.at[i]); d < nodeEvery {
				t.Errorf("two writes within %v", d)
			}
		}
		last := w.all[len(w.all)-1]
		since := last.Members[1].Since
		want := v1alpha1.SpeakerStatusStatus{
			DataPlane: v1alpha1.DataPlaneStatus{Healthy: true}, VirtualIPs: 2, Alive: "2/2", Updated: last.Updated,
			Tunnels:    &v1alpha1.TunnelsStatus{Available: true, MTU: 1450, VirtualServers: 3},
			Interfaces: []v1alpha1.InterfaceStatus{{Name: "eth0", Up: true, MTU: 1500, Subnets: []string{"192.0.2.0/24", "2001:db8::/64"}}},
			Members:    []v1alpha1.MemberStatus{{Node: "b", State: "Alive", Since: &began}, {Node: "c", State: "Alive", Since: since}},
		}
		if diff := cmp.Diff(want, last); diff != "" || since.Sub(began.Time) < 60*time.Second {
			t.Errorf("since %v; (-want +got):\n%s", since, diff)
		}
	})
}

// The last write reports that the speaker has stopped. It happens only after an earlier write, and takes at most a
// second.
func TestNodeStatusAtTheEnd(t *testing.T) {
	for name, reports := range map[string]bool{"it has reported": true, "it has not": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, slow := &writes{}, false
				r := w.newReporter(io.Discard)
				r.write = func(ctx context.Context, s v1alpha1.SpeakerStatusStatus) error {
					if slow {
						<-ctx.Done()
					}
					return errors.Join(ctx.Err(), w.write(ctx, s))
				}
				run := func() (took time.Duration) {
					ctx, stop := context.WithCancel(t.Context())
					done := make(chan error, 1)
					go func() { done <- r.Run(ctx) }()
					if reports {
						r.ReportNode(nodeStatus(map[string]report.MemberState{"b": report.MemberAlive}))
					}
					time.Sleep(time.Minute)
					began := time.Now()
					stop()
					if err := <-done; err != nil {
						t.Error(err)
					}
					return time.Since(began)
				}
				if took := run(); took > 0 {
					t.Errorf("it took %v", took)
				}
				n := w.set(nil)
				if !reports {
					if n > 0 {
						t.Errorf("%d writes of nothing", n)
					}
					return
				}
				if n != 2 || w.all[0].Stopped != nil {
					t.Fatalf("written: %+v", w.all)
				}
				last := w.all[1]
				if at := last.Stopped; at == nil || !at.Equal(last.Updated) || at.Sub(w.all[0].Updated.Time) != time.Minute {
					t.Errorf("the last one: %+v", last)
				}
				last.Stopped, last.Updated = nil, w.all[0].Updated
				if diff := cmp.Diff(w.all[0], last); diff != "" {
					t.Errorf("reports more than that it has stopped (-before +after):\n%s", diff)
				}
				slow = true
				if took := run(); took != nodeLast {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// A failed write is retried periodically, and logged once.
func TestNodeStatusFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &writes{fail: errors.New("no way to the API server")}
		var log strings.Builder
		r := w.newReporter(&log)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		defer func() { stop(); <-done }()
		r.ReportNode(nodeStatus(nil))
		time.Sleep(time.Minute)
		n := w.set(nil)
		if n < 10 || n > 13 || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("%d tries in a minute, log:\n%s", n, &log)
		}
		time.Sleep(time.Minute)
		if got := w.set(nil); got != n+1 {
			t.Errorf("%d writes after it was possible again", got-n)
		}
	})
}

// TestNodeStatusIsRestored: a SpeakerStatus that another program deletes or changes is written again, within a second,
// once.
func TestNodeStatusIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &writes{}
		r := w.newReporter(io.Discard)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		defer func() { stop(); <-done }()
		r.ReportConditions([]report.NodeCondition{{Type: "Net", Reason: "Off"}})
		r.ReportNode(nodeStatus(map[string]report.MemberState{"b": report.MemberAlive}))
		time.Sleep(time.Minute)
		n := w.set(nil)
		for _, harm := range []*v1alpha1.SpeakerStatus{nil, {}} {
			w.stored = harm
			if harm == nil {
				r.received(nil)
			} else {
				r.received(harm)
			}
			time.Sleep(nodeEvery)
			synctest.Wait()
			if n++; w.set(nil) != n || w.stored == nil || !w.stored.Status.DataPlane.Healthy {
				t.Errorf("%d writes, want %d; stored: %+v", w.set(nil), n, w.stored)
			}
			time.Sleep(time.Minute)
		}
		if w.set(nil) != n {
			t.Errorf("%d writes without a difference", w.set(nil)-n)
		}
	})
}

// TestNodeStatusOfNode: the Node owns its SpeakerStatus. While the Node does not exist, as after its deletion, none is
// made, and a Node that is registered again owns the new one.
func TestNodeStatusOfNode(t *testing.T) {
	var made []string
	exists := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			var o v1alpha1.SpeakerStatus
			if err := json.NewDecoder(r.Body).Decode(&o); err != nil || len(o.OwnerReferences) != 1 {
				t.Errorf("created %+v, %v", o, err)
				return
			}
			made, exists = append(made, string(o.OwnerReferences[0].UID)), true
		}
		if !exists {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer server.Close()
	client, err := ownClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	nodes := cache.NewStore(cache.MetaNamespaceKeyFunc)
	write := nodeWriter(client, "a", nodes)
	if err := write(t.Context(), v1alpha1.SpeakerStatusStatus{}); err == nil || len(made) > 0 {
		t.Errorf("without a Node: %v, created %v", err, made)
	}
	for _, uid := range []types.UID{"first", "second"} {
		if err := nodes.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: uid}}); err != nil {
			t.Fatal(err)
		}
		exists = false
		if err := write(t.Context(), v1alpha1.SpeakerStatusStatus{}); err != nil || made[len(made)-1] != string(uid) {
			t.Errorf("with a Node: %v, created %v", err, made)
		}
	}
}

// The scheduling class of the liveness thread is part of the SpeakerStatus, also if it is known first.
func TestNodeStatusScheduling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &writes{}
		r := w.newReporter(io.Discard)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		defer func() { stop(); <-done }()
		r.ReportScheduling("Deadline", "")
		synctest.Wait()
		if n := w.set(nil); n != 0 {
			t.Errorf("written %d times before there is a status", n)
		}
		for i, want := range []v1alpha1.LivenessStatus{{SchedulingClass: "Deadline"}, {SchedulingClass: "Nice", Message: "not permitted"}} {
			r.ReportScheduling(string(want.SchedulingClass), want.Message)
			r.ReportNode(nodeStatus(nil))
			time.Sleep(2 * nodeEvery)
			synctest.Wait()
			w.mu.Lock()
			if len(w.all) != i+1 || w.all[i].Liveness == nil || *w.all[i].Liveness != want {
				t.Errorf("%d: written %+v, want %+v last", i, w.all, want)
			}
			w.mu.Unlock()
		}
	})
}

// Conditions are written as reported; the transition time stays while the status is unchanged.
func TestNodeConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &writes{}
		r := w.newReporter(io.Discard)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		defer func() { stop(); <-done }()
		r.ReportNode(nodeStatus(nil))
		began := metav1.Now().Rfc3339Copy()
		for i, c := range []struct {
			is    report.NodeCondition
			since time.Duration
			want  metav1.ConditionStatus
		}{
			{report.NodeCondition{Type: "Net", Reason: "Off", Message: "set x"}, 0, metav1.ConditionFalse},
			{report.NodeCondition{Type: "Net", Reason: "Off", Message: "set y"}, 0, metav1.ConditionFalse},
			{report.NodeCondition{Type: "Net", True: true, Reason: "On", Message: "all is well"}, 20 * time.Second,
				metav1.ConditionTrue},
		} {
			r.ReportConditions([]report.NodeCondition{c.is})
			time.Sleep(10 * time.Second)
			synctest.Wait()
			n := w.set(nil)
			w.mu.Lock()
			got := slices.Clone(w.all[n-1].Conditions)
			w.mu.Unlock()
			want := metav1.Condition{Type: "Net", Status: c.want, Reason: c.is.Reason, Message: c.is.Message}
			if len(got) == 1 {
				if at := began.Add(c.since); got[0].LastTransitionTime.Sub(at).Abs() > time.Second {
					t.Errorf("step %d: since %v, want %v", i, got[0].LastTransitionTime, at)
				}
				got[0].LastTransitionTime = metav1.Time{}
			}
			if diff := cmp.Diff([]metav1.Condition{want}, got); diff != "" {
				t.Errorf("step %d: (-want +got)\n%s", i, diff)
			}
		}
	})
}

// TestNodeStatusOfMany: in a large cluster the status has eight members, and the death of another node does not change
// it. The status for a dump has all members.
func TestNodeStatusOfMany(t *testing.T) {
	if report.ListAll != v1alpha1.MembersAll || 2*report.Neighbors != v1alpha1.MembersSome {
		t.Fatal("speaker/report and pools/v1alpha1 differ")
	}
	members := map[string]report.MemberState{}
	for i := range 500 {
		members[fmt.Sprint("node-", i)] = report.MemberAlive
	}
	r := (&writes{}).newReporter(io.Discard)
	status := func(change func(map[string]report.MemberState, map[string]view.UnreachableNode)) v1alpha1.SpeakerStatusStatus {
		in := nodeStatus(maps.Clone(members))
		in.Reach.Unreachable = map[string]view.UnreachableNode{}
		change(in.Members, in.Reach.Unreachable)
		r.ReportNode(in)
		out, _ := r.status(false)
		return out
	}
	before := status(func(map[string]report.MemberState, map[string]view.UnreachableNode) {})
	if before.Alive != "8/8" || len(before.Members) != v1alpha1.MembersSome {
		t.Errorf("%s alive, %d members", before.Alive, len(before.Members))
	}
	if all, reported := r.Status(); !reported || all.Alive != "500/500" || len(all.Members) != len(members) {
		t.Errorf("for a dump: %s alive, %d members", all.Alive, len(all.Members))
	}
	changed := 0
	for name := range members {
		before := status(func(map[string]report.MemberState, map[string]view.UnreachableNode) {})
		after := status(func(m map[string]report.MemberState, u map[string]view.UnreachableNode) {
			m[name], u[name] = report.MemberSilent, view.UnreachableNode{}
		})
		lists := slices.ContainsFunc(before.Members, func(m v1alpha1.MemberStatus) bool { return m.Node == name })
		if same := cmp.Equal(before, after); same == lists {
			t.Errorf("%s died, listed %v: status equal %v", name, lists, same)
		} else if !same {
			changed++
		}
	}
	if changed != v1alpha1.MembersSome {
		t.Errorf("%d deaths changed the status", changed)
	}
}
