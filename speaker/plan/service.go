package plan

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
)

// planService plans one Service.
func (p *Planner) planService(v *View, key pools.ServiceKey, _ time.Time) servicePlan {
	svc, slices := v.Services[key], v.Slices[key]
	out := servicePlan{virtuals: map[ipvs.Key]virtual{}, ready: map[string]struct{}{}, usable: map[string]struct{}{}}
	for _, slice := range slices {
		for _, e := range slice.Endpoints {
			if e.Ready {
				out.ready[e.Node] = struct{}{}
			} else if e.usable() {
				out.usable[e.Node] = struct{}{}
			}
		}
	}
	for _, port := range svc.Ports {
		if port.Protocol != ipvs.TCP && port.Protocol != ipvs.UDP {
			continue
		}
		for _, a := range svc.Addresses {
			if !Supported(a.IP) {
				continue
			}
			key := ipvs.Key{Addr: a.IP, Protocol: port.Protocol, Port: port.Port}
			out.virtuals[key] = virtual{
				Server: ipvs.VirtualServer{
					Settings:    settings(svc),
					RealServers: realServers(svc, port, a.IP.Is4(), slices, p.options.Node),
				},
				Local:    true,
				Elements: elements(svc, key),
			}
		}
	}
	return out
}

// elements returns what the packet filter needs for a virtual server.
func elements(svc Service, key ipvs.Key) []ipvs.Element {
	out := []ipvs.Element{{Set: ipvs.Addresses, Key: ipvs.Key{Addr: key.Addr}}, {Set: ipvs.Served, Key: key}}
	if !svc.Local {
		out = append(out, ipvs.Element{Set: ipvs.Masqueraded, Key: key})
	}
	return out
}

// Supported tells whether the data plane can serve the address. IPv6 comes with a later issue.
func Supported(a netip.Addr) bool { return a.Is4() }

func settings(svc Service) ipvs.Settings {
	s := ipvs.Settings{Scheduler: ipvs.RoundRobin}
	if svc.Affinity > 0 {
		s.Flags, s.Timeout = ipvs.Persistent, svc.Affinity
	}
	return s
}

// realServers chooses the endpoints of a port: the ready ones, and while there is none those that still serve although
// they are terminating. Policy Local considers this node's only. One address and port counts once, whatever its slices.
func realServers(svc Service, port Port, v4 bool, slices map[string]Slice, node string) map[netip.AddrPort]ipvs.RealServer {
	ready, usable := map[netip.AddrPort]ipvs.RealServer{}, map[netip.AddrPort]ipvs.RealServer{}
	for _, slice := range slices {
		number, ok := slice.number(port)
		if !ok {
			continue
		}
		for _, e := range slice.Endpoints {
			if e.Addr.Is4() != v4 || (svc.Local && (e.Node == "" || e.Node != node)) {
				continue
			}
			at := netip.AddrPortFrom(e.Addr, number)
			if e.Ready {
				ready[at] = ipvs.RealServer{Weight: 1, Forward: ipvs.Masquerade}
			} else if e.usable() {
				usable[at] = ipvs.RealServer{Weight: 1, Forward: ipvs.Masquerade}
			}
		}
	}
	if len(ready) == 0 {
		return usable
	}
	return ready
}

// number returns the slice's number for a port of the Service: the one with its name and protocol.
func (s Slice) number(port Port) (uint16, bool) {
	for _, p := range s.Ports {
		if p.Name == port.Name && p.Protocol == port.Protocol && p.Port != 0 {
			return p.Port, true
		}
	}
	return 0, false
}
