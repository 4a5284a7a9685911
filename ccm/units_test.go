package ccm

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/pools"
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
		"moving":  {address("192.0.2.9", "four")}, // the status still shows the old one, the only one that holds now
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
