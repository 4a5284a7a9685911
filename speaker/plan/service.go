package plan

import (
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
)

// servicePlan is what one Service asks of this node; it depends on that Service and its slices alone.
type servicePlan struct {
	servers ipvs.Table
	// ready and usable are the nodes with a ready endpoint, and with a serving one that is about to go.
	ready, usable map[string]struct{}
}

// planService plans one Service for one node.
func planService(svc Service, slices map[string]Slice, node string) servicePlan {
	p := servicePlan{servers: ipvs.Table{}, ready: map[string]struct{}{}, usable: map[string]struct{}{}}
	for _, slice := range slices {
		for _, e := range slice.Endpoints {
			if e.Ready {
				p.ready[e.Node] = struct{}{}
			} else if e.usable() {
				p.usable[e.Node] = struct{}{}
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
			p.servers[ipvs.Key{Addr: a.IP, Protocol: port.Protocol, Port: port.Port}] = ipvs.VirtualServer{
				Settings:    settings(svc),
				RealServers: realServers(svc, port, a.IP.Is4(), slices, node),
			}
		}
	}
	return p
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
