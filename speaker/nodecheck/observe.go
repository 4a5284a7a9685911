package nodecheck

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// noRoute are the kernel's errors for an unreachable address: there is no route, or one of type blackhole (EINVAL),
// prohibit (EACCES) or unreachable. Calico adds a blackhole route for each of a node's ranges (ip-route(8)).
var noRoute = []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL, unix.EACCES}

// mostRoutes is the number of known routes that a call of To finds again: more than a node has Pods (the kubelet's
// default of maxPods is 110).
const mostRoutes = 250

// Routes finds routes, and keeps those of the last call. It is for one caller at a time.
type Routes struct {
	known map[netip.Addr]Route
	next  int // the first one to find again
}

// To returns the route to each address, which are sorted. It finds those of new addresses, and mostRoutes of the others
// per call, round robin, so that the cost does not grow with the number of addresses.
func (r *Routes) To(addrs []netip.Addr) (map[netip.Addr]Route, error) {
	var find []netip.Addr
	for i, addr := range addrs {
		_, known := r.known[addr]
		if since := i - r.next; !known || len(addrs) <= mostRoutes || (since+len(addrs))%len(addrs) < mostRoutes {
			find = append(find, addr)
		}
	}
	found, err := routes(find)
	if err != nil {
		return nil, err
	}
	out := make(map[netip.Addr]Route, len(addrs))
	for _, addr := range addrs {
		route, is := found[addr]
		if !is {
			route = r.known[addr]
		}
		out[addr] = route
	}
	r.known, r.next = out, (r.next+mostRoutes)%max(1, len(addrs))
	return out, nil
}

// routes returns the route from the calling thread's network namespace to each address. A route whose interface
// disappears meanwhile counts as none.
func routes(addrs []netip.Addr) (map[netip.Addr]Route, error) {
	out, links := map[netip.Addr]Route{}, map[int]netlink.Link{}
	if len(addrs) == 0 {
		return out, nil
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open the route netlink socket: %w", err)
	}
	defer handle.Close()
	if err := handle.SetSocketTimeout(time.Minute); err != nil {
		return nil, fmt.Errorf("open the route netlink socket: %w", err)
	}
	for _, addr := range addrs {
		routes, err := handle.RouteGet(addr.AsSlice())
		refused := slices.ContainsFunc(noRoute, func(no error) bool { return errors.Is(err, no) })
		if refused || err == nil && len(routes) == 0 {
			out[addr] = Route{}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find the route to %v: %w", addr, err)
		}
		link, known := links[routes[0].LinkIndex]
		if !known {
			link, err = handle.LinkByIndex(routes[0].LinkIndex)
			if errors.As(err, &netlink.LinkNotFoundError{}) {
				out[addr] = Route{}
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("find the interface to %v: %w", addr, err)
			}
			links[routes[0].LinkIndex] = link
		}
		out[addr] = Route{
			Interface: link.Attrs().Name, Bridge: link.Type() == "bridge", Host: routes[0].Type == unix.RTN_LOCAL,
		}
	}
	return out, nil
}

// BridgeCall returns Facts.BridgeCall for the calling thread's network namespace.
func BridgeCall() (values [2]string, err error) {
	for i, name := range []string{"iptables", "ip6tables"} {
		value, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-" + name)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return values, err
		}
		values[i] = strings.TrimSpace(string(value))
	}
	return values, nil
}
