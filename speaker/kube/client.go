package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/report"
)

// Options configure the access to the API server.
type Options struct {
	// Node is the name of this node.
	Node string
	ServiceOptions
	// IgnoreExcludeLB ignores the label node.kubernetes.io/exclude-from-external-load-balancers of nodes.
	IgnoreExcludeLB bool
	// Passwords is the namespace of the Secrets that BGPPeers name.
	Passwords string
}

// Client contains everything that talks to the API server.
type Client struct {
	Source *Source
	Status *Reporter
	Node   *NodeReporter
	Events *Events
	Reviews
}

// New returns a Client for the API server of the configuration. Its parts send no request before they Run, so the API
// server may be unavailable at the start.
func New(config *rest.Config, o Options, trigger func(), log *slog.Logger) (*Client, error) {
	core := rest.CopyConfig(config)
	core.ContentType = runtime.ContentTypeProtobuf
	core.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	clients, err := kubernetes.NewForConfig(core)
	if err != nil {
		return nil, fmt.Errorf("make the API client: %w", err)
	}
	own, err := ownClient(config)
	if err != nil {
		return nil, fmt.Errorf("make the API client of %s: %w", v1alpha1.GroupVersion, err)
	}
	source, err := newSource(watches(clients, own, o), trigger, log)
	if err != nil {
		return nil, err
	}
	vips, services, nodes := source.informers[kindVIP].GetStore(), source.informers[kindService].GetStore(), source.informers[kindNode].GetStore()
	c := &Client{Source: source, Status: newReporter(vips, patcher(own), log), Events: newEvents(o.Node, services, clients.CoreV1()), Reviews: Reviews{clients}}
	c.Status.events = source.events[kindVIP].Load
	c.Status.published = func(statuses map[string]report.VIPStatus) { c.Events.VIPs(vips, statuses) }
	c.Node = newNodeReporter(o.Node, nodeWriter(own, o.Node, nodes), log)
	if _, err := source.informers[kindSpeakerStatus].AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: c.Node.received, UpdateFunc: func(_, obj any) { c.Node.received(obj) }, DeleteFunc: func(any) { c.Node.received(nil) },
	}); err != nil {
		return nil, fmt.Errorf("watch %s: %w", kindSpeakerStatus, err)
	}
	c.Node.peers = source.informers[kindBGPPeer].GetStore()
	c.Node.published = func(status report.NodeStatus) {
		c.Events.Sessions(c.Node.peers, status.Sessions)
		c.Events.Reach(status)
	}
	return c, nil
}

