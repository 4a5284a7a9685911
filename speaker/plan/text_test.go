package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
)

// text returns a plan for a reader, sorted.
func text(d *Desired) string {
	var b strings.Builder
	for _, key := range d.Table.Keys() {
		vs := d.Table[key]
		fmt.Fprintf(&b, "%v %v", key, vs.Settings)
		if _, ok := d.Filter[ipvs.Element{Set: ipvs.Masqueraded, Key: key}]; ok {
			b.WriteString(" masqueraded")
		}
		if _, ok := d.Filter[ipvs.Element{Set: ipvs.Served, Key: key}]; !ok {
			b.WriteString(" NOT SERVED")
		}
		b.WriteString("\n")
		for _, at := range slices.SortedFunc(maps.Keys(vs.RealServers), netip.AddrPort.Compare) {
			fmt.Fprintf(&b, "  -> %v %v\n", at, vs.RealServers[at])
		}
	}
	fmt.Fprintf(&b, "local%s\n", words(d.Local))
	for _, e := range slices.SortedFunc(maps.Keys(d.Filter), ipvs.Element.Compare) {
		if !expected(d, e) {
			fmt.Fprintf(&b, "filter %v\n", e)
		}
	}
	for addr := range d.Local {
		if _, ok := d.Filter[ipvs.Element{Set: ipvs.Addresses, Key: ipvs.Key{Addr: addr}}]; !ok {
			fmt.Fprintf(&b, "NOT IN THE FILTER %v\n", addr)
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(d.Announce), netip.Addr.Compare) {
		ann := d.Announce[a]
		fmt.Fprintf(&b, "announce %v vip=%s", a, ann.VIP)
		if len(ann.Interfaces) > 0 {
			fmt.Fprintf(&b, " interfaces=%s", strings.Join(ann.Interfaces, ","))
		}
		if ann.InSubnet {
			b.WriteString(" in subnet")
		}
		b.WriteString("\n")
	}
	for _, name := range slices.Sorted(maps.Keys(d.VIPs)) {
		dec := d.VIPs[name]
		fmt.Fprintf(&b, "vip %s %s", name, dec.Reason)
		if dec.Owner != "" {
			fmt.Fprintf(&b, " owner=%s", dec.Owner)
		}
		if dec.Reporter {
			b.WriteString(" reporter")
		}
		b.WriteString("\n")
	}
	byName := func(a, b pools.ServiceKey) int { return cmp.Compare(a.String(), b.String()) }
	for _, key := range slices.SortedFunc(maps.Keys(d.Services), byName) {
		fmt.Fprintf(&b, "service %v %s\n", key, d.Services[key])
	}
	return b.String()
}

func words(addrs map[netip.Addr]struct{}) string {
	var b strings.Builder
	for _, a := range slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare) {
		b.WriteString(" " + a.String())
	}
	return b.String()
}

// expected tells whether an element is what the lines about virtual servers and local addresses say already.
func expected(d *Desired, e ipvs.Element) bool {
	_, exists := d.Table[e.Key]
	switch e.Set {
	case ipvs.Addresses:
		_, local := d.Local[e.Key.Addr]
		return local
	case ipvs.Served, ipvs.Masqueraded:
		return exists
	}
	return false
}
