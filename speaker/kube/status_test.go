package kube

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// server keeps one VirtualIP and applies merge patches to it, as the API server does.
type server struct {
	t       *testing.T
	store   cache.Store
	patches atomic.Int32
	mu      sync.Mutex
	fail    error
}

func (s *server) failWith(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

func (s *server) get() *v1alpha1.VirtualIP {
	obj, _, err := s.store.GetByKey("203.0.113.4")
	if err != nil {
		s.t.Fatal(err)
	}
	return obj.(*v1alpha1.VirtualIP)
}

func (s *server) patch(_ context.Context, name string, body []byte) error {
	s.patches.Add(1)
	s.mu.Lock()
	fail := s.fail
	s.mu.Unlock()
	if fail != nil {
		return fail
	}
	before, err := json.Marshal(s.get())
	if err != nil {
		return err
	}
	var object, change map[string]any
	if err := errors.Join(json.Unmarshal(before, &object), json.Unmarshal(body, &change)); err != nil {
		return err
	}
	after, err := json.Marshal(merge(object, change))
	if err != nil {
		return err
	}
	next := &v1alpha1.VirtualIP{}
	if err := json.Unmarshal(after, next); err != nil {
		return err
	}
	return s.store.Update(next)
}

// merge applies a merge patch (RFC 7386).
func merge(object, change map[string]any) map[string]any {
	for key, value := range change {
		inner, isObject := value.(map[string]any)
		switch old, wasObject := object[key].(map[string]any); {
		case value == nil:
			delete(object, key)
		case isObject && wasObject:
			object[key] = merge(old, inner)
		default:
			object[key] = value
		}
	}
	return object
}

func newServer(t *testing.T) (*server, *Reporter) {
	s := &server{t: t, store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	if err := s.store.Add(virtualIP()); err != nil {
		t.Fatal(err)
	}
	return s, newReporter(s.store, s.patch, slog.New(slog.DiscardHandler))
}

func run(t *testing.T, r *Reporter) {
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
}

func announced(node string) map[string]report.VIPStatus {
	return map[string]report.VIPStatus{"203.0.113.4": {Node: node, Interfaces: []string{"eth0"}, Announced: true, Reason: view.Owner, Message: "m"}}
}

func TestStatusIsWrittenOnChangeOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newServer(t)
		run(t, r)
		taken := metav1.Now().Rfc3339Copy()
		r.Report(announced("a"))
		synctest.Wait()
		want := v1alpha1.VirtualIPStatus{Node: "a", Interfaces: []string{"eth0"}, Since: &taken, Conditions: []metav1.Condition{
			{Type: "Announced", Status: "True", Reason: "Owner", Message: "m", LastTransitionTime: taken}}}
		if diff := cmp.Diff(want, s.get().Status); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
		for range 100 {
			r.Report(announced("a"))
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if s.patches.Load() != 1 {
			t.Errorf("%d patches for one change", s.patches.Load())
		}
		// Another node overwrote it: it is corrected once that is observed.
		vip := s.get().DeepCopy()
		vip.Status.Node = "b"
		if err := s.store.Update(vip); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * relist)
		synctest.Wait()
		if s.patches.Load() != 2 || s.get().Status.Node != "a" {
			t.Errorf("%d patches, node %q", s.patches.Load(), s.get().Status.Node)
		}
		// A VirtualIP that is no longer announced loses node, interfaces and since.
		r.Report(map[string]report.VIPStatus{"203.0.113.4": {Reason: view.NoLocalEndpoint, Message: "none"}})
		synctest.Wait()
		got := s.get().Status
		if got.Node != "" || got.Interfaces != nil || got.Since != nil || len(got.Conditions) != 1 ||
			got.Conditions[0].Status != metav1.ConditionFalse || got.Conditions[0].Reason != "NoLocalEndpoint" {
			t.Errorf("status %+v", got)
		}
		// A VirtualIP that this node does not report is not touched.
		patches := s.patches.Load()
		r.Report(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s.patches.Load() != patches {
			t.Error("wrote a status without a report")
		}
	})
}

// countingStore counts the objects that are read.
type countingStore struct {
	cache.Store
	reads atomic.Int64
}

func (s *countingStore) GetByKey(key string) (any, bool, error) {
	s.reads.Add(1)
	return s.Store.GetByKey(key)
}

