package ccm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"
)

// lease is the leader's Lease and this process's holder identity in it. cloud-provider's app does not release it at the
// end of the process. The other replica, or this one after a restart, would otherwise wait until it expires.
type lease struct {
	client    coordination.LeaseInterface // not behind the gate
	namespace string
	name      string
	gate      *gate
	identity  atomic.Pointer[string] // the holder identity that this process wrote; it is unique: the app generates and keeps it
	leads     atomic.Bool
}

// leading records that this process holds the Lease from now on.
func (l *lease) leading() { l.leads.Store(true) }

// wrap puts a client's transport behind the gate, and takes the holder identity from the elector's successful writes.
func (l *lease) wrap(next http.RoundTripper) http.RoundTripper { return elector{l, l.gate.wrap(next)} }

type elector struct {
	lease *lease
	next  http.RoundTripper
}

// RoundTrip sends the request.
func (e elector) RoundTrip(r *http.Request) (*http.Response, error) {
	written := e.lease.holderIn(r)
	resp, err := e.next.RoundTrip(r)
	if written != nil && *written != "" && err == nil && resp.StatusCode < http.StatusMultipleChoices {
		e.lease.identity.Store(written)
	}
	return resp, err
}

// holderIn returns the holder that the request writes into the Lease. Nil: it is another request.
func (l *lease) holderIn(r *http.Request) *string {
	dir, name := path.Split(r.URL.Path)
	all := "/namespaces/" + l.namespace + "/leases"
	update := r.Method == http.MethodPut && strings.HasSuffix(dir, all+"/") && name == l.name
	create := r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, all)
	if r.GetBody == nil || !update && !create {
		return nil
	}
	body, err := r.GetBody()
	if err != nil {
		return nil
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return nil
	}
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil) // JSON or protobuf
	if err != nil {
		return nil
	}
	if written, ok := obj.(*coordinationv1.Lease); ok && written.Name == l.name {
		return written.Spec.HolderIdentity
	}
	return nil
}

// release stops all writes of this process, waits for those under way, and only then releases the Lease: the next
// leader must find everything that this process wrote. It does nothing on a replica that does not lead.
func (l *lease) release(ctx context.Context) error {
	identity := l.identity.Load()
	if identity == nil || !l.leads.Load() {
		return nil
	}
	if err := l.gate.close(ctx); err != nil {
		return fmt.Errorf("keeping Lease %s until it expires: %w", l.name, err)
	}
	obj, err := l.client.Get(ctx, l.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading Lease %s: %w", l.name, err)
	}
	if !ptr.Equal(obj.Spec.HolderIdentity, identity) {
		return nil
	}
	now := metav1.NewMicroTime(time.Now())
	obj.Spec = coordinationv1.LeaseSpec{
		LeaseTransitions: obj.Spec.LeaseTransitions, LeaseDurationSeconds: ptr.To[int32](1),
		HolderIdentity: ptr.To(""), RenewTime: &now, AcquireTime: &now,
	}
	if _, err := l.client.Update(ctx, obj, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("releasing Lease %s: %w", l.name, err)
	}
	return nil
}

var errEnding = errors.New("the process is shutting down")

// gate counts the writes under way and can be closed to new ones. Reads pass.
type gate struct {
	mu     sync.Mutex
	closed bool
	writes int
	idle   chan struct{} // closed once the gate is closed and no write is under way
}

func newGate() *gate { return &gate{idle: make(chan struct{})} }

// wrap puts a client's transport behind the gate.
func (g *gate) wrap(next http.RoundTripper) http.RoundTripper { return gated{g, next} }

type gated struct {
	gate *gate
	next http.RoundTripper
}

// RoundTrip sends the request if the gate is open.
func (t gated) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		return t.next.RoundTrip(r)
	}
	if !t.gate.acquire() {
		return nil, errEnding
	}
	defer t.gate.release()
	return t.next.RoundTrip(r)
}

func (g *gate) acquire() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.writes++
	return true
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writes--
	if g.closed && g.writes == 0 {
		close(g.idle)
	}
}

// close rejects new writes and waits for those under way. It is called once.
func (g *gate) close(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true
	if g.writes == 0 {
		close(g.idle)
	}
	g.mu.Unlock()
	select {
	case <-g.idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("writes are still under way: %w", context.Cause(ctx))
	}
}
