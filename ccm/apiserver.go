package ccm

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	apiserveroptions "k8s.io/apiserver/pkg/server/options"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/cloud-provider/options"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ccm/loop"
)

// lease is the leader's Lease and this process's holder identity in it. cloud-provider's app does not release it at the
// end of the process. The other replica, or this one after a restart, would otherwise wait until it expires.
type lease struct {
	log      *slog.Logger
	client   coordination.LeaseInterface // not behind the gate
	name     string
	gate     *gate
	identity atomic.Pointer[string] // nil: this process does not lead, or does not know its identity yet
}

// gate counts the writes under way and can be closed to new ones. Reads pass.
type gate struct {
	mu     sync.Mutex
	closed bool
	writes int
	idle   chan struct{} // closed once the gate is closed and no write is under way
}

type gated struct {
	gate *gate
	next http.RoundTripper
}

// outage records whether the API server is unavailable, and when it came back.
type outage struct {
	onRecovery func() // called when the API server is available again; may be nil

	mu        sync.Mutex
	down      bool
	failed    time.Time // last
	recovered time.Time // the first response after that
}

type watched struct {
	outage *outage
	next   http.RoundTripper
}

// lead records the holder identity of this process, which has just acquired the Lease. The app generates the identity
// from the host name and does not expose it. lead retries until it has read the Lease, or ctx ends.
func (l *lease) lead(ctx context.Context) {
	host, err := os.Hostname()
	if err != nil {
		l.log.Warn("the Lease is not released at shutdown", "error", err)
		return
	}
	for retry := loop.NewBackoff(); ; {
		obj, err := l.client.Get(ctx, l.name, metav1.GetOptions{})
		if err == nil {
			// Another host's identity: the Lease is lost, and the app ends the process.
			if holder := ptr.Deref(obj.Spec.HolderIdentity, ""); strings.HasPrefix(holder, host+"_") {
				l.identity.Store(&holder)
			}
			return
		}
		if !loop.Sleep(ctx, retry.Step()) {
			return
		}
	}
}

// release stops all writes of this process, waits for those under way, and only then releases the Lease: the next
// leader must find everything that this process wrote. It does nothing on a replica that does not lead.
func (l *lease) release(ctx context.Context) error {
	identity := l.identity.Load()
	if identity == nil {
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

func newGate() *gate { return &gate{idle: make(chan struct{})} }

// wrap puts a client's transport behind the gate.
func (g *gate) wrap(next http.RoundTripper) http.RoundTripper { return gated{g, next} }

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

// longestRetry is the longest wait between two tries of a watch (client-go: 30 s, plus at most as much again at
// random). After that time without a failure the API server counts as available, even without a request.
const longestRetry = time.Minute

// wrap makes a client's transport report failures and responses.
func (o *outage) wrap(next http.RoundTripper) http.RoundTripper { return watched{o, next} }

// RoundTrip sends the request.
func (w watched) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.next.RoundTrip(r)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, errEnding): // caused by this process
	case err != nil,
		resp.StatusCode == http.StatusBadGateway, resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusGatewayTimeout:
		w.outage.record(false)
	default:
		w.outage.record(true)
	}
	return resp, err
}

// setOnRecovery sets the function that is called when the API server is available again.
func (o *outage) setOnRecovery(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.onRecovery = f
}

// record records whether a request was answered.
func (o *outage) record(answered bool) {
	o.mu.Lock()
	recovered := answered && o.down
	switch {
	case recovered:
		o.down, o.recovered = false, time.Now()
	case !answered:
		o.down, o.failed = true, time.Now()
	}
	onRecovery := o.onRecovery
	o.mu.Unlock()
	if recovered && onRecovery != nil {
		onRecovery()
	}
}

// Settles returns when all speakers have had the time to report what happened in the last outage, and when that ended.
// Zero: there was none.
func (o *outage) Settles(within time.Duration) (at, since time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.down:
		return o.failed.Add(longestRetry + within), o.failed
	case !o.recovered.IsZero():
		return o.recovered.Add(within), o.recovered
	}
	return time.Time{}, time.Time{}
}

// AwaitCertificate lets the process start while --tls-cert-file or --tls-private-key-file does not exist, as before the
// Secret of the chart value metrics.tlsSecret: metrics have a certificate that clients cannot verify until it does.
func (s *Settings) AwaitCertificate(o *options.CloudControllerManagerOptions) {
	files := &o.SecureServing.ServerCert.CertKey
	for _, file := range []string{files.CertFile, files.KeyFile} {
		if _, err := os.Stat(file); file != "" && errors.Is(err, fs.ErrNotExist) {
			s.awaited, *files = *files, apiserveroptions.CertKey{}
			return
		}
	}
}

// awaitedCertificate is that of two files, and another one while they are no certificate. The API server's library asks
// for it once a minute.
type awaitedCertificate struct {
	dynamiccertificates.CertKeyContentProvider
	files apiserveroptions.CertKey
	log   *slog.Logger
	// cert and key are the last valid ones.
	cert, key []byte
	failed    string
}

// CurrentCertKeyContent is called by one goroutine.
func (c *awaitedCertificate) CurrentCertKeyContent() (cert, key []byte) {
	cert, certErr := os.ReadFile(c.files.CertFile)
	key, keyErr := os.ReadFile(c.files.KeyFile)
	_, err := tls.X509KeyPair(cert, key)
	switch err = errors.Join(certErr, keyErr, err); {
	case err == nil && c.cert == nil:
		c.log.Info("certificate of the metrics found", "file", c.files.CertFile)
		fallthrough
	case err == nil:
		c.cert, c.key, c.failed = cert, key, ""
	case c.cert == nil:
		return c.CertKeyContentProvider.CurrentCertKeyContent()
	case c.failed != err.Error():
		c.failed = err.Error()
		c.log.Warn("the certificate of the metrics is not valid any more; the last one stays in use", "error", err)
	}
	return c.cert, c.key
}
