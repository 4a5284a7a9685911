// Package ccm is the implementation of ironlb-ccm: the cloud provider "ironlb" for cloud-provider's controller manager,
// and the wiring of its controllers.
//
// Cloud is the cloudprovider.Interface; a load balancer is its only sub-interface. The controllers are in packages,
// each with the part of the model that it owns:
//
//   - allocation: Service -> claim -> address; servicerecord is the form of both on a Service
//   - addresspool: IPAddressPools to the allocator, and their status
//   - virtualip: which nodes may announce an address, in which order; package placement decides it
//   - bgpstatus: the status of BGPPeers and BGPAdvertisements
//   - warnings: what the author of a Service should know
//   - install: the subcommands release and crds
//
// What they need of one another they declare as interfaces, and Cloud passes it in. The Cloud itself owns the leader's
// Lease, the gate that ends all writes before it is released, and the record of outages of the API server.
package ccm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	cloudconfig "k8s.io/cloud-provider/app/config"
	"k8s.io/controller-manager/pkg/healthz"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/addresspool"
	"github.com/ironlb/ironlb/ccm/allocation"
	"github.com/ironlb/ironlb/ccm/loop"
	"github.com/ironlb/ironlb/ccm/warnings"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Cloud is the cloudprovider.Interface. It supports only load balancers.
type Cloud struct {
	log      *slog.Logger
	events   record.EventRecorder
	core     informers.SharedInformerFactory
	kinds    watch.Kinds
	client   client.Client // reads from kinds
	settings Settings
	services *allocation.Controllers
	liveness *loop.Liveness
	leads    atomic.Bool
	lease    *lease // nil without leader election
	outage   *outage
	pools    atomic.Pointer[addresspool.Status] // once started
	// unserved and endpoints are shared by the BGP controller and the publisher of warnings.
	unserved  *warnings.Unserved
	endpoints *watch.EndpointSlices
	fatal     func(error)
}

// checked adds the loops' liveness to /healthz of the secure port.
type checked struct {
	name     string
	liveness *loop.Liveness
}

// Name is the name of the process, of its Lease and of the source of its Events.
const Name = v1alpha1.ControllerName

// ProviderName is the value of --cloud-provider.
const ProviderName = "ironlb"

// New prepares the cloud and starts nothing. fatal is called when a task fails permanently; it should end the process.
func New(config *cloudconfig.CompletedConfig, settings Settings, log *slog.Logger, fatal func(error)) (*Cloud, error) {
	if err := settings.Validate(); err != nil {
		return nil, err
	}
	sch := runtime.NewScheme() // for the objects of Events and for IronLB's kinds
	if err := v1.AddToScheme(sch); err != nil {
		return nil, fmt.Errorf("registering the Kubernetes kinds: %w", err)
	}
	if err := v1alpha1.AddToScheme(sch); err != nil {
		return nil, fmt.Errorf("registering the kinds of %s: %w", v1alpha1.GroupVersion, err)
	}
	apiOutage := &outage{}
	config.Kubeconfig.Wrap(apiOutage.wrap) // before all clients, inside the gate
	lease, err := leaseOf(config, log)     // first: it puts the gate before all other clients
	if err != nil {
		return nil, err
	}
	kinds, cl, err := ownKinds(config.Kubeconfig, sch)
	if err != nil {
		return nil, err
	}
	boundEvents(config)
	if files := settings.awaited; files.CertFile != "" && config.SecureServing != nil {
		log.Error("certificate of the metrics not found: until it is, clients cannot verify theirs",
			"--tls-cert-file", files.CertFile, "--tls-private-key-file", files.KeyFile)
		config.SecureServing.Cert = &awaitedCertificate{CertKeyContentProvider: config.SecureServing.Cert, files: files, log: log}
	}
	c := &Cloud{
		log:      log,
		settings: settings,
		events:   config.EventBroadcaster.NewRecorder(sch, v1.EventSource{Component: Name}),
		core:     config.SharedInformers,
		kinds:    watch.Kinds{Cache: kinds},
		client:   cl,
		lease:    lease,
		outage:   apiOutage,
		liveness: loop.NewLiveness(),
		fatal:    fatal,
		unserved: warnings.NewUnserved(),
	}
	c.endpoints = watch.NewEndpointSlices(log, c.core)
	c.services = allocation.New(allocation.Config{
		Log: log, Events: c.events, Scope: &c.settings.Scope, Core: c.core, API: config.ClientBuilder.ClientOrDie(Name).CoreV1(),
		Workers: int(config.ComponentConfig.ServiceController.ConcurrentServiceSyncs),
	})
	return c, nil
}

