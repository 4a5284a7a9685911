package virtualip

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/placement"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// TestAttached: the nodes that can answer for a unit have an interface for each of its addresses, by subnet or by name.
func TestAttached(t *testing.T) {
	var speakers []v1alpha1.SpeakerStatus
	for _, line := range []string{
		"a eth0=192.0.2.7/24,2001:db8::/64 eth1=", "b eth0=192.0.2.0/24 cni0=10.0.1.0/24", "c eth1=2001:db8::/64", "d eth0=", "e",
	} {
		f := strings.Fields(line)
		s := v1alpha1.SpeakerStatus{}
		s.Name = f[0]
		for _, in := range f[1:] {
			name, subnets, _ := strings.Cut(in, "=")
			one := v1alpha1.InterfaceStatus{Name: name, Up: true}
			one.Subnets = strings.FieldsFunc(subnets, func(r rune) bool { return r == ',' })
			s.Status.Interfaces = append(s.Status.Interfaces, one)
		}
		speakers = append(speakers, s)
	}
	a := newAttached(speakers)
	v4, v6 := ccmtest.Address("192.0.2.10", "web"), ccmtest.Address("2001:db8::10", "web6")
	other := ccmtest.Address("203.0.113.1", "other")
	for _, c := range []struct {
		addresses []pools.Address
		who       match
		want      string
	}{
		{[]pools.Address{v4}, match{bySubnet: true}, "a b"},
		{[]pools.Address{v6}, match{bySubnet: true}, "a c"},
		{[]pools.Address{v4, v6}, match{bySubnet: true}, "a"},
		{[]pools.Address{other}, match{bySubnet: true}, ""},
		{[]pools.Address{other}, match{interfaces: []string{"eth1"}}, "a c"},
		{[]pools.Address{v4, v6}, match{interfaces: []string{"eth1"}}, "a c"},
		{[]pools.Address{v4}, match{interfaces: []string{"eth1"}, bySubnet: true}, "a b c"},
	} {
		got := a.able(c.addresses, c.who)
		text := ""
		if got != nil {
			text = strings.Join(slices.Sorted(maps.Keys(*got)), " ")
		}
		if text != c.want {
			t.Errorf("%v by %+v: %q, want %q", c.addresses, c.who, text, c.want)
		}
		if again := a.able(c.addresses, c.who); again != got {
			t.Errorf("%v: another set for the same nodes", c.addresses)
		}
	}
	if none := (&attached{}).able([]pools.Address{v4}, match{bySubnet: true}); none != nil {
		t.Errorf("%v without reports", *none)
	}
}

// TestManyNodes: with many nodes a list has few of them, those on the subnet of the address first. A node that joins
// changes none. A unit with policy Local lists all nodes.
func TestManyNodes(t *testing.T) {
	var names []string
	for i := range 60 {
		names = append(names, fmt.Sprintf("n%02d", i))
	}
	f := settledPlacerFixture(t, strings.Join(names, " "), 20)
	var speakers []v1alpha1.SpeakerStatus
	for i, name := range names {
		s := v1alpha1.SpeakerStatus{}
		s.Name = name
		if i%10 == 0 {
			s.Status.Interfaces = []v1alpha1.InterfaceStatus{{Name: "eth0", Subnets: []string{"192.0.2.0/24"}, Up: true}}
		}
		speakers = append(speakers, s)
	}
	f.placer.attached = newAttached(speakers)
	f.pass(exactAfter)
	f.elect()
	f.pass(exactAfter)
	for name, vip := range f.seen() {
		on := 0
		for _, n := range vip.Spec.Nodes {
			if strings.HasSuffix(n, "0") {
				on++
			}
		}
		if len(vip.Spec.Nodes) != placement.Most || on != 6 {
			t.Errorf("VirtualIP %s lists %d nodes, %d of 6 on the subnet", name, len(vip.Spec.Nodes), on)
		}
	}
	f.join("new")
	if wrote := f.pass(exactAfter); wrote != "" {
		t.Errorf("a join: %s", wrote)
	}
	f.units[3].local = true
	f.pass(exactAfter)
	if list := f.seen()[f.units[3].name()].Spec.Nodes; len(list) != 61 {
		t.Errorf("a VirtualIP with policy Local lists %d nodes", len(list))
	}
}
