package ccm

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

// TestLeaseIsGivenBackAfterTheLastWrite: not while a write is under way, and nothing is written afterwards.
func TestLeaseIsGivenBackAfterTheLastWrite(t *testing.T) {
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
	if err := l.leading(ctx); err != nil {
		t.Fatal(err)
	}

	written, released := make(chan error), make(chan error)
	go func() { written <- do(http.MethodPatch) }()
	<-arrived
	go func() { released <- l.release(ctx) }()
	eventually(t, "the gate is closed", func() bool { return errors.Is(do(http.MethodPut), errLeaving) })
	if err := do(http.MethodGet); err != nil {
		t.Errorf("a read after the end: %v", err)
	}
	if holder() != "us" {
		t.Error("the Lease was given back while a write was under way")
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

// TestLeaseIsKeptWhileAWriteHangs: better late than two leaders' writes mixed.
func TestLeaseIsKeptWhileAWriteHangs(t *testing.T) {
	leases := fake.NewClientset(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ironlb-system", Name: Name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("us")},
	}).CoordinationV1().Leases("ironlb-system")
	l := &lease{client: leases, name: Name, gate: newGate()}
	if err := l.leading(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.gate.enter()
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