// TestSettledStatusesCostNothing: a resync compares nothing while neither a report nor a VirtualIP has changed. A
// foreign write, which changes a VirtualIP, is corrected.
func TestSettledStatusesCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newServer(t)
		var events atomic.Uint64
		store := &countingStore{Store: s.store}
		r.store, r.events = store, events.Load
		r.patch = func(ctx context.Context, name string, body []byte) error {
			defer events.Add(1)
			return s.patch(ctx, name, body)
		}
		run(t, r)
		r.Report(announced("a"))
		time.Sleep(3 * relist)
		synctest.Wait()
		before := store.reads.Load()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := store.reads.Load() - before; n != 0 {
			t.Errorf("%d reads in an hour without a change", n)
		}
		vip := s.get().DeepCopy()
		vip.Status.Node = "b"
		if err := s.store.Update(vip); err != nil {
			t.Fatal(err)
		}
		events.Add(1)
		time.Sleep(2 * relist)
		synctest.Wait()
		if s.patches.Load() != 2 || s.get().Status.Node != "a" {
			t.Errorf("%d patches, node %q after a foreign write", s.patches.Load(), s.get().Status.Node)
		}
		// A failed write is repeated, although nothing changes.
		s.failWith(errors.New("no"))
		r.Report(announced("c"))
		time.Sleep(relist)
		s.failWith(nil)
		time.Sleep(2 * relist)
		synctest.Wait()
		if s.get().Status.Node != "c" {
			t.Errorf("node %q after a failed write", s.get().Status.Node)
		}
	})
}

// A restart of the owner keeps the time since when it announces, and other conditions stay.
func TestStatusKeepsWhatHasNotChanged(t *testing.T) {
	before, now := metav1.Unix(1000, 0), metav1.Unix(2000, 0)
	vip := virtualIP()
	vip.Status = v1alpha1.VirtualIPStatus{Node: "a", Since: &before, Conditions: []metav1.Condition{
		{Type: "NoEligibleNode", Status: "True"}, {Type: "Other", Status: "True"}, {Type: "Announced", Status: "True", LastTransitionTime: before}}}
	next := statusOf(vip, announced("a")["203.0.113.4"], Conflict{}, now)
	if !next.Since.Equal(&before) || len(next.Conditions) != 2 || next.Conditions[0].Type != "Announced" ||
		!next.Conditions[0].LastTransitionTime.Equal(&before) || next.Conditions[1].Type != "Other" {
		t.Errorf("status %+v", next)
	}
	moved := statusOf(vip, announced("b")["203.0.113.4"], Conflict{}, now)
	if !moved.Since.Equal(&now) {
		t.Errorf("since %v after a move, want %v", moved.Since, now)
	}
}

func TestStatusIsTriedAgain(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: kindVIP}, "x", errors.New("newer"))
	for name, tt := range map[string]struct {
		err    error
		within time.Duration
	}{
		"conflict":     {conflict, 2 * afterConflict},
		"server error": {errors.New("away"), 2 * relist},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, r := newServer(t)
				s.failWith(tt.err)
				run(t, r)
				r.Report(announced("a"))
				synctest.Wait()
				if s.patches.Load() < 1 || s.get().Status.Node != "" {
					t.Fatalf("%d patches", s.patches.Load())
				}
				s.failWith(nil)
				time.Sleep(tt.within)
				synctest.Wait()
				if s.get().Status.Node != "a" {
					t.Errorf("not written within %v", tt.within)
				}
			})
		})
	}
}

// Another host that has the address is a condition as long as it has it.
func TestAddressConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newServer(t)
		run(t, r)
		status := announced("a")["203.0.113.4"]
		status.Conflict, status.ConflictReason = "another host answers", view.AddressConflict
		status.Hosts = []report.HostConflict{{Addr: netip.MustParseAddr("203.0.113.4"), MAC: "02:00:00:00:00:09", Interface: "eth0"}}
		hosts := []v1alpha1.AddressConflict{{Address: "203.0.113.4", MAC: "02:00:00:00:00:09", Interface: "eth0"}}
		for _, held := range []bool{true, false} {
			if !held {
				status.Node, status.Interfaces, status.Announced, status.Reason = "", nil, false, view.AddressConflict
			}
			r.Report(map[string]report.VIPStatus{"203.0.113.4": status})
			synctest.Wait()
			got := s.get().Status.Conditions
			if len(got) != 2 || got[1].Type != v1alpha1.ConditionConflict || got[1].Status != metav1.ConditionTrue || got[1].Message != status.Conflict || got[1].Reason != "AddressConflict" {
				t.Errorf("held %v: conditions %+v", held, got)
			}
			if got := s.get().Status.Conflicts; !slices.Equal(got, hosts) {
				t.Errorf("held %v: conflicts %+v", held, got)
			}
		}
		r.Report(announced("a"))
		synctest.Wait()
		if got := s.get().Status; len(got.Conditions) != 1 || got.Conflicts != nil {
			t.Errorf("status %+v", got)
		}
	})
}

