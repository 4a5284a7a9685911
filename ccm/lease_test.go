package ccm

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
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
	if err := l.release(ctx); err != nil || holder() != "us" {
		t.Fatalf("released what we hold no more, or not yet: %v", err)
	}
	l.leading()

	written, released := make(chan error), make(chan error)
	go func() { written <- do(http.MethodPatch) }()
	<-arrived
	go func() { released <- l.release(ctx) }()
	eventually(t, "the gate is closed", func() bool { return errors.Is(do(http.MethodPut), errEnding) })
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
	l.leading()
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

// TestLeaseOfAnother: a foreign Lease stays unchanged, though this process led before. Its identity is what it wrote,
// not what the Lease contains.
func TestLeaseOfAnother(t *testing.T) {
	for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		t.Run(contentType, func(t *testing.T) {
			answer := http.StatusOK
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
				w.WriteHeader(answer)
				_, _ = io.Copy(w, r.Body)
			}))
			defer server.Close()
			stored := func(holder string) *coordinationv1.Lease {
				return &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ironlb-system", Name: Name},
					Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
				}
			}
			leases := fake.NewClientset(stored("host_2")).CoordinationV1().Leases("ironlb-system")
			l := &lease{client: leases, namespace: "ironlb-system", name: Name, gate: newGate()}
			config := &rest.Config{Host: server.URL, WrapTransport: l.wrap, ContentConfig: rest.ContentConfig{ContentType: contentType}}
			elector, err := coordination.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			us := func() string { return ptr.Deref(l.identity.Load(), "none") }

			other := stored("host_3")
			other.Name = "kube-scheduler"
			elsewhere := stored("host_4")
			elsewhere.Namespace = "kube-system"
			for _, obj := range []*coordinationv1.Lease{other, elsewhere} {
				if _, err := elector.Leases(obj.Namespace).Update(t.Context(), obj, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				if _, err := elector.Leases(obj.Namespace).Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			answer = http.StatusConflict
			if _, err := elector.Leases("ironlb-system").Update(t.Context(), stored("host_2"), metav1.UpdateOptions{}); err == nil {
				t.Fatal("no conflict")
			}
			if got := us(); got != "none" {
				t.Fatalf("we are %s before we wrote the Lease", got)
			}
			answer = http.StatusCreated
			if _, err := elector.Leases("ironlb-system").Create(t.Context(), stored("host_0"), metav1.CreateOptions{}); err != nil || us() != "host_0" {
				t.Fatalf("after the Lease was made we are %s, %v", us(), err)
			}
			answer = http.StatusOK
			if _, err := elector.Leases("ironlb-system").Update(t.Context(), stored("host_1"), metav1.UpdateOptions{}); err != nil || us() != "host_1" {
				t.Fatalf("after the Lease was taken we are %s, %v", us(), err)
			}

			// Another process on this host has taken it meanwhile.
			l.leading()
			if err := l.release(t.Context()); err != nil {
				t.Error(err)
			}
			obj, err := leases.Get(t.Context(), Name, metav1.GetOptions{})
			if err != nil || *obj.Spec.HolderIdentity != "host_2" {
				t.Errorf("the other one's Lease is %v, %v", obj.Spec, err)
			}
		})
	}
}
