package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/link/dump"
)

// blackholeMetric is worse than that of any other route: an interface's subnet with the same prefix stays reachable.
const blackholeMetric = 1_000_000

// Blackholes returns the prefixes of our blackhole routes, including those of a previous process. It reads every route
// of the main table.
func (l *Link) Blackholes() (map[netip.Prefix]struct{}, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN, Type: unix.RTN_BLACKHOLE, Protocol: Protocol}
	routes, err := dump.Complete(func() ([]netlink.Route, error) {
		return l.handle.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE|netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("list the blackhole routes: %w", err)
	}
	out := map[netip.Prefix]struct{}{}
	for _, route := range routes {
		if prefix, ok := prefixOf(route.Dst); ok {
			out[prefix] = struct{}{}
		}
	}
	return out, nil
}

// AddBlackhole makes the node drop packets to the prefix that no more specific route covers, and reports whether the
// route was added. A route of another program with the same metric stays.
func (l *Link) AddBlackhole(prefix netip.Prefix) (bool, error) {
	err := l.handle.RouteAdd(blackhole(prefix))
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("add blackhole route %v: %w", prefix, err)
	}
	return true, nil
}

// RemoveBlackhole undoes AddBlackhole, and reports whether there was a route to remove.
func (l *Link) RemoveBlackhole(prefix netip.Prefix) (bool, error) {
	err := l.handle.RouteDel(blackhole(prefix))
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("delete blackhole route %v: %w", prefix, err)
	}
	return true, nil
}

// blackhole is "blackhole PREFIX proto 73 metric 1000000".
func blackhole(prefix netip.Prefix) *netlink.Route {
	return &netlink.Route{
		Table: unix.RT_TABLE_MAIN, Type: unix.RTN_BLACKHOLE, Protocol: Protocol, Priority: blackholeMetric,
		Dst: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())},
	}
}

func prefixOf(dst *net.IPNet) (netip.Prefix, bool) {
	if dst == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(dst.IP)
	ones, bits := dst.Mask.Size()
	if bits == 32 {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, ones), ok
}
