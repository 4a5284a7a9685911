package allocation

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/controllers/service"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	klog "k8s.io/klog/v2"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	ironwatch "github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/eventually"
)

// startServices runs cloud-provider's own service controller on a Cloud, with one pool of one address. The API is
// client-go's fake, the controller is the real one.
func startServices(ctx context.Context, t *testing.T, workers int, objects ...runtime.Object) (*fake.Clientset, *record.FakeRecorder) {
	return startObserved(ctx, t, workers, func(c balancerCloud) cloudprovider.Interface { return c }, objects...)
}

// balancerCloud supports load balancers only.
type balancerCloud struct {
	cloudprovider.Interface
	lb *LoadBalancer
}

func (c balancerCloud) LoadBalancer() (cloudprovider.LoadBalancer, bool) { return c.lb, true }

func (c balancerCloud) ProviderName() string { return "test" }

func (c balancerCloud) HasClusterID() bool { return true }

// startObserved is startServices with a Cloud that the test can inspect.
func startObserved(
	ctx context.Context, t *testing.T, workers int, observe func(balancerCloud) cloudprovider.Interface,
	objects ...runtime.Object,
) (*fake.Clientset, *record.FakeRecorder) {
	api := fake.NewClientset(objects...)
	core := informers.NewSharedInformerFactory(api, 0)
	events := record.NewFakeRecorder(100)
	c := New(Config{
		Log: slog.New(slog.DiscardHandler), Core: core, Events: events, Scope: defaults, API: api.CoreV1(), Workers: workers,
	})
	r, err := pools.ParseRanges([]string{"203.0.113.4"})
	if err != nil {
		t.Fatal(err)
	}
	cloud := observe(balancerCloud{lb: &LoadBalancer{c.registrar}})
	controller, err := newServiceController(cloud, api, c.requeuer, core.Core().V1().Nodes(), "")
	if err != nil {
		t.Fatal(err)
	}
	c.Ledger.cached = nil // no handler reports what Services show
	deleted := cache.ResourceEventHandlerFuncs{DeleteFunc: c.divergence.handler(ctx).OnDelete}
	if _, err := core.Core().V1().Services().Informer().AddEventHandler(deleted); err != nil {
		t.Fatal(err)
	}
	startInformers(ctx, t, api, core, "services", "nodes")
	go controller.Run(ctx, workers, controllersmetrics.NewControllerManagerMetrics("test"))
	c.Ledger.SetPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
	recorded, err := c.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c.Ledger.Adopt(recorded)
	c.requeuer.Start(ctx)
	return api, events
}

// startInformers returns when the resources are listed and watched. client-go's fake, unlike an API server, does not
// replay events since the list to a new watch: nothing may change between the two.
func startInformers(ctx context.Context, t *testing.T, api *fake.Clientset, core informers.SharedInformerFactory, resources ...string) {
	t.Helper()
	watches := make(chan string, 100)
	api.PrependWatchReactor("*", func(a k8stesting.Action) (bool, watch.Interface, error) {
		w, err := api.Tracker().Watch(a.GetResource(), a.GetNamespace(), a.(k8stesting.WatchActionImpl).ListOptions)
		if err == nil {
			watches <- a.GetResource().Resource
		}
		return true, w, err
	})
	core.Start(ctx.Done())
	core.WaitForCacheSync(ctx.Done())
	limit := time.After(20 * time.Second)
	for missing := resources; len(missing) > 0; {
		select {
		case resource := <-watches:
			missing = slices.DeleteFunc(missing, func(r string) bool { return r == resource })
		case <-limit:
			t.Fatalf("not watched after 20 s: %v", missing)
		}
	}
}

