package virtualip

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/ccm/advertisement"
	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// TestMatch checks the eligible nodes of a unit with an address of pool p on Service a, unless the case sets others.
func TestMatch(t *testing.T) {
	in := func(key string, values ...string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: "In", Values: values}}}
	}
	type spec = v1alpha1.L2AdvertisementSpec
	type selectors = []metav1.LabelSelector
	on := func(names ...string) selectors { return selectors{in("name", names...)} }
	prefer := func(weight int32, names ...string) v1alpha1.PreferredNodeSelector {
		return v1alpha1.PreferredNodeSelector{Weight: weight, Preference: in("name", names...)}
	}
	p, q := ccmtest.Address("192.0.2.1", "p"), ccmtest.Address("2001:db8::1", "q")
	for name, c := range map[string]struct {
		ads  []spec
		unit unit
		want string // addresses, nodes with weights, reason
	}{
		"none":               {nil, unit{}, "[] []"},
		"all":                {[]spec{{}}, unit{}, "[192.0.2.1] [a b c]"},
		"another pool":       {[]spec{{IPAddressPools: []string{"q"}}}, unit{}, "[] []"},
		"pool by label":      {[]spec{{IPAddressPoolSelectors: selectors{in("tier", "gold")}}}, unit{}, "[192.0.2.1] [a b c]"},
		"other pool's label": {[]spec{{IPAddressPoolSelectors: selectors{in("tier", "iron")}}}, unit{}, "[] []"},
		"name or label":      {[]spec{{IPAddressPools: []string{"p"}, IPAddressPoolSelectors: selectors{in("tier", "iron")}}}, unit{}, "[192.0.2.1] [a b c]"},
		"every pool":         {[]spec{{IPAddressPoolSelectors: selectors{{}}}}, unit{}, "[192.0.2.1] [a b c]"},
		"either selector":    {[]spec{{NodeSelectors: selectors{in("name", "a"), in("name", "c")}}}, unit{}, "[192.0.2.1] [a c]"},
		"either object":      {[]spec{{NodeSelectors: on("b")}, {IPAddressPools: []string{"p"}, NodeSelectors: on("a")}}, unit{}, "[192.0.2.1] [a b]"},
		"no node":            {[]spec{{NodeSelectors: on("y")}}, unit{}, "[192.0.2.1] [] NoNodeMatches"},
		"excluded":           {[]spec{{NodeSelectors: on("x")}}, unit{}, "[192.0.2.1] [] NodesExcluded"},
		"bad selector": {[]spec{{NodeSelectors: selectors{{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "name", Operator: "Like"}}}}}},
			unit{}, "[192.0.2.1] [] NoNodeMatches"},
		"both addresses": {[]spec{{IPAddressPools: []string{"p"}, NodeSelectors: on("a", "b")}, {IPAddressPools: []string{"q"}, NodeSelectors: on("b", "c")}},
			unit{addresses: []pools.Address{p, q}}, "[192.0.2.1 2001:db8::1] [b]"},
		"no common node": {[]spec{{IPAddressPools: []string{"p"}, NodeSelectors: on("a")}, {IPAddressPools: []string{"q"}, NodeSelectors: on("c")}},
			unit{addresses: []pools.Address{p, q}}, "[192.0.2.1 2001:db8::1] [] NoCommonNode"},
		"one address": {[]spec{{IPAddressPools: []string{"q"}}}, unit{addresses: []pools.Address{p, q}}, "[2001:db8::1] [a b c]"},

		"service":               {[]spec{{ServiceSelectors: selectors{in("app", "a")}}}, unit{}, "[192.0.2.1] [a b c]"},
		"other service":         {[]spec{{ServiceSelectors: selectors{in("app", "b")}}}, unit{}, "[] []"},
		"both services":         {[]spec{{ServiceSelectors: selectors{in("app", "a"), in("app", "b")}}}, unit{services: ccmtest.Keys("a", "b")}, "[192.0.2.1] [a b c]"},
		"one of two services":   {[]spec{{ServiceSelectors: selectors{in("app", "a")}}}, unit{services: ccmtest.Keys("a", "b")}, "[192.0.2.1] [] ServicesNotCovered"},
		"each by its own":       {[]spec{{ServiceSelectors: selectors{in("app", "a")}}, {ServiceSelectors: selectors{in("app", "b")}}}, unit{services: ccmtest.Keys("a", "b")}, "[192.0.2.1] [] ServicesNotCovered"},
		"only what is for both": {[]spec{{ServiceSelectors: selectors{in("app", "a")}}, {NodeSelectors: on("c")}}, unit{services: ccmtest.Keys("a", "b")}, "[192.0.2.1] [c]"},

		"preferred": {[]spec{{PreferredNodeSelectors: []v1alpha1.PreferredNodeSelector{prefer(10, "a", "b"), prefer(5, "b")}}}, unit{}, "[192.0.2.1] [a=10 b=15 c]"},
		"preferred by the greatest": {[]spec{{PreferredNodeSelectors: []v1alpha1.PreferredNodeSelector{prefer(10, "a")}},
			{NodeSelectors: on("a"), PreferredNodeSelectors: []v1alpha1.PreferredNodeSelector{prefer(7, "a"), prefer(2, "a", "c")}}}, unit{}, "[192.0.2.1] [a=10 b c]"},
	} {
		var ads []advertisement.Selection
		for _, s := range c.ads {
			ad, _ := advertisement.OfL2(&v1alpha1.L2Advertisement{Spec: s})
			ads = append(ads, ad)
		}
		m := newMatcher(ads, []*v1.Node{ccmtest.Node("c"), ccmtest.Node("a"), ccmtest.Node("b"),
			ccmtest.Node("x", func(n *v1.Node) { n.Labels[v1.LabelNodeExcludeBalancers] = "" })}, false,
			func(pool string) map[string]string { return map[string]map[string]string{"p": {"tier": "gold"}}[pool] },
			func(s pools.ServiceKey) map[string]string { return map[string]string{"app": s.Name} })
		if c.unit.addresses == nil {
			c.unit.addresses = []pools.Address{p}
		}
		if c.unit.services == nil {
			c.unit.services = ccmtest.Keys("a")
		}
		for range 2 { // the second result comes from the cache of the first
			addresses, who := m.advertised(c.unit)
			var at, nodes []string
			for _, a := range addresses {
				at = append(at, a.Addr.String())
			}
			for _, n := range who.nodes {
				if who.weights != nil && (*who.weights)[n] > 0 {
					n += fmt.Sprintf("=%d", (*who.weights)[n])
				}
				nodes = append(nodes, n)
			}
			if got := strings.TrimSpace(fmt.Sprint(at, nodes, " ", who.reason)); got != c.want {
				t.Errorf("%s: got %s, want %s", name, got, c.want)
			}
			if (who.reason != "") != (who.message != "") {
				t.Errorf("%s: reason %q, message %q", name, who.reason, who.message)
			}
		}
	}
}

