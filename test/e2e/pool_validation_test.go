package e2e

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// addressCases are lists of spec.addresses. The refusal must contain field and message; without a field the list is
// accepted.
var addressCases = []struct {
	name      string
	addresses []string
	field     string
	message   string
}{
	{"no list", nil, "spec.addresses", ""},
	{"empty list", []string{}, "spec.addresses", "at least 1 items"},
	{"empty entry", []string{""}, "spec.addresses[0]", ""},
	{"not an address", []string{"192.0.2.0/28", "example"}, "spec.addresses[1]", "write it like"},
	{"octet too large", []string{"192.0.2.256"}, "spec.addresses[0]", "write it like"},
	{"three octets", []string{"192.0.2"}, "spec.addresses[0]", "write it like"},
	{"leading zero", []string{"192.0.2.010"}, "spec.addresses[0]", "write it like"},
	{"prefix too long", []string{"192.0.2.0/33"}, "spec.addresses[0]", "write it like"},
	{"IPv6 prefix too long", []string{"2001:db8::/129"}, "spec.addresses[0]", "write it like"},
	{"negative prefix", []string{"192.0.2.0/-1"}, "spec.addresses[0]", "write it like"},
	{"two dashes", []string{"192.0.2.1-192.0.2.2-192.0.2.3"}, "spec.addresses[0]", "write it like"},
	{"open range", []string{"192.0.2.1-"}, "spec.addresses[0]", "write it like"},
	{"CIDR in a range", []string{"192.0.2.0/28-192.0.2.20"}, "spec.addresses[0]", "write it like"},
	{"comma in an entry", []string{"192.0.2.1,192.0.2.2"}, "spec.addresses[0]", "write it like"},
	{"space before", []string{" 192.0.2.1"}, "spec.addresses[0]", "write it like"},
	{"zone", []string{"2001:db8::1%eth0"}, "spec.addresses[0]", "write it like"},
	{"IPv4-mapped", []string{"::ffff:192.0.2.1"}, "spec.addresses[0]", "write it like"},
	{"IPv4-mapped CIDR", []string{"::ffff:192.0.2.0/120"}, "spec.addresses[0]", "write it like"},
	{"host bits", []string{"192.0.2.1/28"}, "spec.addresses[0]", "host bits"},
	{"IPv6 host bits", []string{"2001:db8::1/64"}, "spec.addresses[0]", "host bits"},
	{"everything", []string{"0.0.0.0/0"}, "spec.addresses[0]", "every address there is"},
	{"everything IPv6", []string{"::/0"}, "spec.addresses[0]", "every address there is"},
	{"families mixed in a range", []string{"192.0.2.1-2001:db8::1"}, "spec.addresses[0]", "different families"},
	{"loopback", []string{"127.0.0.1"}, "spec.addresses[0]", "loopback"},
	{"IPv6 loopback", []string{"::1"}, "spec.addresses[0]", "loopback"},
	{"link-local", []string{"169.254.7.0/24"}, "spec.addresses[0]", "link-local"},
	{"IPv6 link-local", []string{"fe80::1"}, "spec.addresses[0]", "link-local"},
	{"multicast", []string{"224.0.0.1-224.0.0.9"}, "spec.addresses[0]", "multicast"},
	{"range into multicast", []string{"223.255.255.0-224.0.0.0"}, "spec.addresses[0]", "multicast"},
	{"IPv6 multicast", []string{"ff02::/64"}, "spec.addresses[0]", "multicast"},
	{"unspecified", []string{"0.0.0.0"}, "spec.addresses[0]", "unspecified"},
	{"IPv6 unspecified", []string{"::"}, "spec.addresses[0]", "unspecified"},
	{"broadcast", []string{"255.255.255.255"}, "spec.addresses[0]", "broadcast"},
	{"twice", []string{"192.0.2.1", "192.0.2.1"}, "spec.addresses", "twice"},
	{"overlap of a CIDR and an address", []string{"192.0.2.0/28", "192.0.2.15"}, "spec.addresses", "overlap"},
	{"the same written otherwise", []string{"192.0.2.1", "192.0.2.1/32"}, "spec.addresses", "overlap"},
	{"reversed", []string{"192.0.2.20-192.0.2.10"}, "spec.addresses", "ends before it begins"},
	{"overlap of ranges", []string{"192.0.2.1-192.0.2.9", "192.0.2.9-192.0.2.20"}, "spec.addresses", "overlaps another entry"},
	{"range around a CIDR", []string{"192.0.2.0-192.0.2.63", "192.0.2.16/28"}, "spec.addresses", "overlaps another entry"},
	{"loopback within", []string{"126.0.0.0/7"}, "spec.addresses[0]", "loopback"},
	{"range over loopback", []string{"126.0.0.0-128.0.0.0"}, "spec.addresses[0]", "loopback"},
	{"class E", []string{"240.0.0.0/4"}, "spec.addresses[0]", "broadcast"},
	{"this network", []string{"0.1.2.0/24"}, "spec.addresses[0]", "unspecified"},
	{"IPv6 CIDR in a CIDR", []string{"2001:db8::/64", "2001:db8::/80"}, "spec.addresses", "overlaps another entry"},
	{"IPv6 address in a CIDR", []string{"2001:db8::1", "2001:db8::/64"}, "spec.addresses", "overlaps another entry"},

	{name: "CIDR", addresses: []string{"192.0.2.0/28"}},
	{name: "one address as CIDR", addresses: []string{"192.0.2.1/32", "2001:db8::1/128"}},
	{name: "range", addresses: []string{"192.0.2.10-192.0.2.20"}},
	{name: "range of one", addresses: []string{"192.0.2.10-192.0.2.10"}},
	{name: "range over an octet", addresses: []string{"192.0.2.250-192.0.3.2"}},
	{name: "spaces around the dash", addresses: []string{"192.0.2.10 - 192.0.2.20"}},
	{name: "IPv6 range", addresses: []string{"2001:db8::a-2001:DB8::10"}},
	{name: "IPv6 range over groups", addresses: []string{"2001:db8::ffff-2001:db8::1:0"}},
	{name: "IPv6 range with other texts", addresses: []string{"2001:db8::0:1-2001:db8::2", "2001:db8:1:0:0::5-2001:db8:1::6", "2001:db8:2::1:2-2001:DB8:2:0::1:0:0"}},
	{name: "bare addresses", addresses: []string{"192.0.2.1", "2001:db8::1"}},
	{name: "neighbors", addresses: []string{"192.0.2.0/28", "192.0.2.16-192.0.2.31", "192.0.2.32", "2001:db8::/64", "2001:db8:0:1::/64"}},
	{name: "next to loopback", addresses: []string{"126.255.255.255", "128.0.0.0"}},
	{name: "next to link-local", addresses: []string{"169.253.255.255", "169.255.0.0/24"}},
	{name: "below multicast", addresses: []string{"223.255.255.0/24"}},
	{name: "as many IPv4 ranges as may be", addresses: many("203.%d.113.100 - 203.%d.113.200")},
	{name: "as many IPv6 CIDRs as may be", addresses: many("2001:db8:aaaa:bbbb:cccc:dddd:%d:0/112")},
	{name: "as many IPv6 ranges as may be", addresses: many("2001:db8:aaaa:bbbb:cccc:dddd:%d:0001 - 2001:db8:aaaa:bbbb:cccc:dddd:%d:ffff")},
	{"too many", append(many("192.0.2.%d"), "192.0.2.200"), "spec.addresses", "at most 128"},
	{name: "the last octet 255 and 0", addresses: []string{"192.0.2.255", "192.0.2.0"}},
}