// watches returns the watched resources.
func watches(clients kubernetes.Interface, own *rest.RESTClient, o Options) []watch {
	core := clients.CoreV1().RESTClient()
	slices := list(clients.DiscoveryV1().RESTClient(), kindSlice, func(o *metav1.ListOptions) {
		o.LabelSelector = discoveryv1.LabelServiceName + ",!" + corev1.IsHeadlessService
	})
	return []watch{
		{kind: kindService, object: &corev1.Service{}, from: list(core, kindService, nil),
			convert: convertService(o.ServiceOptions), trim: trimService(o.ServiceOptions)},
		{kind: kindSlice, object: &discoveryv1.EndpointSlice{}, from: slices, convert: convertSlice, trim: trim},
		{kind: kindNode, object: &corev1.Node{}, from: list(core, kindNode, nil),
			convert: convertNode(o.IgnoreExcludeLB), trim: trim},
		{kind: kindVIP, object: &v1alpha1.VirtualIP{}, from: list(own, kindVIP, nil), convert: convertVIP, trim: trim},
		{kind: kindAdvertisement, object: &v1alpha1.L2Advertisement{}, from: list(own, kindAdvertisement, nil), convert: convertAdvertisement, trim: trim},
		{kind: kindPool, object: &v1alpha1.IPAddressPool{}, from: list(own, kindPool, nil), convert: convertPool, trim: trim},
		{kind: kindBGPPeer, object: &v1alpha1.BGPPeer{}, from: list(own, kindBGPPeer, nil), convert: convertPeer, trim: trim, optional: true},
		{kind: kindBGPAdvertisement, object: &v1alpha1.BGPAdvertisement{}, from: list(own, kindBGPAdvertisement, nil), convert: convertBGPAdvertisement, trim: trim, optional: true},
		{kind: kindBFDProfile, object: &v1alpha1.BFDProfile{}, from: list(own, kindBFDProfile, nil), convert: convertProfile, trim: trim, optional: true},
		{kind: kindCommunity, object: &v1alpha1.Community{}, from: list(own, kindCommunity, nil), convert: convertCommunity, trim: trim, optional: true},
		{kind: kindServiceCIDR, object: &networkingv1.ServiceCIDR{}, convert: convertServiceCIDR, trim: trim,
			from: list(clients.NetworkingV1().RESTClient(), kindServiceCIDR, nil), optional: true},
		{kind: kindSpeakerStatus, object: &v1alpha1.SpeakerStatus{}, trim: trim, from: list(own, kindSpeakerStatus, func(l *metav1.ListOptions) {
			l.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, o.Node).String()
		})},
		{kind: kindSecret, object: &corev1.Secret{}, from: passwords(core, o.Passwords), convert: convertSecret, trim: trim, namespace: o.Passwords},
	}
}

// passwords watches the Secrets that may be passwords of BGPPeers. BGPPeers reference them by name.
func passwords(core cache.Getter, namespace string) cache.ListerWatcher {
	return cache.NewFilteredListWatchFromClient(core, kindSecret, namespace, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeBasicAuth)).String()
	})
}

// ownClient returns a client of IronLB's API group.
func ownClient(config *rest.Config) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	own := rest.CopyConfig(config)
	own.GroupVersion = &v1alpha1.GroupVersion
	own.APIPath = "/apis"
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	// The writers limit themselves (see Reporter and NodeReporter). client-go's own limit of 5 a second would delay the
	// controller's view of the holders after an outage.
	own.QPS = -1
	if own.UserAgent == "" {
		own.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	return rest.RESTClientFor(own)
}

// list watches a resource in all namespaces.
func list(client cache.Getter, resource string, options func(*metav1.ListOptions)) cache.ListerWatcher {
	if options == nil {
		options = func(*metav1.ListOptions) {}
	}
	return cache.NewFilteredListWatchFromClient(client, resource, metav1.NamespaceAll, options)
}

// sameOutage is within which time errors with one cause are one outage. The reflectors retry after half a minute at the
// latest.
const sameOutage = 2 * time.Minute

// watchErrors logs an outage of the API server once, not for each watch and each retry.
type watchErrors struct {
	log *slog.Logger

	mu sync.Mutex
	// last is when an error with a cause occurred last.
	last map[string]time.Time
}

// of returns the error handler for the watch of a kind.
func (w *watchErrors) of(kind string) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, _ *cache.Reflector, err error) {
		cause, level := err, slog.LevelWarn // without the request and the connection
		for inner := cause; inner != nil; inner = errors.Unwrap(inner) {
			cause = inner
		}
		if w.goesOn(cause.Error(), time.Now()) {
			level = slog.LevelDebug
		}
		w.log.Log(ctx, level, "cannot watch the API server; what was known last stays in use", "resource", kind, "error", err)
	}
}

func (w *watchErrors) goesOn(cause string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.last, func(_ string, at time.Time) bool { return now.Sub(at) > sameOutage })
	_, known := w.last[cause]
	w.last[cause] = now
	return known
}

// Reviews ask the API server about clients of this process. client-go limits each kind to five requests a second.
type Reviews struct{ clients kubernetes.Interface }

