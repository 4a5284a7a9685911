package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"
)

// Parallel is the number of clients of a load.
const Parallel = 64

// Each calls do for 0 to n-1, Parallel at a time, and returns the first error.
func Each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(Parallel)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// Service returns a load balancer for one IPv6 address, as cheap as possible for the API server: no selector, so no
// EndpointSlice, and no node ports, which are fewer than the Services here.
func Service(namespace, name string, class *string) *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1.ServiceSpec{
			Type:                          v1.ServiceTypeLoadBalancer,
			LoadBalancerClass:             class,
			AllocateLoadBalancerNodePorts: ptr.To(false),
			IPFamilyPolicy:                ptr.To(v1.IPFamilyPolicySingleStack),
			IPFamilies:                    []v1.IPFamily{v1.IPv6Protocol},
			Ports:                         []v1.ServicePort{{Name: "http", Protocol: v1.ProtocolTCP, Port: 80}},
		},
	}
}

// Follow returns the existing Services of a namespace, and then every change of them in the API server's order. The
// channel closes when ctx ends, or after an event of type watch.Error.
func (r *Rig) Follow(ctx context.Context, namespace string) ([]v1.Service, <-chan watch.Event, error) {
	services := r.Kube.CoreV1().Services(namespace)
	list, err := services.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("list Services: %w", err)
	}
	w, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return services.Watch(ctx, o)
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("watch Services: %w", err)
	}
	return list.Items, w.ResultChan(), nil
}

// Await reads events until done has returned true for n different Services, and returns the time.
func Await(ctx context.Context, events <-chan watch.Event, n int, done func(watch.EventType, *v1.Service) bool) (time.Time, error) {
	seen := map[string]bool{}
	for len(seen) < n {
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%d of %d Services: %w", len(seen), n, context.Cause(ctx))
		case e, open := <-events:
			svc, ok := e.Object.(*v1.Service)
			if !open || !ok {
				return time.Time{}, fmt.Errorf("the watch of Services ended at %d of %d: %v", len(seen), n, e.Object)
			}
			if done(e.Type, svc) {
				seen[svc.Name] = true
			}
		}
	}
	return time.Now(), nil
}

// Served reports whether the Service has an address.
func Served(_ watch.EventType, svc *v1.Service) bool { return len(svc.Status.LoadBalancer.Ingress) > 0 }

// Gone reports whether the Service was deleted.
func Gone(t watch.EventType, _ *v1.Service) bool { return t == watch.Deleted }

// Namespace creates a namespace.
func (r *Rig) Namespace(ctx context.Context, name string) error {
	_, err := r.Kube.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	return err
}

// AddNodes creates Nodes node1 to nodeN that are Ready, without machines behind them.
func (r *Rig) AddNodes(ctx context.Context, n int) error {
	for i := range n {
		if err := r.AddNode(ctx, fmt.Sprintf("node%d", i+1)); err != nil {
			return err
		}
	}
	return nil
}

// AddNode creates one Node.
func (r *Rig) AddNode(ctx context.Context, name string) error {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := r.Kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return err
	}
	return r.SetReady(ctx, name, v1.ConditionTrue)
}

// SetReady sets a Node's Ready condition.
func (r *Rig) SetReady(ctx context.Context, name string, status v1.ConditionStatus) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []v1.NodeCondition{{
		Type: v1.NodeReady, Status: status, Reason: "Test", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
	}}}})
	if err != nil {
		return err
	}
	_, err = r.Kube.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// Serve creates n Services in a namespace and waits until each has an address.
func (r *Rig) Serve(ctx context.Context, namespace string, n int, class *string) error {
	_, events, err := r.Follow(ctx, namespace)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		failed <- Each(ctx, n, func(ctx context.Context, i int) error {
			_, err := r.Kube.CoreV1().Services(namespace).Create(ctx, Service(namespace, fmt.Sprintf("s%04d", i), class), metav1.CreateOptions{})
			return err
		})
	}()
	if _, err := Await(ctx, events, n, Served); err != nil {
		return err
	}
	return <-failed
}