// conditionCases are lists that the API server accepts. ironlb-ccm refuses them, in the condition Ready: CEL cannot
// state them in a line.
var conditionCases = []struct {
	name      string
	addresses []string
	message   string
}{
	{"reversed IPv6", []string{"2001:db8::A0-2001:db8::9f"}, "ends before it begins"},
	{"reversed IPv6 in an early group", []string{"2001:db8:2::1-2001:db8:1::ffff"}, "ends before it begins"},
	{"reversed IPv6 by a group more", []string{"2001:db8::1:0-2001:db8::ff"}, "ends before it begins"},
	{"reversed IPv6 written out", []string{"2001:db8:0:0:0:0:a:b - 2001:db8:0:0:0:0:9:c"}, "ends before it begins"},
	{"IPv6 range over link-local", []string{"2001:db8::-fec0::"}, "link-local"},
	{"overlap of IPv6 ranges", []string{"2001:db8::1-2001:db8::9", "2001:db8::9-2001:db8::20"}, "overlap"},
}

// many returns 128 entries, the maximum of a pool: the rules must stay within the API server's cost budget.
func many(format string) []string {
	var out []string
	for i := range 128 {
		out = append(out, strings.ReplaceAll(format, "%d", fmt.Sprint(i)))
	}
	return out
}

