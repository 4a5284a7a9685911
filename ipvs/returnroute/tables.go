package returnroute

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/ironlb/ironlb/ipvs"
)

// table is a return route with its routing table.
type table struct {
	ipvs.ReturnRoute
	number, index int
}

func (t table) mark() uint32 { return markBase + uint32(t.number-firstTable) }

// assign gives each return route a table: the one that leads there already, or a free one. A table that is to be
// deleted is not free.
func (d *Driver) assign(want []ipvs.ReturnRoute, have state) (tables []table, errs []error) {
	used := make(map[int]bool)
	existing := make(map[route]int)
	for n := range have.foreign {
		used[n] = true
	}
	for r := range have.routes {
		if r.gateway.IsValid() && r.dst.Bits() == 0 {
			used[r.table] = true
			if _, foreign := have.foreign[r.table]; !foreign {
				existing[route{gateway: r.gateway, index: r.index}] = r.table
			}
		}
	}
	for _, r := range want {
		link, err := d.link.LinkByName(r.Interface)
		if err != nil {
			errs = append(errs, fmt.Errorf("find interface %s of the return route by %v: %w", r.Interface, r.Gateway, err))
			continue
		}
		t := table{ReturnRoute: r, index: link.Attrs().Index}
		t.number = existing[route{gateway: r.Gateway, index: t.index}]
		for n := firstTable; t.number == 0 && n < firstTable+maxTables; n++ {
			if !used[n] {
				t.number, used[n] = n, true
			}
		}
		if t.number == 0 {
			errs = append(errs, fmt.Errorf("the return route by %v has no routing table: %d to %d are in use; use fewer gateways",
				t.Gateway, firstTable, firstTable+maxTables-1))
			continue
		}
		if err := loosen(t, link); err != nil {
			errs = append(errs, err)
		}
		d.indexes[t.index] = struct{}{}
		tables = append(tables, t)
	}
	return tables, errs
}

// verify returns an error if a route or rule of the table is missing, or if a rule of another program precedes ours:
// then answers do not leave by the route.
func (d *Driver) verify(f family, t table, have state) error {
	all := wanted(f, []table{t})
	if routes, rules := all.missingRoutes(have), all.missingRules(have); len(routes)+len(rules) > 0 {
		return fmt.Errorf("the return route by %v dev %s lacks %v %v, which are restored", t.Gateway, t.Interface, routes, rules)
	}
	dst, err := t.beyond(f)
	if err != nil {
		return err
	}
	routes, err := d.link.RouteGetWithOptions(dst.AsSlice(), &netlink.RouteGetOptions{Mark: t.mark()})
	if err != nil {
		return fmt.Errorf("get the route by %v dev %s: %w", t.Gateway, t.Interface, err)
	}
	if len(routes) > 0 && routes[0].LinkIndex == t.index && addrOf(routes[0].Gw, f) == t.Gateway {
		return nil
	}
	var before []string
	for _, r := range have.others {
		if r.Priority > 0 && r.Priority < markPriority {
			before = append(before, fmt.Sprintf("%d lookup %d", r.Priority, r.Table))
		}
	}
	if len(before) == 0 {
		return fmt.Errorf("answers do not leave by %v dev %s: another program changed its routes or rules, which are restored",
			t.Gateway, t.Interface)
	}
	return fmt.Errorf("answers do not leave by %v dev %s: a rule of another program is before %d (%s): give it a greater priority, or limit it",
		t.Gateway, t.Interface, markPriority, strings.Join(before, ", "))
}

// beyond returns an address that only the gateway leads to.
func (t table) beyond(f family) (netip.Addr, error) {
next:
	for _, addr := range f.beyond {
		for _, subnet := range t.Subnets {
			if subnet.Contains(addr) {
				continue next
			}
		}
		return addr, nil
	}
	return netip.Addr{}, fmt.Errorf("the networks of %s contain all addresses for documentation", t.Interface)
}
