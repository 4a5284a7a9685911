package ccm

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

func address(ip, pool string) pools.Address {
	return pools.Address{Addr: netip.MustParseAddr(ip), Pool: pool}
}

func TestUnits(t *testing.T) {
	leases := map[string][]pools.Address{
		"dual":    {address("2001:db8::1", "six"), address("192.0.2.7", "four")},
		"sharer":  {address("192.0.2.7", "four")},
		"alone":   {address("192.0.2.5", "four")},
		"six":     {address("2001:db8::2", "six")},
		"moving":  {address("192.0.2.9", "four")}, // the status still shows the old one, which alone holds now
		"pending": {},
	}
	services := []*v1.Service{
		serviceFor("dual", shows("192.0.2.7", "2001:db8::1")),
		serviceFor("sharer", shows("192.0.2.7")),
		serviceFor("alone", shows("192.0.2.5")),
		serviceFor("six", shows("2001:db8::2")),
		serviceFor("moving", shows("192.0.2.5")),
		serviceFor("pending"),
		serviceFor("foreign", shows("192.0.2.99")),
	}
	want := strings.TrimSpace(`
192.0.2.5: default/alone on 192.0.2.5
192.0.2.7: default/dual default/sharer on 192.0.2.7 2001:db8::1
2001-0db8-0000-0000-0000-0000-0000-0002: default/six on 2001:db8::2`)
	standing := func(svc *v1.Service) []pools.Address {
		return slices.DeleteFunc(slices.Clone(leases[svc.Name]), func(a pools.Address) bool { return !slices.Contains(ingressOf(svc), a.Addr) })
	}
	for range 3 {
		var got []string
		for _, u := range unitsOf(services, standing) {
			line := u.name() + ":"
			for _, s := range u.services {
				line += " " + s.String()
			}
			line += " on"
			for _, a := range u.addresses {
				line += " " + a.Addr.String()
			}
			got = append(got, line)
		}
		if g := strings.Join(got, "\n"); g != want {
			t.Fatalf("got:\n%s\nwant:\n%s", g, want)
		}
		slices.Reverse(services)
	}
}

func node(name string, change ...func(*v1.Node)) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
	for _, f := range change {
		f(n)
	}
	return n
}

func TestMayAnswer(t *testing.T) {
	label := func(v string) func(*v1.Node) {
		return func(n *v1.Node) { n.Labels[v1.LabelNodeExcludeBalancers] = v }
	}
	for name, c := range map[string]struct {
		node *v1.Node
		want bool
	}{
		"plain":            {node("n"), true},
		"not ready":        {node("n", func(n *v1.Node) { n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: "False"}} }), true},
		"cordoned":         {node("n", func(n *v1.Node) { n.Spec.Unschedulable = true }), true},
		"excluded":         {node("n", label("")), false},
		"excluded true":    {node("n", label("true")), false},
		"excluded false":   {node("n", label("false")), true},
		"excluded nothing": {node("n", label("perhaps")), false},
		"being deleted":    {node("n", func(n *v1.Node) { n.DeletionTimestamp = &metav1.Time{} }), false},
		"to be removed": {node("n", func(n *v1.Node) {
			n.Spec.Taints = []v1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: v1.TaintEffectNoSchedule}}
		}), false},
	} {
		if got := mayAnswer(c.node); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestEligible(t *testing.T) {
	on := func(names ...string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "name", Operator: "In", Values: names}}}
	}
	spec := func(pools []string, sel ...metav1.LabelSelector) v1alpha1.L2AdvertisementSpec {
		return v1alpha1.L2AdvertisementSpec{IPAddressPools: pools, NodeSelectors: sel}
	}
	for name, c := range map[string]struct {
		ads       []v1alpha1.L2AdvertisementSpec
		addresses []pools.Address
		want      string
	}{
		"none":            {nil, []pools.Address{address("192.0.2.1", "p")}, "false []"},
		"all":             {[]v1alpha1.L2AdvertisementSpec{spec(nil)}, []pools.Address{address("192.0.2.1", "p")}, "true [a b c]"},
		"another pool":    {[]v1alpha1.L2AdvertisementSpec{spec([]string{"q"})}, []pools.Address{address("192.0.2.1", "p")}, "false []"},
		"either selector": {[]v1alpha1.L2AdvertisementSpec{spec(nil, on("a"), on("c"))}, []pools.Address{address("192.0.2.1", "p")}, "true [a c]"},
		"either object":   {[]v1alpha1.L2AdvertisementSpec{spec(nil, on("b")), spec([]string{"p"}, on("a"))}, []pools.Address{address("192.0.2.1", "p")}, "true [a b]"},
		"no node":         {[]v1alpha1.L2AdvertisementSpec{spec(nil, on("x"))}, []pools.Address{address("192.0.2.1", "p")}, "true []"},
		"bad selector": {[]v1alpha1.L2AdvertisementSpec{spec(nil, metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "name", Operator: "Like"}}})},
			[]pools.Address{address("192.0.2.1", "p")}, "true []"},
		"both addresses": {[]v1alpha1.L2AdvertisementSpec{spec([]string{"p"}, on("a", "b")), spec([]string{"q"}, on("b", "c"))},
			[]pools.Address{address("192.0.2.1", "p"), address("2001:db8::1", "q")}, "true [b]"},
	} {
		var ads []advertisement
		for _, s := range c.ads {
			ad, _ := advertisementOf(&v1alpha1.L2Advertisement{Spec: s})
			ads = append(ads, ad)
		}
		m := newMatcher(ads, []*v1.Node{node("c"), node("a"), node("b"),
			node("x", func(n *v1.Node) { n.Labels[v1.LabelNodeExcludeBalancers] = "" })})
		for range 2 { // the second answer comes from what the first one kept
			if got := fmt.Sprint(m.advertised(c.addresses[0].Pool), m.eligible(c.addresses)); got != c.want {
				t.Errorf("%s: got %s, want %s", name, got, c.want)
			}
		}
	}
}