// fieldCases are other fields.
var fieldCases = []struct {
	name    string
	object  client.Object
	field   string
	message string
}{
	{"negative priority", poolWith(func(s *v1alpha1.IPAddressPoolSpec) { s.ServiceAllocation = &v1alpha1.ServiceAllocation{Priority: -1} }),
		"spec.serviceAllocation.priority", "greater than or equal to 0"},
	{"negative quota", poolWith(func(s *v1alpha1.IPAddressPoolSpec) { n := int64(-1); s.NamespaceQuota = &n }),
		"spec.namespaceQuota", "greater than or equal to 0"},
	{"negative reuseAfter", poolWith(func(s *v1alpha1.IPAddressPoolSpec) { s.ReuseAfter = &metav1.Duration{Duration: -time.Second} }),
		"spec.reuseAfter", "negative"},
	{"namespace twice", poolWith(func(s *v1alpha1.IPAddressPoolSpec) {
		s.ServiceAllocation = &v1alpha1.ServiceAllocation{Namespaces: []string{"a", "a"}}
	}), "spec.serviceAllocation.namespaces[1]", "Duplicate"},
	{"empty namespace", poolWith(func(s *v1alpha1.IPAddressPoolSpec) { s.Sharing = &v1alpha1.Sharing{Namespaces: []string{""}} }),
		"spec.sharing.namespaces[0]", "at least 1"},
	{"sharing namespace twice", poolWith(func(s *v1alpha1.IPAddressPoolSpec) {
		s.Sharing = &v1alpha1.Sharing{Namespaces: []string{"a", "b", "a"}}
	}),
		"spec.sharing.namespaces[2]", "Duplicate"},
	{"empty allocation namespace", poolWith(func(s *v1alpha1.IPAddressPoolSpec) {
		s.ServiceAllocation = &v1alpha1.ServiceAllocation{Namespaces: []string{""}}
	}), "spec.serviceAllocation.namespaces[0]", "at least 1"},
	{"advertised pool twice", &v1alpha1.L2Advertisement{Spec: v1alpha1.L2AdvertisementSpec{IPAddressPools: []string{"a", "a"}}},
		"spec.ipAddressPools[1]", "Duplicate"},
	{"interface with a slash", advertisement("eth0/1"), "spec.interfaces[0]", "interface name"},
	{"interface with a space", advertisement("eth 0"), "spec.interfaces[0]", "interface name"},
	{"interface too long", advertisement("abcdefghijklmnop"), "spec.interfaces[0]", "15"},
	{"interface twice", advertisement("eth0", "eth0"), "spec.interfaces[1]", "Duplicate"},
	{"VirtualIP of a name", virtualIP("example"), "spec.addresses[0]", "not an address"},
	{"VirtualIP of a CIDR", virtualIP("192.0.2.1/32"), "spec.addresses[0]", "not an address"},
	{"VirtualIP of nothing", virtualIP(), "spec.addresses", "at least 1"},

	{name: "every field", object: poolWith(func(s *v1alpha1.IPAddressPoolSpec) {
		n, auto := int64(0), false
		s.AutoAssign, s.AvoidBuggyIPs, s.NamespaceQuota = &auto, true, &n
		s.ReuseAfter = &metav1.Duration{Duration: 90 * time.Second}
		s.ServiceAllocation = &v1alpha1.ServiceAllocation{
			Namespaces: []string{"a", "b"}, NamespaceSelectors: []metav1.LabelSelector{{}},
			ServiceSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"app": "web"}}},
		}
		s.Sharing = &v1alpha1.Sharing{Namespaces: []string{"a", "b"}}
	})},
	{name: "priority, quota and reuseAfter 0", object: poolWith(func(s *v1alpha1.IPAddressPoolSpec) {
		n := int64(0)
		s.NamespaceQuota, s.ReuseAfter, s.ServiceAllocation = &n, &metav1.Duration{}, &v1alpha1.ServiceAllocation{}
	})},
	{name: "the highest priority number and quota", object: poolWith(func(s *v1alpha1.IPAddressPoolSpec) {
		n := int64(math.MaxInt64)
		s.NamespaceQuota, s.ServiceAllocation = &n, &v1alpha1.ServiceAllocation{Priority: math.MaxInt32}
	})},
	{name: "interfaces", object: advertisement("eth0", "enp3s0f1.1234", "br-lan", "abcdefghijklmno")},
	{name: "VirtualIP", object: virtualIP("192.0.2.1", "2001:db8::1")},
}

