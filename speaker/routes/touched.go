package routes

import (
	"net/netip"

	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// touchedAddresses records the present addresses of changed Services and returns the addresses to decide on.
func (p *Planner) touchedAddresses(v *view.View, touched view.Touched) map[netip.Addr]struct{} {
	out := map[netip.Addr]struct{}{}
	services, changed := p.plane.Changed()
	for key := range services {
		for _, addr := range p.addresses[key] {
			p.byAddr.Remove(addr, key)
			out[addr] = struct{}{}
		}
		var now []netip.Addr
		for _, a := range p.plane.Service(key).Addresses {
			if a.Kind == view.LoadBalancer {
				now = append(now, a.IP)
				p.byAddr.Add(a.IP, key)
				out[a.IP] = struct{}{}
			}
		}
		incremental.Set(p.addresses, key, now, len(now) > 0)
	}
	for _, addrs := range []map[netip.Addr]struct{}{changed, touched.Unable} {
		for addr := range addrs {
			if _, known := p.byAddr[addr]; known {
				out[addr] = struct{}{}
			}
		}
	}
	return out
}
