package metallb

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

const (
	legacyGroup = "metallb.universe.tf"
	allocated   = "ip-allocated-from-pool" // MetalLB's own record, in both groups
)

// read are MetalLB's annotations that IronLB reads, by their name in MetalLB's group, with IronLB's own.
var read = map[string]string{
	servicerecord.MetallbPool:       v1alpha1.AnnotationPool,
	servicerecord.MetallbAddresses:  v1alpha1.AnnotationAddresses,
	servicerecord.MetallbSharingKey: servicerecord.AnnotationSharingKey,
}

// services converts the Services that MetalLB serves, and the annotations of those that it may serve.
func (r *Result) services(all []corev1.Service, class string) error {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b corev1.Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	on := map[netip.Addr][]*corev1.Service{} // by address
	for i := range sorted {
		svc := &sorted[i]
		if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		r.annotations(svc)
		if !r.serves(svc, class) {
			continue
		}
		r.class(svc, class)
		if svc.Spec.LoadBalancerIP != "" {
			r.service(Kept, svc, "spec.loadBalancerIP", "")
		}
		s := Service{Namespace: svc.Namespace, Name: svc.Name, Class: ptr.Deref(svc.Spec.LoadBalancerClass, "")}
		for _, addr := range servicerecord.IngressOf(svc) {
			s.Addresses = append(s.Addresses, addr.String())
			on[addr] = append(on[addr], svc)
			pool := PoolOf(r.Objects, addr)
			if pool == nil {
				r.service(Refused, svc, "status.loadBalancer", fmt.Sprintf("%s is in no pool, so IronLB does not serve it: add it to an IPAddressPool", addr))
				continue
			}
			r.service(Kept, svc, "status.loadBalancer", fmt.Sprintf("%s, in IPAddressPool %s", addr, pool.GetName()))
		}
		r.Services = append(r.Services, s)
	}
	for _, addr := range slices.SortedFunc(maps.Keys(on), netip.Addr.Compare) {
		if err := r.sharers(addr, on[addr]); err != nil {
			return err
		}
	}
	return nil
}

// serves reports whether MetalLB serves the Service: it recorded the pool, or the address is one of its own. It serves
// either Services without a class or those of the class that it was started with.
func (r *Result) serves(svc *corev1.Service, class string) bool {
	shown := servicerecord.IngressOf(svc)
	recorded := svc.Annotations[Group+"/"+allocated] != "" || svc.Annotations[legacyGroup+"/"+allocated] != ""
	switch {
	case len(shown) == 0:
		return false
	case recorded:
		return true
	case svc.Spec.LoadBalancerClass != nil && *svc.Spec.LoadBalancerClass == class || servicerecord.Recorded(svc):
		return false // IronLB's own
	}
	return svc.Spec.LoadBalancerClass == nil && slices.ContainsFunc(shown, func(a netip.Addr) bool {
		return PoolOf(r.Objects, a) != nil
	})
}

func (r *Result) service(outcome Outcome, svc *corev1.Service, field, detail string) {
	r.Rows = append(r.Rows, Row{outcome, kindService, svc.Namespace, svc.Name, field, detail})
}

// class states which setting makes IronLB serve the Service. The class of a Service cannot be changed.
func (r *Result) class(svc *corev1.Service, class string) {
	switch c := svc.Spec.LoadBalancerClass; {
	case c == nil:
	case *c == class:
		r.service(Kept, svc, "spec.loadBalancerClass", "")
	default:
		r.service(Changed, svc, "spec.loadBalancerClass", fmt.Sprintf("the Service keeps %s: set the chart value loadBalancerClass to it", *c))
	}
}

// annotations converts MetalLB's annotations. Those of its first group get an equivalent of IronLB, which MetalLB
// ignores; the annotations of the Service itself stay.
func (r *Result) annotations(svc *corev1.Service) {
	add := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(svc.Annotations)) {
		prefix, name, _ := strings.Cut(key, "/")
		current := Group + "/" + name
		field, value := fmt.Sprintf("metadata.annotations[%s]", key), svc.Annotations[key]
		_, has := svc.Annotations[current]
		switch instead := read[current]; {
		case prefix != Group && prefix != legacyGroup:
		case name == allocated:
			r.service(Changed, svc, field, "not read: IronLB has a record of its own")
		case instead == "":
			r.service(Refused, svc, field, "neither MetalLB nor IronLB reads an annotation of this name: remove it")
		case prefix == Group:
			r.service(Kept, svc, field, "")
		case has:
			r.service(Changed, svc, field, fmt.Sprintf("not read: %s has precedence, as with MetalLB", current))
		default:
			add[instead] = cmp.Or(svc.Annotations[instead], value)
			r.service(Changed, svc, field, fmt.Sprintf("%s: %s is added", instead, add[instead]))
		}
	}
	if len(add) > 0 {
		r.Annotations = append(r.Annotations, Annotations{types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}, add})
	}
}

// sharers lets Services of several namespaces share an address, as they do with MetalLB.
func (r *Result) sharers(addr netip.Addr, on []*corev1.Service) error {
	namespaces := map[string]bool{}
	for _, svc := range on {
		namespaces[svc.Namespace] = true
	}
	pool := PoolOf(r.Objects, addr)
	if len(namespaces) < 2 || pool == nil {
		return nil
	}
	had, _, err := unstructured.NestedStringSlice(pool.Object, "spec", "sharing", "namespaces")
	if err != nil {
		return err
	}
	added := slices.DeleteFunc(slices.Sorted(maps.Keys(namespaces)), func(ns string) bool { return slices.Contains(had, ns) })
	if len(added) > 0 {
		if err := unstructured.SetNestedStringSlice(pool.Object, slices.Sorted(slices.Values(append(had, added...))), "spec", "sharing", "namespaces"); err != nil {
			return err
		}
		r.object(Changed, kindPool, pool.GetName(), "spec.sharing.namespaces",
			fmt.Sprintf("%s added: Services of these namespaces share %s", strings.Join(added, ", "), addr))
	}
	for _, svc := range on {
		if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			r.service(Changed, svc, "spec.externalTrafficPolicy", fmt.Sprintf("the Service keeps %s with the Warning SharingRefused, as it shares it "+
				"with another namespace: only nodes with Pods of each Service on it announce it", addr))
		}
	}
	return nil
}