func poolWith(change func(*v1alpha1.IPAddressPoolSpec)) client.Object {
	p := &v1alpha1.IPAddressPool{Spec: v1alpha1.IPAddressPoolSpec{Addresses: []string{"192.0.2.0/28"}}}
	change(&p.Spec)
	return p
}

func advertisement(interfaces ...string) client.Object {
	return &v1alpha1.L2Advertisement{Spec: v1alpha1.L2AdvertisementSpec{Interfaces: interfaces}}
}

func virtualIP(addresses ...string) client.Object {
	return &v1alpha1.VirtualIP{Spec: v1alpha1.VirtualIPSpec{Addresses: append([]string{}, addresses...), Services: []v1alpha1.ServiceReference{{Namespace: "a", Name: "b"}}}}
}

// testPoolValidation posts valid and invalid objects to the API server, without storing them. Each refusal must name
// the field and the error.
func testPoolValidation(t *testing.T, c client.Client) {
	for _, tc := range addressCases {
		t.Run(tc.name, func(t *testing.T) {
			obj := &v1alpha1.IPAddressPool{Spec: v1alpha1.IPAddressPoolSpec{Addresses: tc.addresses}}
			checkCreate(t, c, obj, tc.field, tc.message)
			// The controller parses the entries with this function; it must agree with the CRD.
			if _, err := pools.ParseRanges(tc.addresses); (err != nil) != (tc.field != "") && len(tc.addresses) <= 128 {
				t.Errorf("ParseRanges: got %v", err)
			}
		})
	}
	for _, tc := range conditionCases {
		t.Run(tc.name, func(t *testing.T) {
			checkCreate(t, c, &v1alpha1.IPAddressPool{Spec: v1alpha1.IPAddressPoolSpec{Addresses: tc.addresses}}, "", "")
			if _, err := pools.ParseRanges(tc.addresses); err == nil || !strings.Contains(err.Error(), tc.message) {
				t.Errorf("ParseRanges: got %v, want %q", err, tc.message)
			}
		})
	}
	for _, tc := range fieldCases {
		t.Run(tc.name, func(t *testing.T) { checkCreate(t, c, tc.object, tc.field, tc.message) })
	}
}

func checkCreate(t *testing.T, c client.Client, tmpl client.Object, field, message string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	obj := tmpl.DeepCopyObject().(client.Object)
	obj.SetName("validation")
	err := c.Create(ctx, obj, client.DryRunAll)
	switch {
	case field == "" && err != nil:
		t.Errorf("refused: %v", err)
	case field == "":
	case err == nil:
		t.Error("accepted")
	case !apierrors.IsInvalid(err):
		t.Errorf("not refused as invalid: %v", err)
	case !strings.Contains(err.Error(), field+":") || !strings.Contains(err.Error(), message):
		t.Errorf("the refusal does not name %s with %q: %v", field, message, err)
	}
}