// TestServiceController: a waiting Service is not written to, then served in its order, and nothing is done twice.
func TestServiceController(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	api, events := startServices(ctx, t, 2, ccmtest.Node("n"))

	services := api.CoreV1().Services("default")
	ccmtest.Create(t, services, ccmtest.ServiceFor("s1"))
	await(t, services, "s1 has the address", func(all map[string]v1.Service) bool { return ccmtest.IP(all["s1"]) == "203.0.113.4" })
	awaitEvent(t, events, "Normal Allocated Allocated 203.0.113.4 from pool web")
	ccmtest.Create(t, services, ccmtest.ServiceFor("s2"))
	awaitEvent(t, events, "Warning PoolExhausted default/s2")

	if _, err := services.Patch(ctx, "s1", types.MergePatchType, []byte(`{"spec":{"type":"ClusterIP"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	all := await(t, services, "s2 has the address", func(all map[string]v1.Service) bool { return ccmtest.IP(all["s2"]) == "203.0.113.4" })
	await(t, services, "s1 is clean", func(all map[string]v1.Service) bool {
		s1 := all["s1"]
		return ccmtest.IP(s1) == "" && len(s1.Finalizers) == 0 && s1.Annotations[v1alpha1.AnnotationAllocatedFrom] == ""
	})
	if got := all["s2"].Annotations[v1alpha1.AnnotationAllocatedFrom]; got != "web" {
		t.Errorf("s2 is allocated from %q", got)
	}
	awaitEvent(t, events, "Normal Allocated")

	// A label matters to pools, not to the controller: it must pass. The echo of IronLB's annotation must not.
	api.ClearActions()
	if _, err := services.Patch(ctx, "s2", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	ccmtest.Create(t, services, ccmtest.ServiceFor("s3"))
	awaitEvent(t, events, "Warning PoolExhausted default/s3")
	// s1's last write is late: with the fake the controller clears the status, with the real API server it does not.
	got := slices.DeleteFunc(writes(api), func(w string) bool { return w == "patch services/status s1" })
	if !slices.Equal(got, []string{"patch services s2", "create services s3", "patch services/status s3"}) {
		t.Errorf("wrote %q", got) // s3: finalizer and condition
	}
	if len(events.Events) > 0 {
		t.Errorf("unexpected Event: %q", <-events.Events)
	}
}

// nodesOf records the nodes that the service controller passes to the cloud.
type nodesOf struct {
	cloudprovider.LoadBalancer
	names chan []string
}

func (n nodesOf) EnsureLoadBalancer(
	_ context.Context, _ string, _ *v1.Service, all []*v1.Node,
) (*v1.LoadBalancerStatus, error) {
	var names []string
	for _, node := range all {
		names = append(names, node.Name)
	}
	slices.Sort(names)
	n.names <- names
	return &v1.LoadBalancerStatus{}, nil
}

// UpdateLoadBalancer may be called as well, for the last Nodes of the informer.
func (n nodesOf) UpdateLoadBalancer(context.Context, string, *v1.Service, []*v1.Node) error {
	return nil
}

type recordingCloud struct {
	balancerCloud
	nodes nodesOf
}

func (c recordingCloud) LoadBalancer() (cloudprovider.LoadBalancer, bool) { return c.nodes, true }

// TestExcludedAsKubernetes: the value of the exclude label counts as in Kubernetes since 1.34
// (kubernetes/kubernetes#131085), not only its presence: Kubernetes' own service controller and placement leave out the
// same nodes.
func TestExcludedAsKubernetes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var objects []runtime.Object
	var want []string
	for name, value := range map[string]string{
		"plain": "-", "empty": "", "true": "true", "false": "false", "zero": "0", "perhaps": "perhaps",
	} {
		n := ccmtest.Node(name, func(n *v1.Node) {
			n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
			if value != "-" {
				n.Labels[v1.LabelNodeExcludeBalancers] = value
			}
		})
		if ironwatch.ExclusionReason(n, false) == "" {
			want = append(want, name)
		}
		objects = append(objects, n)
	}
	slices.Sort(want)
	api := fake.NewClientset(objects...)
	core := informers.NewSharedInformerFactory(api, 0)
	cloud := recordingCloud{nodes: nodesOf{names: make(chan []string, 10)}}
	services, nodes := core.Core().V1().Services(), core.Core().V1().Nodes()
	controller, err := service.New(cloud, api, services, nodes, "", utilfeature.DefaultFeatureGate)
	if err != nil {
		t.Fatal(err)
	}
	startInformers(ctx, t, api, core, "services", "nodes")
	go controller.Run(ctx, 1, controllersmetrics.NewControllerManagerMetrics("test"))
	ccmtest.Create(t, api.CoreV1().Services("default"), ccmtest.ServiceFor("s1"))
	select {
	case got := <-cloud.nodes.names:
		if !slices.Equal(got, want) || !slices.Equal(got, []string{"false", "plain", "zero"}) {
			t.Errorf("the service controller takes %v, placement %v", got, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the service controller did not request a load balancer within 20 s")
	}
}

// logLines are the lines of a log.
type logLines struct {
	mu  sync.Mutex
	all []string
}

func (l *logLines) logger() logr.Logger {
	return funcr.New(func(_, line string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = append(l.all, line)
	}, funcr.Options{})
}

func (l *logLines) with(text string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.all), func(line string) bool { return !strings.Contains(line, text) })
}

// TestNoNodeIsNoWarning: with all nodes excluded the Service has its address. The service controller's own Warning and
// its Normal Events are neither in the API nor in the log; a failure of it is in both.
func TestNoNodeIsNoWarning(t *testing.T) {
	var log logLines
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), log.logger()))
	defer cancel()
	api, events := startServices(ctx, t, 1, ccmtest.Node("n", func(n *v1.Node) { n.Labels[v1.LabelNodeExcludeBalancers] = "" }))
	services := api.CoreV1().Services("default")
	ccmtest.Create(t, services, ccmtest.ServiceFor("s1"))
	awaitEvent(t, events, "Normal Allocated")
	api.PrependReactor("patch", "services", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("the API server is away")
	})
	ccmtest.Create(t, services, ccmtest.ServiceFor("s2"))
	var reasons []string
	eventually.True(t, 20*time.Second, "the failure is an Event and in the log", func() bool {
		all, err := api.CoreV1().Events("").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		reasons = nil
		for _, e := range all.Items {
			reasons = append(reasons, e.Reason)
		}
		return slices.Contains(reasons, "SyncLoadBalancerFailed") && len(log.with("SyncLoadBalancerFailed")) > 0
	})
	if slices.ContainsFunc(reasons, func(r string) bool { return r != "SyncLoadBalancerFailed" }) {
		t.Errorf("Events %v", reasons)
	}
	for _, line := range log.with("Event occurred") {
		if !strings.Contains(line, "SyncLoadBalancerFailed") {
			t.Errorf("logged: %s", line)
		}
	}
}

// TestRestartIsSilent: a Service that is as it should be gets no write and no Event, and is still cleaned up later.
func TestRestartIsSilent(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	final := func(s *v1.Service) {
		s.Finalizers, s.UID = []string{"service.kubernetes.io/load-balancer-cleanup"}, types.UID(s.Name)
	}
	allocated := func(status, reason, message string) func(*v1.Service) {
		return func(s *v1.Service) {
			s.Status.Conditions = append(s.Status.Conditions, metav1.Condition{Type: "ironlb.io/Allocated", Status: metav1.ConditionStatus(status), Reason: reason, Message: message})
		}
	}
	s1 := ccmtest.ServiceFor("s1", final, ccmtest.Shows("203.0.113.4"), ccmtest.Given("web"),
		allocated("True", "Allocated", "Allocated 203.0.113.4 from pool web"))
	s2 := ccmtest.ServiceFor("s2", final, allocated("False", "PoolExhausted",
		"default/s2 gets no IPv4 address: no address is free in pool web: add addresses to spec.addresses, or delete a Service"))
	api, events := startServices(ctx, t, 1, ccmtest.Node("n"), s1, s2)
	services := api.CoreV1().Services("default")
	ccmtest.Create(t, services, ccmtest.ServiceFor("s3"))
	awaitEvent(t, events, "Warning PoolExhausted default/s3") // one worker: the earlier ones have been processed
	if got := writes(api); !slices.Equal(got, []string{"create services s3", "patch services/status s3"}) {
		t.Errorf("wrote %q", got)
	}
	if _, err := services.Patch(ctx, "s1", types.MergePatchType, []byte(`{"spec":{"type":"ClusterIP"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, services, "s1 is clean and s2 has the address", func(all map[string]v1.Service) bool {
		return ccmtest.IP(all["s1"]) == "" && len(all["s1"].Finalizers) == 0 && ccmtest.IP(all["s2"]) == "203.0.113.4"
	})
	awaitEvent(t, events, "Normal Allocated Allocated 203.0.113.4")
}

// writes lists the writes to the API.
func writes(api *fake.Clientset) []string {
	var out []string
	for _, a := range api.Actions() {
		resource := a.GetResource().Resource
		if a.GetSubresource() != "" {
			resource += "/" + a.GetSubresource()
		}
		switch a := a.(type) {
		case k8stesting.PatchAction:
			out = append(out, "patch "+resource+" "+a.GetName())
		case k8stesting.CreateAction:
			name := "?"
			if o, err := meta.Accessor(a.GetObject()); err == nil {
				name = o.GetName()
			}
			out = append(out, "create "+resource+" "+name)
		}
	}
	return out
}

func await(t *testing.T, services corev1.ServiceInterface, what string, cond func(map[string]v1.Service) bool) map[string]v1.Service {
	t.Helper()
	var all map[string]v1.Service
	eventually.True(t, 20*time.Second, what, func() bool {
		list, err := services.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all = map[string]v1.Service{}
		for _, s := range list.Items {
			all[s.Name] = s
		}
		return cond(all)
	})
	return all
}

func awaitEvent(t *testing.T, events *record.FakeRecorder, want string) {
	t.Helper()
	select {
	case got := <-events.Events:
		if !strings.HasPrefix(got, want) {
			t.Fatalf("Event %q, want %q", got, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("no Event within 20 s: %q", want)
	}
}