// eventsKept is the number of Events kept to count repeated ones and to limit those per object. An Event is made per
// change of outcome, so few repeat; client-go's 4096 are several MB after a burst.
const eventsKept = 512

// boundEvents installs a broadcaster of Events with a smaller cache. The app starts and stops it.
func boundEvents(config *cloudconfig.CompletedConfig) {
	config.EventBroadcaster.Shutdown()
	config.EventBroadcaster = record.NewBroadcaster(record.WithCorrelatorOptions(record.CorrelatorOptions{LRUCacheSize: eventsKept}))
	config.EventRecorder = config.EventBroadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: Name})
}

// leaseOf returns the leader's Lease. It puts the gate in front of every client created from the configuration later.
func leaseOf(config *cloudconfig.CompletedConfig, log *slog.Logger) (*lease, error) {
	election := config.ComponentConfig.Generic.LeaderElection
	if !election.LeaderElect {
		return nil, nil
	}
	cl, err := coordination.NewForConfig(rest.AddUserAgent(config.Kubeconfig, Name))
	if err != nil {
		return nil, fmt.Errorf("preparing the client of the Lease: %w", err)
	}
	l := &lease{
		log: log, client: cl.Leases(election.ResourceNamespace), name: election.ResourceName, gate: newGate(),
	}
	config.Kubeconfig.Wrap(l.gate.wrap)
	return l, nil
}

// ownKinds returns a cache of the kinds of IronLB's API group and a client that reads from it.
func ownKinds(base *rest.Config, sch *runtime.Scheme) (ctrlcache.Cache, client.Client, error) {
	config := rest.CopyConfig(base)
	config.ContentType, config.AcceptContentTypes = "", "" // custom resources are not served as protobuf
	config = rest.AddUserAgent(config, Name)
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, fmt.Errorf("preparing the connection to the API server: %w", err)
	}
	// The kinds are static: no discovery.
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{
		"IPAddressPool", "L2Advertisement", "VirtualIP", "SpeakerStatus", "BGPPeer", "BGPAdvertisement", "BFDProfile", "Community",
	} {
		mapper.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	kinds, err := ctrlcache.New(config, ctrlcache.Options{
		HTTPClient: httpClient, Scheme: sch, Mapper: mapper, DefaultTransform: ctrlcache.TransformStripManagedFields(),
		ByObject: map[client.Object]ctrlcache.ByObject{&v1alpha1.SpeakerStatus{}: {Transform: watch.Speakers}},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("preparing the cache of %s: %w", v1alpha1.GroupVersion, err)
	}
	cl, err := client.New(config, client.Options{
		HTTPClient: httpClient, Scheme: sch, Mapper: mapper, Cache: &client.CacheOptions{Reader: kinds},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("preparing the client of %s: %w", v1alpha1.GroupVersion, err)
	}
	return kinds, cl, nil
}

// shutdownTimeout is the time limit for the last writes and the release of the Lease at the end.
const shutdownTimeout = 5 * time.Second

// Shutdown writes pending pool status and releases the Lease. Call it once, at the end of the process: nothing is
// written after it.
func (c *Cloud) Shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if p := c.pools.Load(); p != nil && c.services.Ledger.Adopted() {
		last, cancel := context.WithTimeout(ctx, shutdownTimeout/2) // the Lease is released in any case
		defer cancel()
		if err := p.Write(last); err != nil {
			c.log.Warn("pool status not written at shutdown: the addresses freed last have no cool-down", "error", err)
		}
	}
	if c.lease == nil {
		return
	}
	if err := c.lease.release(ctx); err != nil {
		c.log.Warn("the other replica waits until the Lease expires", "error", err)
	}
}

// Initialize starts the cache of IronLB's kinds. The app calls it after leader election.
func (c *Cloud) Initialize(_ cloudprovider.ControllerClientBuilder, stop <-chan struct{}) {
	c.leads.Store(true)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-stop
		cancel()
	}()
	if c.lease != nil {
		go c.lease.lead(ctx)
	}
	go func() {
		if err := c.kinds.Start(ctx); err != nil {
			c.log.Error("the cache of pools and advertisements failed", "error", err)
		}
	}()
}

