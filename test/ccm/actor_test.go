package ccm

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/ccm/rig"
)

// Pools of the crash test: any Service may use main; small is full most of the time and used only on request.
const (
	poolMain  = "main"
	poolSmall = "small"
)

var entries = map[string][]netip.Prefix{
	poolMain:  {netip.MustParsePrefix("192.0.2.0/26"), netip.MustParsePrefix("2001:db8:1::/122")},
	poolSmall: {netip.MustParsePrefix("192.0.2.128/31"), netip.MustParsePrefix("2001:db8:2::/127")},
}

func inPool(pool string, a netip.Addr) bool {
	return slices.ContainsFunc(entries[pool], func(p netip.Prefix) bool { return p.Contains(a) })
}

func inAnyPool(address string) bool {
	a := netip.MustParseAddr(address)
	return inPool(poolMain, a) || inPool(poolSmall, a)
}

// addresses lists the addresses of a pool.
func addresses(pool string) (all []netip.Addr) {
	for _, p := range entries[pool] {
		for a := p.Addr(); p.Contains(a); a = a.Next() {
			all = append(all, a)
		}
	}
	return all
}

// poolYAML returns the manifest of a pool whose entries are cut to 1/2^cut.
func poolYAML(pool string, cut int) string {
	var list []string
	for _, p := range entries[pool] {
		list = append(list, fmt.Sprintf("%q", netip.PrefixFrom(p.Addr(), p.Bits()+cut)))
	}
	return fmt.Sprintf("apiVersion: ironlb.io/v1alpha1\nkind: IPAddressPool\nmetadata: {name: %s}\nspec: {addresses: [%s], autoAssign: %t}\n---\n",
		pool, strings.Join(list, ", "), pool == poolMain)
}

const slots = 10 // maximum number of an actor's Services

// actor changes Services of its own namespace at random.
type actor struct {
	rig       *rig.Rig
	rand      *rand.Rand
	namespace string
	shared    netip.Addr // requested by Services with the sharing key
}

// pace is the time between two changes of an actor.
const pace = 30 * time.Millisecond

// run returns when ctx ends, or on the first error that the changes cannot explain.
func (a *actor) run(ctx context.Context) error {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := a.change(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil, apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err): // no such Service yet, or it is still being deleted
		default:
			return fmt.Errorf("in namespace %s: %w", a.namespace, err)
		}
	}
}

// change makes one change of one Service.
func (a *actor) change(ctx context.Context) error {
	i := a.rand.IntN(slots)
	name := fmt.Sprintf("s%d", i)
	services := a.rig.Kube.CoreV1().Services(a.namespace)
	svc, err := services.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err := services.Create(ctx, a.fresh(name, i), metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	patch := map[string]any{}
	switch n := a.rand.IntN(100); {
	case n < 20:
		return services.Delete(ctx, name, metav1.DeleteOptions{})
	case n < 45:
		patch["spec"] = map[string]any{"type": "ClusterIP", "loadBalancerClass": nil, "allocateLoadBalancerNodePorts": nil}
		if svc.Spec.Type == v1.ServiceTypeClusterIP {
			patch["spec"] = map[string]any{"type": "LoadBalancer", "loadBalancerClass": a.class(), "allocateLoadBalancerNodePorts": false}
		}
	case n < 75 && len(svc.Spec.IPFamilies) == 1:
		patch["metadata"] = asking(a.address(svc.Spec.IPFamilies[0]), "")
	case n < 85:
		patch["metadata"] = asking("", []string{poolMain, poolSmall}[a.rand.IntN(2)])
	default:
		patch["metadata"] = asking("", "")
	}
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = services.Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{})
	return err
}

// fresh returns a new Service.
func (a *actor) fresh(name string, i int) *v1.Service {
	svc := rig.Service(a.namespace, name, a.class())
	svc.Spec.Ports[0].Port = int32(8000 + i)
	svc.Annotations = map[string]string{}
	switch a.rand.IntN(4) {
	case 0:
		svc.Spec.IPFamilies = []v1.IPFamily{v1.IPv4Protocol}
	case 1: // IPv6, the default
	case 2:
		svc.Spec.IPFamilies, svc.Spec.IPFamilyPolicy = nil, ptr.To(v1.IPFamilyPolicyPreferDualStack)
	case 3:
		svc.Spec.IPFamilies, svc.Spec.IPFamilyPolicy = nil, ptr.To(v1.IPFamilyPolicyRequireDualStack)
	}
	switch n := a.rand.IntN(10); {
	case n < 3:
		svc.Spec.IPFamilies, svc.Spec.IPFamilyPolicy = []v1.IPFamily{v1.IPv4Protocol}, ptr.To(v1.IPFamilyPolicySingleStack)
		svc.Annotations[annotationSharingKey] = "common"
		svc.Annotations[v1alpha1.AnnotationAddresses] = a.shared.String()
	case n < 5:
		svc.Annotations[v1alpha1.AnnotationPool] = poolSmall
	}
	return svc
}

// class returns a random class of a Service, of one of the two controllers.
func (a *actor) class() *string {
	if a.rand.IntN(2) == 0 {
		return nil
	}
	return ptr.To("ironlb.io/lb")
}

// address returns a random address to request; it is rarely outside of all pools.
func (a *actor) address(f v1.IPFamily) string {
	all := append(addresses(poolMain), addresses(poolSmall)...)
	all = append(all, netip.MustParseAddr("192.0.2.200"), netip.MustParseAddr("2001:db8:3::1"))
	all = slices.DeleteFunc(all, func(x netip.Addr) bool { return x.Is4() != (f == v1.IPv4Protocol) })
	return all[a.rand.IntN(len(all))].String()
}

// asking returns metadata with the annotations; an empty one is removed.
func asking(addresses, pool string) map[string]any {
	annotations := map[string]any{v1alpha1.AnnotationAddresses: nil, v1alpha1.AnnotationPool: nil}
	if addresses != "" {
		annotations[v1alpha1.AnnotationAddresses] = addresses
	}
	if pool != "" {
		annotations[v1alpha1.AnnotationPool] = pool
	}
	return map[string]any{"annotations": annotations}
}

// changePools cuts and restores the pools at random until ctx ends.
func changePools(ctx context.Context, r *rig.Rig, rand *rand.Rand) error {
	tick := time.NewTicker(40 * pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := r.Apply(ctx, poolYAML(poolMain, rand.IntN(3))+poolYAML(poolSmall, rand.IntN(2))); err != nil && ctx.Err() == nil {
			return err
		}
	}
}
