package returnroute

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Protocol is the protocol number of our routes and rules (rtm_protocol, FRA_PROTOCOL): only those with it are ours.
const Protocol = 73

const (
	// firstTable is the first of maxTables routing tables. A table with a route of another program is not used.
	firstTable = 7301
	maxTables  = 64
	// markBase is the packet mark of the first table. Marks are compared as 32 bits, so a mark of another program that
	// sets some bits does not match.
	markBase = 0x49524c01
)

// Priorities of the rules: after those for local addresses (0, with Cilium 100), before those of Pods (AWS: 1536) and
// the main table.
const (
	// markPriority: marked packets use the routing table.
	markPriority = 1073 + iota
	// mainPriority: what the kernel sends from a virtual address uses the main table, except its default route, so that
	// it reaches Pods and nodes. The reverse path filter accepts their packets.
	mainPriority
	// sourcePriority: the rest uses the routing table. The reverse path filter accepts clients behind the gateway.
	sourcePriority
)

// state is the routes and rules of one family that are ours.
type state struct {
	routes map[route]struct{}
	rules  map[rule]struct{}
	// foreign are tables in our range with routes or rules of other programs. others are rules of other programs.
	foreign map[int]struct{}
	others  []netlink.Rule
}

// route is a route of one of our tables. An invalid gateway is none.
type route struct {
	table   int
	dst     netip.Prefix
	gateway netip.Addr
	index   int
}

// rule is a policy rule. mark and source are exclusive. routes is the table that it leads to.
type rule struct {
	priority int
	mark     uint32
	source   netip.Prefix
	routes   int
}

// wanted returns the routes and rules of the tables.
func wanted(f family, tables []table) state {
	s := state{routes: make(map[route]struct{}), rules: make(map[rule]struct{})}
	for _, t := range tables {
		all := netip.PrefixFrom(unspecified(f), 0)
		s.routes[route{table: t.number, dst: all, gateway: t.Gateway, index: t.index}] = struct{}{}
		for _, subnet := range t.Subnets {
			s.routes[route{table: t.number, dst: subnet.Masked(), index: t.index}] = struct{}{}
		}
		s.rules[rule{priority: markPriority, mark: t.mark(), routes: t.number}] = struct{}{}
		for _, p := range t.Prefixes {
			s.rules[rule{priority: mainPriority, source: p.Masked(), routes: unix.RT_TABLE_MAIN}] = struct{}{}
			s.rules[rule{priority: sourcePriority, source: p.Masked(), routes: t.number}] = struct{}{}
		}
	}
	return s
}