// TestInvalidSelectors: the error names every invalid field.
func TestInvalidSelectors(t *testing.T) {
	bad := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: "Like"}}}
	ad, err := advertisement.OfL2(&v1alpha1.L2Advertisement{Spec: v1alpha1.L2AdvertisementSpec{
		IPAddressPoolSelectors: []metav1.LabelSelector{bad}, ServiceSelectors: []metav1.LabelSelector{{}, bad}, NodeSelectors: []metav1.LabelSelector{bad},
		PreferredNodeSelectors: []v1alpha1.PreferredNodeSelector{{Weight: 1, Preference: bad}},
	}})
	for _, field := range []string{"ipAddressPoolSelectors[0]", "serviceSelectors[1]", "nodeSelectors[0]", "preferredNodeSelectors[0].preference"} {
		if err == nil || !strings.Contains(err.Error(), "spec."+field+`: "Like" is not a valid label selector operator`) {
			t.Errorf("%s is not named in: %v", field, err)
		}
	}
	zoned := ccmtest.Node("n", func(n *v1.Node) { n.Labels["zone"] = "a" })
	if ad.SelectsNode(zoned) || ad.Weight(zoned) > 0 || ad.SelectsPool("p", zoned.Labels) {
		t.Error("a selector that cannot be read matches")
	}
}
