package virtualip

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
)

func TestUnits(t *testing.T) {
	leases := map[string][]pools.Address{
		"dual":    {ccmtest.Address("2001:db8::1", "six"), ccmtest.Address("192.0.2.7", "four")},
		"sharer":  {ccmtest.Address("192.0.2.7", "four")},
		"alone":   {ccmtest.Address("192.0.2.5", "four")},
		"six":     {ccmtest.Address("2001:db8::2", "six")},
		"moving":  {ccmtest.Address("192.0.2.9", "four")}, // the status still shows the old one, the only one that holds now
		"pending": {},
	}
	services := []*v1.Service{
		ccmtest.ServiceFor("dual", ccmtest.Shows("192.0.2.7", "2001:db8::1")),
		ccmtest.ServiceFor("sharer", ccmtest.Shows("192.0.2.7")),
		ccmtest.ServiceFor("alone", ccmtest.Shows("192.0.2.5")),
		ccmtest.ServiceFor("six", ccmtest.Shows("2001:db8::2")),
		ccmtest.ServiceFor("moving", ccmtest.Shows("192.0.2.5")),
		ccmtest.ServiceFor("pending"),
		ccmtest.ServiceFor("foreign", ccmtest.Shows("192.0.2.99")),
	}
	want := strings.TrimSpace(`
192.0.2.5: default/alone on 192.0.2.5
192.0.2.7: default/dual default/sharer on 192.0.2.7 2001:db8::1
2001-0db8-0000-0000-0000-0000-0000-0002: default/six on 2001:db8::2`)
	standing := func(svc *v1.Service) []pools.Address {
		return slices.DeleteFunc(slices.Clone(leases[svc.Name]), func(a pools.Address) bool { return !slices.Contains(servicerecord.IngressOf(svc), a.Addr) })
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