// MayGet returns the user that a bearer token authenticates, empty for none, and whether it may get a nonResourceURL.
func (r Reviews) MayGet(ctx context.Context, token, path string) (user string, may bool, err error) {
	review, err := r.clients.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return "", false, fmt.Errorf("review a token: %w", err)
	}
	if !review.Status.Authenticated {
		return "", false, nil
	}
	u := review.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(u.Extra))
	for key, values := range u.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	access, err := r.clients.AuthorizationV1().SubjectAccessReviews().Create(ctx,
		&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: u.Username, UID: u.UID, Groups: u.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
		}}, metav1.CreateOptions{})
	if err != nil {
		return "", false, fmt.Errorf("review the access of %s to %s: %w", u.Username, path, err)
	}
	return u.Username, access.Status.Allowed && !access.Status.Denied, nil
}

// refusedFor is how many times in a row the API server must refuse a watch before it counts. A starting API server
// briefly forbids everything, until it has loaded its roles. It also does not find the kinds of a
// CustomResourceDefinition until it has read that. With the reflector's back-off that is about six seconds.
const refusedFor = 4

// refusal records that the API server denies a kind: it does not exist, or it is forbidden. While the API server is
// only unavailable, nothing is known.
type refusal struct {
	changed func()
	// builtIn is set for a kind of Kubernetes itself: from its start the API server knows whether it has the kind.
	builtIn bool

	mu    sync.Mutex
	times int
	text  string
}

// watched returns an error handler for a watch that records refusals and then calls next.
func (r *refusal) watched(next cache.WatchErrorHandlerWithContext) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, from *cache.Reflector, err error) {
		r.record(err)
		next(ctx, from, err)
	}
}

func (r *refusal) record(err error) {
	r.mu.Lock()
	before := r.text
	switch {
	case r.builtIn && apierrors.IsNotFound(err):
		r.text = err.Error()
	case !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err):
		r.times = 0
	default:
		if r.times++; r.times >= refusedFor {
			r.text = err.Error()
		}
	}
	changed := r.text != before
	r.mu.Unlock()
	if changed {
		r.changed()
	}
}

// why returns the API server's message, empty if it has not refused.
func (r *refusal) why() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text
}

// Refused returns the API server's message about each optional kind that it refuses. An older Kubernetes without a
// built-in kind refuses nothing.
func (s *Source) Refused() (messages []string) {
	for _, o := range s.optional {
		if why := o.refused.why(); why != "" && !o.refused.builtIn && !o.synced() {
			messages = append(messages, why)
		}
	}
	return messages
}

// lazySecrets are the Secrets of BGPPeers. They are not read before a BGPPeer references one.
type lazySecrets struct {
	optionalKind
	namespace string
	informer  cache.SharedIndexInformer

	needed chan struct{}
	once   sync.Once
}

// secretsState is the read state of the Secrets.
type secretsState struct {
	namespace string
	// unread is set while the API server has not responded; there is no request before they are needed.
	unread bool
	// refused is the API server's message if it refuses.
	refused string
}

// need starts reading the Secrets.
func (l *lazySecrets) need() {
	if l != nil {
		l.once.Do(func() { close(l.needed) })
	}
}

// isNeeded reports whether a BGPPeer references a Secret. need is called before such a peer is put.
func (l *lazySecrets) isNeeded() bool {
	if l == nil {
		return false
	}
	select {
	case <-l.needed:
		return true
	default:
		return false
	}
}

func (l *lazySecrets) state() secretsState {
	if l == nil {
		return secretsState{}
	}
	if l.synced() {
		return secretsState{namespace: l.namespace}
	}
	refused := l.refused.why()
	return secretsState{namespace: l.namespace, unread: refused == "", refused: refused}
}

// run reads the Secrets when they are needed, and triggers the loop when they are in.
func (l *lazySecrets) run(ctx context.Context, trigger func()) {
	if l == nil {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-l.needed:
	}
	var wg sync.WaitGroup
	wg.Go(func() { l.informer.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), l.synced) {
		trigger()
	}
	wg.Wait()
}
