// Package metallb runs MetalLB and IronLB in one cluster, each with Services of its own.
package metallb

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubewatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/bench/metallb"
	"github.com/ironlb/ironlb/test/eventually"
	"github.com/ironlb/ironlb/test/lab"
)

var churn = flag.Duration("churn", 20*time.Second, "how long Services of both are created, changed and deleted")

var cluster *lab.Cluster

func TestMain(m *testing.M) {
	lab.Main(m, lab.Config{Nodes: 2, Kernel: lab.Native, Programs: metallb.Programs()}, func(_ context.Context, c *lab.Cluster) error {
		cluster = c
		return nil
	})
}

const (
	namespace = "default"
	patience  = 2 * time.Minute
	// pool of IronLB: MetalLB's pool is its first half.
	pool = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: lan}
spec: {addresses: [192.0.2.128/28], reuseAfter: %s}
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: lan}
spec: {ipAddressPools: [lan]}
`
	// More Services than addresses on each side: every address that becomes free is wanted by both.
	theirs, ours = 11, 12
)

var theirPool = netip.MustParsePrefix("192.0.2.128/29")

// TestChurn: the pool of IronLB contains that of MetalLB, which serves the Services without a class. Services of both
// are created, deleted, and changed to ClusterIP and back, and both pools are full. At no version of the API server's
// objects do two Services show one address. In the end MetalLB's Services are deleted, and IronLB assigns their
// addresses. MetalLB ignores Services of other classes, so its pool must be full while IronLB shares it, and
// reuseAfter must be longer than its reassignment takes.
func TestChurn(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), *churn+5*time.Minute)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	m := metallb.New(cluster, metallb.Config{
		Nodes: cluster.Nodes, Announcers: []string{cluster.Nodes[0].Name, cluster.Nodes[1].Name}, Pool: []string{theirPool.String()},
	})
	must(m.Install(ctx))
	must(m.StartController(ctx))
	for _, n := range cluster.Nodes {
		must(m.StartSpeaker(ctx, n))
	}
	defer func() { _ = m.Kill() }()
	for _, n := range cluster.Nodes {
		cluster.Await(t, patience, "MetalLB's speaker is ready", func(ctx context.Context) error { return m.Ready(ctx, n) })
	}

	w := watchServices(ctx, t)
	for i := range theirs {
		must(create(ctx, fmt.Sprint("theirs-", i), nil))
	}
	cluster.Await(t, patience, "MetalLB's pool is full", w.shows("theirs-", 8))
	_, err := cluster.StartCCM(ctx, "--leader-elect=false", "--only-class")
	must(err)
	must(cluster.StartSpeakers(ctx))
	must(cluster.ApplyYAML(ctx, fmt.Sprintf(pool, "30s")))
	class := ptr.To("ironlb.io/lb")
	for i := range ours {
		must(create(ctx, fmt.Sprint("ours-", i), class))
	}
	cluster.Await(t, patience, "IronLB assigns the other half", w.shows("ours-", 8))
	if c := condition(t); !strings.Contains(c, "192.0.2.128 (is in status.loadBalancer or spec.externalIPs of Service default/theirs-") {
		t.Errorf("condition Withheld of the pool: %q", c)
	}
	var tasks errgroup.Group
	end := time.Now().Add(*churn)
	for _, side := range []struct {
		prefix string
		n      int
		class  *string
	}{{"theirs-", theirs, nil}, {"ours-", ours, class}} {
		prefix, n, class := side.prefix, side.n, side.class
		tasks.Go(func() error {
			random := rand.New(rand.NewPCG(1, uint64(n)))
			for time.Now().Before(end) {
				err := change(ctx, fmt.Sprint(prefix, random.IntN(n)), class, random.IntN(3))
				if err == nil {
					err = cluster.Eventually(ctx, patience, "all addresses are assigned again", w.shows(prefix, 8))
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	must(tasks.Wait())

	// MetalLB's Services end; IronLB takes over their addresses.
	for i := range theirs {
		_ = cluster.Kube.CoreV1().Services(namespace).Delete(ctx, fmt.Sprint("theirs-", i), metav1.DeleteOptions{})
	}
	must(cluster.ApplyYAML(ctx, fmt.Sprintf(pool, "1s")))
	cluster.Await(t, patience, "IronLB assigns the addresses of MetalLB", w.shows("ours-", ours))
	events, assigned, twice := w.result()
	t.Logf("%v of churn: %d versions of Services, addresses assigned %v, twice %d", *churn, events, assigned, len(twice))
	for _, text := range twice {
		t.Error(text)
	}
	for prefix, n := range assigned {
		if n < 9 {
			t.Errorf("only %d addresses were assigned to Services %s*", n, prefix)
		}
	}
}

// create creates a Service.
func create(ctx context.Context, name string, class *string) error {
	_, err := cluster.Kube.CoreV1().Services(namespace).Create(ctx, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeLoadBalancer, LoadBalancerClass: class, Selector: map[string]string{"app": name}, Ports: []v1.ServicePort{{Port: 80}},
			IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
		},
	}, metav1.CreateOptions{})
	return err
}

// change replaces a Service by another one of its name, or makes it ClusterIP and a load balancer again.
func change(ctx context.Context, name string, class *string, how int) error {
	services := cluster.Kube.CoreV1().Services(namespace)
	if how > 0 {
		if err := services.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		for {
			err := create(ctx, name, class)
			if err == nil || !strings.Contains(err.Error(), "already exists") { // its finalizer is not removed yet
				return err
			}
		}
	}
	for _, spec := range []string{`{"type": "ClusterIP", "loadBalancerClass": null}`, fmt.Sprintf(`{"type": "LoadBalancer", "loadBalancerClass": %s}`, quoted(class))} {
		if _, err := services.Patch(ctx, name, types.MergePatchType, []byte(`{"spec": `+spec+`}`), metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func quoted(class *string) string {
	if class == nil {
		return "null"
	}
	return fmt.Sprintf("%q", *class)
}

// condition returns the message of the condition Withheld of the pool.
func condition(t *testing.T) (message string) {
	t.Helper()
	cluster.Await(t, patience, "the pool reports what is withheld", func(ctx context.Context) error {
		var p v1alpha1.IPAddressPool
		if err := cluster.Objects.Get(ctx, client.ObjectKey{Name: "lan"}, &p); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(p.Status.Conditions, "Withheld"); c != nil {
			message = c.Message
		}
		return eventually.Unless(message != "", "it has %+v", p.Status.Conditions)
	})
	return message
}

// watched compares every version of the Services in the order of the API server.
type watched struct {
	ask      chan func()
	shown    map[string][]string // by Service
	events   int
	assigned map[string]int
	twice    []string
}

func watchServices(ctx context.Context, t *testing.T) *watched {
	t.Helper()
	services := cluster.Kube.CoreV1().Services(namespace)
	list, err := services.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (kubewatch.Interface, error) {
			return services.Watch(ctx, o)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{ask: make(chan func()), shown: map[string][]string{}, assigned: map[string]int{}}
	go func() {
		for {
			select {
			case f := <-w.ask:
				f()
			case e, open := <-stream.ResultChan():
				if !open {
					return
				}
				w.event(e)
			}
		}
	}()
	return w
}

func (w *watched) event(e kubewatch.Event) {
	svc, ok := e.Object.(*v1.Service)
	if !ok {
		w.twice = append(w.twice, fmt.Sprintf("the watch has a gap: %v", e.Object))
		return
	}
	w.events++
	var now []string
	if e.Type != kubewatch.Deleted {
		for _, in := range svc.Status.LoadBalancer.Ingress {
			now = append(now, in.IP)
		}
	}
	before := w.shown[svc.Name]
	w.shown[svc.Name] = now
	for _, ip := range now {
		if slices.Contains(before, ip) {
			continue
		}
		w.assigned[strings.TrimRight(svc.Name, "0123456789")]++
		for other, has := range w.shown {
			if other != svc.Name && slices.Contains(has, ip) {
				w.twice = append(w.twice, fmt.Sprintf("%s is assigned to %s while %s shows it", ip, svc.Name, other))
			}
		}
	}
}

// call runs f between two events.
func (w *watched) call(f func()) {
	done := make(chan struct{})
	w.ask <- func() { f(); close(done) }
	<-done
}

// shows checks whether so many Services of the prefix show an address.
func (w *watched) shows(prefix string, want int) func(context.Context) error {
	return func(context.Context) error {
		n := 0
		w.call(func() {
			for name, has := range w.shown {
				if strings.HasPrefix(name, prefix) && len(has) > 0 {
					n++
				}
			}
		})
		return eventually.Unless(n >= want, "%d Services %s* show an address, want %d", n, prefix, want)
	}
}

func (w *watched) result() (events int, assigned map[string]int, twice []string) {
	w.call(func() { events, assigned, twice = w.events, maps.Clone(w.assigned), slices.Clone(w.twice) })
	return events, assigned, twice
}
