package ccm

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/test/eventually"
)

// TestLeaseIsReleasedAfterTheLastWrite: the Lease is not released while a write is under way, and nothing is written
// afterwards.
func TestLeaseIsReleasedAfterTheLastWrite(t *testing.T) {
	ctx := t.Context()
	arrived, answer := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			close(arrived)
			<-answer
		}
	}))
	defer server.Close()
	g := newGate()
	client := &http.Client{Transport: g.wrap(http.DefaultTransport)}
	do := func(method string) error {
		req, err := http.NewRequestWithContext(ctx, method, server.URL, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}

	leases := fake.NewClientset(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ironlb-system", Name: Name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("us")},
	}).CoordinationV1().Leases("ironlb-system")
	holder := func() string {
		obj, err := leases.Get(ctx, Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return *obj.Spec.HolderIdentity
	}
	l := &lease{client: leases, name: Name, gate: g}
	if err := l.release(ctx); err != nil || holder() != "us" {
		t.Fatalf("released what we did not hold: %v", err)
	}
	us := "us"
	l.identity.Store(&us)

	written, released := make(chan error), make(chan error)
	go func() { written <- do(http.MethodPatch) }()
	<-arrived
	go func() { released <- l.release(ctx) }()
	eventually.True(t, 20*time.Second, "the gate is closed", func() bool { return errors.Is(do(http.MethodPut), errEnding) })
	if err := do(http.MethodGet); err != nil {
		t.Errorf("a read after the end: %v", err)
	}
	if holder() != "us" {
		t.Error("the Lease was released while a write was under way")
	}
	close(answer)
	if err := <-written; err != nil {
		t.Errorf("the last write: %v", err)
	}
	if err := <-released; err != nil {
		t.Error(err)
	}
	if got := holder(); got != "" {
		t.Errorf("the Lease is held by %q", got)
	}
}

// TestLeaseIsKeptWhileAWriteHangs: a late handover is better than mixed writes of two leaders.
func TestLeaseIsKeptWhileAWriteHangs(t *testing.T) {
	leases := fake.NewClientset(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ironlb-system", Name: Name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("us")},
	}).CoordinationV1().Leases("ironlb-system")
	l := &lease{client: leases, name: Name, gate: newGate()}
	us := "us"
	l.identity.Store(&us)
	l.gate.acquire()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := l.release(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	obj, err := leases.Get(t.Context(), Name, metav1.GetOptions{})
	if err != nil || *obj.Spec.HolderIdentity != "us" {
		t.Errorf("the Lease is %v, %v", obj.Spec, err)
	}
}

// TestLeaseOfAnother: a foreign Lease stays unchanged, though this process led before, and also if another host has it
// when this process reads its identity.
func TestLeaseOfAnother(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ first, later, left string }{
		{host + "_1", host + "_1", ""},
		{host + "_1", host + "_2", host + "_2"}, // another process on this host has taken it meanwhile
		{host + "_1", "other_1", "other_1"},
		{"other_1", "other_1", "other_1"},
	} {
		stored := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ironlb-system", Name: Name},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &c.first},
		}
		leases := fake.NewClientset(stored).CoordinationV1().Leases("ironlb-system")
		l := &lease{client: leases, name: Name, gate: newGate()}
		l.lead(t.Context())
		stored.Spec.HolderIdentity = &c.later
		if _, err := leases.Update(t.Context(), stored, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := l.release(t.Context()); err != nil {
			t.Error(err)
		}
		obj, err := leases.Get(t.Context(), Name, metav1.GetOptions{})
		if err != nil || *obj.Spec.HolderIdentity != c.left {
			t.Errorf("%+v: the Lease is %v, %v", c, obj.Spec, err)
		}
	}
}

// TestIdentityIsReadWithRetries: an API server that fails for a moment does not cost the release of the Lease.
func TestIdentityIsReadWithRetries(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	holder, failures := host+"_1", 2
	api := fake.NewClientset(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ironlb-system", Name: Name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	})
	api.PrependReactor("get", "leases", func(k8stesting.Action) (bool, runtime.Object, error) {
		failures--
		return failures >= 0, nil, errors.New("refused")
	})
	l := &lease{client: api.CoordinationV1().Leases("ironlb-system"), name: Name, gate: newGate()}
	l.lead(t.Context())
	if got := ptr.Deref(l.identity.Load(), "none"); got != holder {
		t.Errorf("we are %s, want %s", got, holder)
	}
}
