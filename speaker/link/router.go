package link

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const forwarding6 = "net.ipv6.conf.all.forwarding"

// keepRouterAdvertisements returns the parameters to set before IPv6 forwarding is enabled. A kernel that forwards
// counts as a router: it deletes its default routes from router advertisements and accepts no more, unless accept_ra is
// 2 (Documentation/networking/ip-sysctl.rst; addrconf_fixup_forwarding in net/ipv6/addrconf.c). So each interface with
// such a route gets that value. If another program handles the advertisements (accept_ra=0), no route is lost.
func keepRouterAdvertisements() ([]Sysctl, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("list the IPv6 routes: %w", err)
	}
	var keep []Sysctl
	for _, route := range routes {
		iface, err := net.InterfaceByIndex(route.LinkIndex)
		if err != nil {
			continue // the interface is gone
		}
		s := Sysctl{Key: "net.ipv6.conf." + strings.ReplaceAll(iface.Name, ".", "/") + ".accept_ra", Value: "2"}
		if value, err := s.Read(); err != nil || value == "0" || slices.Contains(keep, s) {
			continue
		}
		keep = append(keep, s)
	}
	return keep, nil
}
