// Package returnroute makes the answers of virtual addresses leave by another route than that of the node's other
// packets: by the router of the network from which the requests come (docs/design/return-routes.md).
//
// Each route has a routing table of its own. Rules lead to it: one by a packet mark, for answers, which still have the
// endpoint's address when the kernel routes them; and some by the virtual addresses as source, for packets of the
// kernel and for the reverse path filter. The table of nftables sets the mark and removes it.
package returnroute

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/inetconf"
	"github.com/ironlb/ironlb/ipvs/nftopen"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
	"github.com/ironlb/ironlb/ipvs/routewatch"
)

// TableName is the name of the tables of nftables, of the families ip and ip6.
const TableName = "ironlb-return"

// Driver is the return routes of one network namespace. It is safe for concurrent use.
type Driver struct {
	// tunnels are the interfaces on which requests arrive besides that of the route.
	tunnels []string
	nft     knftables.Interface
	link    *netlink.Handle

	mu     sync.Mutex
	watch  *nftwatch.Watch
	events *routewatch.Watch // of routes, rules and interfaces
	// known means that the kernel has what have contains. indexes are the interfaces of its routes.
	known   bool
	have    []ipvs.ReturnRoute
	indexes map[int]struct{}
}

// New finds the program nft and opens the network namespace of the calling thread, which must be the same for each
// call. It changes nothing. tunnels are the interfaces on which other nodes deliver requests.
func New(tunnels ...string) (*Driver, error) {
	nft, err := nftopen.Open("", "") // each object names its own table
	if err != nil {
		return nil, fmt.Errorf("open nftables (needs the program nft, CAP_NET_ADMIN and nf_tables): %w", err)
	}
	d := &Driver{tunnels: tunnels, nft: nft}
	if d.watch, err = nftwatch.Open(TableName); err != nil {
		return nil, err
	}
	if d.link, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		d.watch.Close()
		return nil, fmt.Errorf("open the route netlink socket: %w", err)
	}
	if d.events, err = routewatch.Open(groups...); err != nil {
		d.watch.Close()
		d.link.Close()
		return nil, err
	}
	return d, nil
}

// Close ends the driver. Programmed state stays.
func (d *Driver) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watch.Close()
	d.link.Close()
	d.events.Close()
}

// Apply makes the node have these return routes and no others, and returns those that are in effect. It continues after
// an error; the errors are joined. Routes that are the same as before keep their tables.
func (d *Driver) Apply(ctx context.Context, want []ipvs.ReturnRoute) (done []ipvs.ReturnRoute, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	intact, err := d.check()
	if err != nil {
		return nil, err
	}
	if intact && slices.EqualFunc(d.have, want, ipvs.ReturnRoute.Equal) {
		return slices.Clone(want), nil
	}
	d.known, d.indexes = false, make(map[int]struct{})
	alone := true
	var programmed [len(families)][]table
	var errs []error
	for i, f := range families {
		var of []ipvs.ReturnRoute
		for _, r := range want {
			if familyOf(r.Gateway) == i {
				of = append(of, r)
			}
		}
		if len(of) == 0 && !f.supported() {
			continue
		}
		tables, onlyOurs, err := d.program(ctx, i, of)
		if err != nil {
			errs = append(errs, fmt.Errorf("program the %s return routes: %w", f.title, err))
		}
		programmed[i], alone = tables, alone && onlyOurs
	}
	if err := d.events.Discard(); err != nil { // the notifications of this call
		errs = append(errs, err)
	}
	for i, f := range families {
		if len(programmed[i]) == 0 && !f.supported() {
			continue
		}
		have, err := d.list(f)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		alone = alone && have.equal(wanted(f, programmed[i]))
		for _, t := range programmed[i] {
			if err := d.verify(f, t, have); err != nil {
				errs = append(errs, err)
				continue
			}
			done = append(done, t.ReturnRoute)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return done, err
	}
	// Another program may have changed something meanwhile.
	d.known, d.have = alone, slices.Clone(want)
	return done, nil
}

// program makes the kernel have the routes of one family. It returns their tables, and whether no other program changed
// the table of nftables. The order is required: a rule needs the routes of its table, and a mark its
// rule.
func (d *Driver) program(ctx context.Context, i int, want []ipvs.ReturnRoute) (tables []table, alone bool, err error) {
	f := families[i]
	have, err := d.list(f)
	if err != nil {
		return nil, false, err
	}
	tables, errs := d.assign(want, have)
	wanted := wanted(f, tables)
	for _, r := range wanted.missingRoutes(have) {
		if err := d.link.RouteReplace(r.netlink()); err != nil {
			errs = append(errs, fmt.Errorf("add %v: %w", r, err))
		}
	}
	for _, r := range wanted.missingRules(have) {
		if err := d.link.RuleAdd(r.netlink(f)); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("add %v: %w", r, err))
		}
	}
	if alone, err = d.setRules(ctx, i, tables); err != nil {
		return nil, false, errors.Join(append(errs, err)...)
	}
	for _, r := range have.missingRules(wanted) {
		if err := d.link.RuleDel(r.netlink(f)); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("delete %v: %w", r, err))
		}
	}
	for _, r := range have.missingRoutes(wanted) {
		if err := d.link.RouteDel(r.netlink()); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("delete %v: %w", r, err))
		}
	}
	return tables, alone, errors.Join(errs...)
}

