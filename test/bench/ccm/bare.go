package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/ccm/rig"
)

const (
	bareNamespace = "bench-bare"
	bareFinalizer = "service.kubernetes.io/load-balancer-cleanup"
)

// generator makes writes as ironlb-ccm's account.
type generator struct {
	r     *rig.Rig
	kinds client.Client // of IronLB's own group
}

// bare repeats ironlb-ccm's average writes for each Service, as fast as the API server accepts them. It returns the
// times of the creates and of the deletes, each with all its writes.
func bare(ctx context.Context, r *rig.Rig, n int, class *string, created, deleted rig.Writes) (create, remove time.Duration, err error) {
	sch := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(sch); err != nil {
		return 0, 0, err
	}
	kinds, err := client.New(r.Rest, client.Options{Scheme: sch})
	if err != nil {
		return 0, 0, err
	}
	g := &generator{r: r, kinds: kinds}
	if err := r.Namespace(ctx, bareNamespace); err != nil {
		return 0, 0, err
	}
	services := r.Kube.CoreV1().Services(bareNamespace)
	r.Progress("bare generator: %d Services are created", n)
	create, err = g.measure(ctx, n, created, false, func(ctx context.Context, i int) (*v1.Service, error) {
		return services.Create(ctx, rig.Service(bareNamespace, serviceName(i), class), metav1.CreateOptions{})
	})
	if err != nil {
		return 0, 0, fmt.Errorf("create: %w", err)
	}
	r.Progress("bare generator: %d Services are deleted", n)
	remove, err = g.measure(ctx, n, deleted, true, func(ctx context.Context, i int) (*v1.Service, error) {
		svc := rig.Service(bareNamespace, serviceName(i), class)
		return svc, services.Delete(ctx, svc.Name, metav1.DeleteOptions{})
	})
	if err != nil {
		return 0, 0, fmt.Errorf("delete: %w", err)
	}
	return create, remove, nil
}

func (g *generator) measure(ctx context.Context, n int, writes rig.Writes, last bool, do func(context.Context, int) (*v1.Service, error)) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, limit(n))
	defer cancel()
	per := perService(writes, n)
	g.r.Progress("  writes of each: %v", per)
	start := time.Now()
	err := rig.Each(ctx, n, func(ctx context.Context, i int) error {
		svc, err := do(ctx, i)
		if err != nil {
			return err
		}
		for _, w := range per.Kinds() {
			for k := range per[w] {
				if err := g.write(ctx, w, svc, i, step{k, per[w], last}); err != nil {
					return fmt.Errorf("%s %s: %w", w.Verb, w.Resource, err)
				}
			}
		}
		return nil
	})
	return time.Since(start), err
}

// perService rounds the average; occasional writes are dropped.
func perService(writes rig.Writes, n int) rig.Writes {
	per := rig.Writes{}
	for w, count := range writes {
		if each := int(math.Round(float64(count) / float64(n))); each > 0 {
			per[w] = each
		}
	}
	return per
}

// step is the k-th of the writes of one kind; last marks the Service's deletion.
type step struct {
	k, of int
	last  bool
}

// write makes one write for the i-th Service.
func (g *generator) write(ctx context.Context, w rig.Write, svc *v1.Service, i int, s step) error {
	address := address(i)
	vip := &v1alpha1.VirtualIP{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("bare-%04d", i)},
		Spec: v1alpha1.VirtualIPSpec{
			Addresses: []string{address},
			Services:  []v1alpha1.ServiceReference{{Namespace: svc.Namespace, Name: svc.Name}},
			Nodes:     []string{"node1", "node2", "node3"},
		},
	}
	switch w {
	case rig.Write{Verb: "patch", Resource: "services/status"}:
		patch, err := json.Marshal(statusPatch(address, s))
		if err != nil {
			return err
		}
		_, err = g.r.Account.CoreV1().Services(svc.Namespace).Patch(ctx, svc.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	case rig.Write{Verb: "create", Resource: "events"}:
		_, err := g.r.Account.CoreV1().Events(svc.Namespace).Create(ctx, event(svc, address, s), metav1.CreateOptions{})
		return err
	case rig.Write{Verb: "create", Resource: "virtualips"}:
		return g.kinds.Create(ctx, vip)
	case rig.Write{Verb: "delete", Resource: "virtualips"}:
		return g.kinds.Delete(ctx, vip)
	}
	return fmt.Errorf("the bare generator does not know how to repeat this: teach it in bare.go")
}

func address(i int) string {
	a := netip.MustParseAddr("2001:db8:2::").As16()
	a[14], a[15] = byte(i>>8), byte(i)
	return netip.AddrFrom16(a).String()
}

// statusPatch changes something in each step. On creation the first adds the finalizer, the last the address; on
// deletion the last removes the finalizer.
func statusPatch(address string, s step) map[string]any {
	metadata := map[string]any{"annotations": map[string]any{"bench/step": fmt.Sprint(s.k, s.last)}}
	patch := map[string]any{"metadata": metadata}
	final := s.k == s.of-1
	switch {
	case s.last && final:
		metadata["$deleteFromPrimitiveList/finalizers"] = []string{bareFinalizer}
	case !s.last && s.k == 0:
		metadata["finalizers"] = []string{bareFinalizer}
	}
	if !s.last && final {
		metadata["annotations"] = map[string]any{v1alpha1.AnnotationAllocatedFrom: "bench"}
		patch["status"] = map[string]any{
			"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": address, "ipMode": "Proxy"}}},
			"conditions": []metav1.Condition{{
				Type: "ironlb.io/Allocated", Status: metav1.ConditionTrue, Reason: "Allocated",
				Message: "Allocated " + address + " from pool bench", LastTransitionTime: metav1.Now(),
			}},
		}
	}
	return patch
}

func event(svc *v1.Service, address string, s step) *v1.Event {
	now := metav1.Now()
	return &v1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, GenerateName: svc.Name + "."},
		InvolvedObject: v1.ObjectReference{
			Kind: "Service", APIVersion: "v1", Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID, ResourceVersion: svc.ResourceVersion,
		},
		Reason: "Allocated", Message: fmt.Sprintf("Allocated %s now (%d)", address, s.k),
		Source: v1.EventSource{Component: "ironlb-ccm"}, Type: v1.EventTypeNormal, Count: 1, FirstTimestamp: now, LastTimestamp: now,
	}
}