// A Service that is not forwarded directly although it should be is a condition as long as that lasts.
func TestNotDirect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newServer(t)
		run(t, r)
		status := announced("a")["203.0.113.4"]
		status.NotDirect, status.NotDirectReason = "node a forwards to endpoints", view.TunnelUnavailable
		r.Report(map[string]report.VIPStatus{"203.0.113.4": status})
		synctest.Wait()
		got := s.get().Status.Conditions
		if len(got) != 2 || got[1].Type != v1alpha1.ConditionNotDirect || got[1].Status != metav1.ConditionTrue ||
			got[1].Message != status.NotDirect || got[1].Reason != "TunnelUnavailable" {
			t.Errorf("conditions %+v", got)
		}
		r.Report(announced("a"))
		synctest.Wait()
		if got := s.get().Status.Conditions; len(got) != 1 {
			t.Errorf("conditions %+v", got)
		}
	})
}

// A process that stalled writes nothing of its outdated state, although its own timers wake it first.
func TestNothingIsWrittenWhileStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newServer(t)
		var stalled atomic.Bool
		r.While(func() bool { return !stalled.Load() })
		run(t, r)
		r.Report(announced("a"))
		synctest.Wait()
		stalled.Store(true)
		vip := s.get().DeepCopy()
		vip.Status.Node = "b" // took over meanwhile
		if err := s.store.Update(vip); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := s.get().Status.Node; got != "b" || s.patches.Load() != 1 {
			t.Errorf("node %q, %d patches", got, s.patches.Load())
		}
		r.Report(nil) // the loop now has the newer state
		stalled.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := s.get().Status.Node; got != "b" || s.patches.Load() != 1 {
			t.Errorf("later: node %q, %d patches", got, s.patches.Load())
		}
	})
}

// A conflict with kube-proxy is in the status while it lasts, next to the conditions of other writers.
func TestConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newServer(t)
		run(t, r)
		types := func() (all []string) {
			for _, c := range s.get().Status.Conditions {
				all = append(all, c.Type+"="+string(c.Status)+" "+c.Reason+" "+c.Message)
			}
			return all
		}
		r.Report(announced("a"))
		r.Conflict(Conflict{Reason: "KubeProxyDeletesVirtualServers", Message: "add"})
		synctest.Wait()
		want := []string{"Announced=True Owner m", "KubeProxyConflict=True KubeProxyDeletesVirtualServers add"}
		if diff := cmp.Diff(want, types()); diff != "" {
			t.Errorf("conditions (-want +got):\n%s", diff)
		}
		since := s.get().Status.Conditions[1].LastTransitionTime
		time.Sleep(time.Minute)
		r.Conflict(Conflict{Reason: "KubeProxyDeletesVirtualServers", Message: "add more"})
		synctest.Wait()
		if c := s.get().Status.Conditions[1]; c.Message != "add more" || !c.LastTransitionTime.Equal(&since) {
			t.Errorf("a new message gave %+v, true since %v", c, since)
		}
		r.Conflict(Conflict{})
		synctest.Wait()
		if diff := cmp.Diff(want[:1], types()); diff != "" {
			t.Errorf("conditions (-want +got):\n%s", diff)
		}
		patches := s.patches.Load()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := s.patches.Load(); n != patches {
			t.Errorf("%d patches without a change", n-patches)
		}
	})
}

// The client does not limit the Reporter's writes: client-go's default is 5 requests a second.
func TestClientDoesNotSlowTheReporter(t *testing.T) {
	own, err := ownClient(&rest.Config{Host: "192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	if limit := own.GetRateLimiter(); limit != nil && limit.QPS() < writesPerSecond {
		t.Errorf("the client sends %v requests a second, less than the %d that the Reporter may write", limit.QPS(), writesPerSecond)
	}
}