func unspecified(f family) netip.Addr {
	if f.number == unix.AF_INET {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// missingRoutes returns the routes of s that have lacks, those to networks first: a gateway needs them.
func (s state) missingRoutes(have state) (missing []route) {
	for r := range s.routes {
		if _, has := have.routes[r]; !has {
			missing = append(missing, r)
		}
	}
	slices.SortFunc(missing, func(a, b route) int { return b.dst.Bits() - a.dst.Bits() })
	return missing
}

// missingRules returns the rules of s that have lacks, those of the main table first.
func (s state) missingRules(have state) (missing []rule) {
	for r := range s.rules {
		if _, has := have.rules[r]; !has {
			missing = append(missing, r)
		}
	}
	slices.SortFunc(missing, func(a, b rule) int { return a.priority - b.priority })
	return missing
}

// equal reports whether both have the same routes and rules of ours.
func (s state) equal(other state) bool {
	return maps.Equal(s.routes, other.routes) && maps.Equal(s.rules, other.rules)
}

func (r route) netlink() *netlink.Route {
	out := &netlink.Route{
		Table: r.table, Protocol: Protocol, LinkIndex: r.index, Dst: netOf(r.dst), Scope: netlink.SCOPE_UNIVERSE,
	}
	switch {
	case r.gateway.IsValid():
		out.Gw = r.gateway.AsSlice()
	case r.dst.Addr().Is4():
		out.Scope = netlink.SCOPE_LINK
	}
	return out
}

func (r route) String() string {
	if r.gateway.IsValid() {
		return fmt.Sprintf("route %v via %v table %d", r.dst, r.gateway, r.table)
	}
	return fmt.Sprintf("route %v table %d", r.dst, r.table)
}

func (r rule) netlink(f family) *netlink.Rule {
	out := netlink.NewRule()
	out.Family, out.Priority, out.Table, out.Protocol = f.number, r.priority, r.routes, Protocol
	if r.mark != 0 {
		mask := ^uint32(0)
		out.Mark, out.Mask = r.mark, &mask
	}
	if r.source.IsValid() {
		out.Src = netOf(r.source)
	}
	if r.priority == mainPriority {
		out.SuppressPrefixlen = 0
	}
	return out
}

func (r rule) String() string {
	if r.mark != 0 {
		return fmt.Sprintf("rule %d fwmark %#x lookup %d", r.priority, r.mark, r.routes)
	}
	return fmt.Sprintf("rule %d from %v lookup %d", r.priority, r.source, r.routes)
}

func netOf(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// list returns the routes and rules of one family, also those of an earlier process.
func (d *Driver) list(f family) (state, error) {
	s := state{routes: make(map[route]struct{}), rules: make(map[rule]struct{}), foreign: make(map[int]struct{})}
	rules, err := complete(func() ([]netlink.Rule, error) { return d.link.RuleList(f.number) })
	if err != nil {
		return s, fmt.Errorf("list the rules: %w", err)
	}
	for _, r := range rules {
		if ours, is := ruleOf(r); is {
			s.rules[ours] = struct{}{}
			continue
		}
		s.others = append(s.others, r)
		if isTable(r.Table) {
			s.foreign[r.Table] = struct{}{}
		}
	}
	all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	routes, err := complete(func() (found []netlink.Route, err error) {
		err = d.link.RouteListFilteredIter(f.number, all, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			if isTable(r.Table) {
				found = append(found, r)
			}
			return true
		})
		return found, err
	})
	if err != nil {
		return s, fmt.Errorf("list the routes: %w", err)
	}
	for _, r := range routes {
		if ours, is := routeOf(f, r); is {
			s.routes[ours] = struct{}{}
		} else {
			s.foreign[r.Table] = struct{}{}
		}
	}
	return s, nil
}

func isTable(n int) bool { return n >= firstTable && n < firstTable+maxTables }

// ruleOf returns one of our rules.
func ruleOf(r netlink.Rule) (rule, bool) {
	if r.Protocol != Protocol || r.Priority < markPriority || r.Priority > sourcePriority {
		return rule{}, false
	}
	out := rule{priority: r.Priority, mark: r.Mark, routes: r.Table}
	if r.Src != nil {
		out.source = prefixOf(r.Src)
	}
	return out, true
}

// routeOf returns one of our routes.
func routeOf(f family, r netlink.Route) (route, bool) {
	if r.Protocol != Protocol {
		return route{}, false
	}
	out := route{table: r.Table, index: r.LinkIndex, dst: netip.PrefixFrom(unspecified(f), 0)}
	if r.Dst != nil {
		out.dst = prefixOf(r.Dst)
	}
	if r.Gw != nil {
		out.gateway = addrOf(r.Gw, f)
	}
	return out, true
}

func prefixOf(n *net.IPNet) netip.Prefix {
	ones, bits := n.Mask.Size()
	addr, _ := netip.AddrFromSlice(n.IP)
	if bits == 32 {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, ones)
}

func addrOf(ip net.IP, f family) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	if f.number == unix.AF_INET {
		return addr.Unmap()
	}
	return addr
}

// complete repeats a dump that a concurrent change interrupted.
func complete[T any](list func() ([]T, error)) ([]T, error) {
	const tries = 5
	for range tries - 1 {
		if all, err := list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return list()
}