// SetInformers trims the objects that the informers keep, before they start.
func (c *Cloud) SetInformers(f informers.SharedInformerFactory) {
	for _, err := range []error{
		f.Core().V1().Services().Informer().SetTransform(watch.Objects),
		f.Core().V1().Nodes().Informer().SetTransform(watch.Objects),
		f.Core().V1().Namespaces().Informer().SetTransform(watch.Objects),
	} {
		if err != nil { // already started: only wastes allocations
			c.log.Warn("cannot trim the cache", "error", err)
		}
	}
}

var _ cache.TransformFunc = watch.Objects

// LoadBalancer returns the only supported sub-interface.
func (c *Cloud) LoadBalancer() (cloudprovider.LoadBalancer, bool) {
	return c.services.LoadBalancer(), true
}

// Instances is not supported: nodes are not managed here.
func (c *Cloud) Instances() (cloudprovider.Instances, bool) { return nil, false }

// InstancesV2 is not supported.
func (c *Cloud) InstancesV2() (cloudprovider.InstancesV2, bool) { return nil, false }

// Zones is not supported.
func (c *Cloud) Zones() (cloudprovider.Zones, bool) { return nil, false }

// Clusters is not supported.
func (c *Cloud) Clusters() (cloudprovider.Clusters, bool) { return nil, false }

// Routes is not supported.
func (c *Cloud) Routes() (cloudprovider.Routes, bool) { return nil, false }

// ProviderName returns the value of --cloud-provider.
func (c *Cloud) ProviderName() string { return ProviderName }

// HasClusterID is always true: without a cloud there is nothing to distinguish.
func (c *Cloud) HasClusterID() bool { return true }

// Name returns the name of the controller.
func (c checked) Name() string { return c.name }

// HealthChecker is called by the app.
func (c checked) HealthChecker() healthz.UnnamedHealthChecker { return c.liveness }

// ready returns why the process is not ready. A replica that does not lead is ready while another one does.
func (c *Cloud) ready(ctx context.Context) error {
	switch {
	case c.services.Ledger.Adopted():
		return nil
	case c.leads.Load():
		return errors.New("leading, but recorded addresses are not adopted yet")
	case c.lease == nil:
		return errors.New("not started yet")
	}
	obj, err := c.lease.client.Get(ctx, c.lease.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading Lease %s: %w", c.lease.name, err)
	}
	s := obj.Spec
	if s.HolderIdentity == nil || *s.HolderIdentity == "" || s.RenewTime == nil || s.LeaseDurationSeconds == nil ||
		time.Since(s.RenewTime.Time) > time.Duration(*s.LeaseDurationSeconds)*time.Second {
		return errors.New("no replica leads")
	}
	return nil
}

// ServeProbes serves /livez and /readyz at the address until ctx ends. It returns once it listens.
func (c *Cloud) ServeProbes(ctx context.Context, address string) error {
	answer := func(check func(*http.Request) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if err := check(r); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			_, _ = fmt.Fprintln(w, "ok")
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", answer(c.liveness.Check))
	mux.HandleFunc("GET /readyz", answer(func(r *http.Request) error { return c.ready(r.Context()) }))
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("serving probes (--probe-bind-address): %w", err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			c.fatal(fmt.Errorf("serving probes: %w", err))
		}
	}()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return nil
}