// Check reports whether everything is as the last Apply left it. Without a change on the node it costs some system
// calls.
func (d *Driver) Check(context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.check()
}

func (d *Driver) check() (bool, error) {
	counts, err := d.watch.Count()
	if err != nil && !errors.Is(err, nftwatch.ErrLost) {
		d.known = false
		return false, err
	}
	changed, watchErr := d.events.Changed(d.concerns)
	tightened := slices.ContainsFunc(d.have, func(r ipvs.ReturnRoute) bool { return r.Gateway.Is4() && strict(r.Interface) })
	if err != nil || counts != (nftwatch.Counts{}) || changed || watchErr != nil || tightened {
		d.known = false
	}
	return d.known, watchErr
}

// Remove deletes everything that this package made, also in an earlier process. It succeeds if there is nothing.
func (d *Driver) Remove(ctx context.Context) error {
	_, err := d.Apply(ctx, nil)
	return err
}

// family contains the differences between IPv4 and IPv6.
type family struct {
	name   knftables.Family
	title  string
	number int // the kernel's
	// words replaces IP in rules of nftables.
	words *strings.Replacer
	// beyond are addresses for documentation (RFC 5737, RFC 3849): at least one is on no network of a node.
	beyond []netip.Addr
}

// families have the indices of package nftwatch.
var families = [nftwatch.NumFamilies]family{
	nftwatch.IP: {
		name: knftables.IPv4Family, title: "IPv4", number: unix.AF_INET, words: strings.NewReplacer("IP", "ip"),
		beyond: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, 254}), netip.AddrFrom4([4]byte{198, 51, 100, 254})},
	},
	nftwatch.IP6: {
		name: knftables.IPv6Family, title: "IPv6", number: unix.AF_INET6, words: strings.NewReplacer("IP", "ip6"),
		beyond: []netip.Addr{netip.MustParseAddr("2001:db8:ffff:ffff::fffe"), netip.MustParseAddr("2001:db8:eeee:eeee::fffe")},
	},
}

// supported reports whether the kernel has the family.
func (f family) supported() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return f.number == unix.AF_INET || err == nil
}

// familyOf returns the index of an address's family.
func familyOf(addr netip.Addr) int {
	if addr.Is4() {
		return nftwatch.IP
	}
	return nftwatch.IP6
}

// groups have a notification for each change of the return routes.
var groups = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
}

// concerns reports whether a message is about a rule, a route in one of our tables, or the interface of one. When an
// interface is set down, the kernel deletes its routes without a message of their own (fib_sync_down_dev).
func (d *Driver) concerns(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return true
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return inTable(m)
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		index, ok := routewatch.Interface(m)
		_, is := d.indexes[index]
		return ok && is
	}
	return false
}

// inTable reports whether a message is about a route in one of our tables.
func inTable(m syscall.NetlinkMessage) bool {
	const at = 4 // of rtm_table in struct rtmsg, which has one octet: the attribute has a greater number
	if len(m.Data) <= at || m.Data[at] != unix.RT_TABLE_COMPAT {
		return false
	}
	attrs, err := syscall.ParseNetlinkRouteAttr(&m)
	if err != nil {
		return true
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.RTA_TABLE && len(a.Value) >= 4 {
			return isTable(int(binary.NativeEndian.Uint32(a.Value)))
		}
	}
	return false
}

// A strict reverse path filter (rp_filter=1) drops requests of clients that the main table reaches by another
// interface: where nftables has translated the destination before the routing, the source rules do not match. So it
// becomes loose (2) on the interface of the route, as RFC 3704, 2.4, recommends for such nodes. It is not made strict
// again: whether it was is not recorded.

// strict reports whether the reverse path filter of an interface is strict: the maximum with that of all interfaces is
// in effect.
func strict(name string) bool {
	values := []string{read("all"), read(name)}
	slices.Sort(values)
	return values[1] == "1"
}

func read(name string) string {
	value, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/rp_filter")
	if err != nil {
		return "" // no IPv4, or the interface is gone
	}
	return strings.TrimSpace(string(value))
}

// loosen makes the reverse path filter of the interface of an IPv4 route loose if it is strict.
func loosen(r table, link netlink.Link) error {
	if !r.Gateway.Is4() || !strict(r.Interface) {
		return nil
	}
	if err := inetconf.Set(link, inetconf.RPFilter, 2); err != nil {
		return fmt.Errorf("set sysctl net.ipv4.conf.%s.rp_filter to 2: %w", r.Interface, err)
	}
	return nil
}
