package link

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/link/dump"
)

// kubeProxyInterface is the interface with the Service addresses of kube-proxy's ipvs mode.
const kubeProxyInterface = "kube-ipvs0"

// HostAddresses returns the node's own addresses, sorted: those of its interfaces, except loopback and link-local ones,
// unusable (also tentative) ones, and Service addresses, which are kube-proxy's or ours. NodePorts are
// served at them.
func (l *Link) HostAddresses() ([]netip.Addr, error) {
	addrs, err := l.interfaceAddrs()
	if err != nil {
		return nil, err
	}
	ours, _, err := l.List()
	if err != nil {
		return nil, err
	}
	foreign := -1
	if dummy, err := l.handle.LinkByName(kubeProxyInterface); err == nil {
		foreign = dummy.Attrs().Index
	}
	var host []netip.Addr
	for _, a := range addrs {
		addr, ok := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		_, virtual := ours[addr]
		unusable := a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0
		if ok && !virtual && !unusable && a.LinkIndex != foreign && addr.IsGlobalUnicast() {
			host = append(host, addr)
		}
	}
	slices.SortFunc(host, netip.Addr.Compare)
	return slices.Compact(host), nil
}

// Gateways returns the next hops of the routes in all tables, sorted, except link-local ones. It reads every route.
func (l *Link) Gateways() ([]netip.Addr, error) {
	all, err := dump.Complete(func() ([]netip.Addr, error) {
		var found []netip.Addr
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			err := l.handle.RouteListFilteredIter(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
				for _, gateway := range gatewaysOf(r) {
					if addr, ok := netip.AddrFromSlice(gateway); ok && addr.Unmap().IsGlobalUnicast() && (len(found) == 0 || found[len(found)-1] != addr.Unmap()) {
						found = append(found, addr.Unmap())
					}
				}
				return true
			})
			if err != nil {
				return nil, err
			}
		}
		return found, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the routes: %w", err)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), nil
}

// gatewaysOf returns the next hops of a route, including one of the other family (RFC 5549).
func gatewaysOf(r netlink.Route) []net.IP {
	var out []net.IP
	add := func(gateway net.IP, via netlink.Destination) {
		if gateway != nil {
			out = append(out, gateway)
		}
		if v, ok := via.(*netlink.Via); ok && v != nil {
			out = append(out, v.Addr)
		}
	}
	add(r.Gw, r.Via)
	for _, hop := range r.MultiPath {
		add(hop.Gw, hop.Via)
	}
	return out
}
