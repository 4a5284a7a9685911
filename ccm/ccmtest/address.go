package ccmtest

import (
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

func VIPOf(name string, conditions ...metav1.Condition) *v1alpha1.VirtualIP {
	v := &v1alpha1.VirtualIP{ObjectMeta: metav1.ObjectMeta{Name: name}}
	v.Spec.Addresses, v.Spec.Nodes = []string{name}, []string{"n1", "n2"}
	v.Spec.Services = []v1alpha1.ServiceReference{{Namespace: "default", Name: "web"}}
	for _, c := range conditions {
		c.LastTransitionTime = metav1.Unix(995, 0)
		v.Status.Conditions = append(v.Status.Conditions, c)
	}
	return v
}

func Keys(names ...string) (out []pools.ServiceKey) {
	for _, n := range names {
		out = append(out, pools.ServiceKey{Namespace: "default", Name: n})
	}
	return out
}

func Address(ip, pool string) pools.Address {
	return pools.Address{Addr: netip.MustParseAddr(ip), Pool: pool}
}
