// Package link makes virtual addresses local to the node, sets its kernel parameters and watches its interfaces.
//
// A virtual address is a local route, not an address of an interface: see docs/design/vip-local-route.md.
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

// Protocol is the routing protocol number (rtm_protocol) of our local routes: only routes with it are ours.
const Protocol netlink.RouteProtocol = 73

// ErrForeign is wrapped by Add when another program has already made the address local to the node.
var ErrForeign = errors.New("the address is already local to the node and owned by another program: remove it there, or remove it from the pool")

// Link is the network configuration of one network namespace. It is safe for concurrent use.
type Link struct {
	handle   *netlink.Handle
	loopback int
}

// Open opens the network namespace of the calling thread.
func Open() (*Link, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open the route netlink socket: %w", err)
	}
	lo, err := handle.LinkByName("lo")
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("find the loopback interface: %w", err)
	}
	return &Link{handle: handle, loopback: lo.Attrs().Index}, nil
}

// Close closes the socket. The addresses stay.
func (l *Link) Close() {
	l.handle.Close()
}

// List returns the single addresses that are local to the node. ours includes those of a previous process; others are
// the addresses of interfaces, and those that other programs made local. Retained addresses are in ours only.
func (l *Link) List() (ours, others map[netip.Addr]struct{}, err error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
	type local struct {
		addr     netip.Addr
		protocol netlink.RouteProtocol
	}
	locals, err := dump.Complete(func() (all []local, err error) {
		err = l.handle.RouteListFilteredIter(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE, func(route netlink.Route) bool {
			if addr, ok := hostAddr(route.Dst); ok {
				all = append(all, local{addr, route.Protocol})
			}
			return true
		})
		return all, err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list the local routes: %w", err)
	}
	ours, others = map[netip.Addr]struct{}{}, map[netip.Addr]struct{}{}
	kernels := map[netip.Addr]struct{}{}
	for _, l := range locals {
		if l.protocol == Protocol {
			ours[l.addr] = struct{}{}
			continue
		}
		others[l.addr] = struct{}{}
		if l.protocol == unix.RTPROT_KERNEL {
			kernels[l.addr] = struct{}{}
		}
	}
	return ours, others, l.dropRetained(ours, others, kernels)
}

// dropRetained removes our retained addresses, which the kernel has also made local, from the others. An address that
// is no longer on any interface was retained until just now.
func (l *Link) dropRetained(ours, others, kernels map[netip.Addr]struct{}) error {
	twice := map[netip.Addr]struct{}{}
	for addr := range kernels {
		if contains(ours, addr) {
			twice[addr] = struct{}{}
		}
	}
	if len(twice) == 0 {
		return nil
	}
	addrs, err := l.interfaceAddrs()
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if !isRetained(a) {
			delete(twice, addrOf(a))
		}
	}
	for addr := range twice {
		delete(others, addr)
	}
	return nil
}

// Add makes the address local to the node and reports whether it was not local before. It fails with ErrForeign, and
// changes nothing, if another program has made it local.
func (l *Link) Add(addr netip.Addr) (bool, error) {
	if addr.Is6() {
		if err := l.mayAdd6(addr); err != nil {
			return false, err
		}
	}
	err := l.handle.RouteAdd(l.route(addr))
	if errors.Is(err, unix.EEXIST) {
		return false, l.mayAdopt(addr)
	}
	if err != nil {
		return false, fmt.Errorf("add local route %v: %w", addr, err)
	}
	return true, nil
}

// mayAdd6 fails with ErrForeign if another program has made the address local. The kernel accepts a second IPv6 route
// with another metric, and the route of an interface's address has another one.
func (l *Link) mayAdd6(addr netip.Addr) error {
	routes, err := l.handle.RouteGetWithOptions(addr.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get the route to %v: %w", addr, err)
	}
	for _, route := range routes {
		if at, ok := hostAddr(route.Dst); ok && at == addr && route.Type == unix.RTN_LOCAL && route.Protocol != Protocol {
			return fmt.Errorf("add local route %v: %w", addr, ErrForeign)
		}
	}
	return nil
}

// mayAdopt fails with ErrForeign if the existing local route of the address is not ours.
func (l *Link) mayAdopt(addr netip.Addr) error {
	ours, _, err := l.List()
	if err != nil {
		return err
	}
	if _, ok := ours[addr]; !ok {
		return fmt.Errorf("add local route %v: %w", addr, ErrForeign)
	}
	return nil
}

// Remove undoes Add and reports whether there was a route to remove. An address that another program made local stays.
func (l *Link) Remove(addr netip.Addr) (bool, error) {
	err := l.handle.RouteDel(l.route(addr))
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("delete local route %v: %w", addr, err)
	}
	return true, nil
}

// route is "local ADDR dev lo table local proto 73".
func (l *Link) route(addr netip.Addr) *netlink.Route {
	return &netlink.Route{
		LinkIndex: l.loopback,
		Table:     unix.RT_TABLE_LOCAL,
		Type:      unix.RTN_LOCAL,
		Scope:     netlink.SCOPE_HOST,
		Protocol:  Protocol,
		Dst:       &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())},
	}
}

// hostAddr returns the address of a host route.
func hostAddr(dst *net.IPNet) (netip.Addr, bool) {
	if dst == nil {
		return netip.Addr{}, false
	}
	addr, ok := netip.AddrFromSlice(dst.IP)
	ones, bits := dst.Mask.Size()
	if bits == 32 {
		addr = addr.Unmap()
	}
	return addr, ok && ones == bits
}
