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
	"github.com/ironlb/ironlb/speaker/view"
)

// text returns a plan as sorted text. Filter elements are words after the object that they refer to; an endpoint with
// an asterisk is in the set Hairpin. Any other element has a line of its own.
func text(d *Desired) string {
	var b strings.Builder
	for _, key := range d.Table.Keys() {
		virtualText(&b, d, key)
	}
	for _, key := range d.ClusterInternal.Keys() {
		if _, ok := d.Table[key]; !ok {
			fmt.Fprintf(&b, "CLUSTER-INTERNAL ONLY %v\n", key)
		}
	}
	fmt.Fprintf(&b, "local%s\n", words(d.Local))
	filterText(&b, d)
	for _, key := range slices.SortedFunc(maps.Keys(d.HealthPorts), compareServices) {
		h := d.HealthPorts[key]
		fmt.Fprintf(&b, "healthCheckNodePort %d %v local=%d", h.Port, h.Service, h.IPv4Endpoints)
		if h.IPv6Endpoints > 0 {
			fmt.Fprintf(&b, " ipv6=%d", h.IPv6Endpoints)
		}
		for _, addr := range h.Addrs.Addrs() {
			fmt.Fprintf(&b, " at %v", addr)
		}
		b.WriteString("\n")
	}
	for _, c := range slices.SortedFunc(maps.Keys(d.Checks), view.Check.Compare) {
		fmt.Fprintf(&b, "check %s %s%s\n", cmp.Or(c.Node, "endpoint"), netip.AddrPortFrom(c.Addr, c.Port), c.Path)
	}
	for _, a := range slices.SortedFunc(maps.Keys(d.Announce), netip.Addr.Compare) {
		ann := d.Announce[a]
		fmt.Fprintf(&b, "announce %v vip=%s", a, ann.VIP)
		if len(ann.Interfaces) > 0 {
			fmt.Fprintf(&b, " interfaces=%s", strings.Join(ann.Interfaces, ","))
		}
		if ann.Probe {
			b.WriteString(" probe")
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
		for _, l := range dec.Local {
			fmt.Fprintf(&b, " %v@%s", l.Service, strings.Join(l.Nodes, ","))
		}
		if c, message := d.Claims[name]; message && c.State != view.Held {
			fmt.Fprintf(&b, " claim %s", states[c.State])
		}
		b.WriteString("\n")
	}
	for name := range d.Claims {
		if _, ok := d.VIPs[name]; !ok {
			fmt.Fprintf(&b, "CLAIM OF NO VIP %s\n", name)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(d.Services), compareServices) {
		fmt.Fprintf(&b, "service %v %s\n", key, d.Services[key])
		if f, is := d.Fallbacks[key]; is {
			fmt.Fprintf(&b, "  not direct: %s", f.Reason)
			if f.Node != "" {
				fmt.Fprintf(&b, " %s", f.Node)
			}
			if f.Endpoint.IsValid() {
				fmt.Fprintf(&b, " %v", f.Endpoint)
			}
			b.WriteString("\n")
		}
		for _, addr := range slices.SortedFunc(maps.Keys(d.Refused[key]), netip.Addr.Compare) {
			fmt.Fprintf(&b, "  refused: %v %v\n", addr, d.Refused[key][addr])
		}
	}
	for _, node := range slices.Sorted(maps.Keys(d.Unreachable)) {
		n := d.Unreachable[node]
		fmt.Fprintf(&b, "unreachable %s left out: %d, failed open: %d\n", node, n.LeftOut, n.FailedOpen)
	}
	if len(d.Gateways) > 0 {
		fmt.Fprintf(&b, "gateways %v\n", d.Gateways)
	}
	b.WriteString(bgpText(d))
	return b.String()
}

func compareServices(a, b pools.ServiceKey) int { return cmp.Compare(a.String(), b.String()) }

// keySets are the sets whose elements are full keys.
var keySets = []ipvs.Set{ipvs.Masqueraded, ipvs.MasqueradedUnlessPod, ipvs.Restricted, ipvs.Dropped}

func virtualText(b *strings.Builder, d *Desired, key ipvs.Key) {
	vs := d.Table[key]
	fmt.Fprintf(b, "%v %v", key, vs.Settings)
	for _, set := range keySets {
		if _, ok := d.Filter[ipvs.Element{Set: set, Key: key}]; ok {
			fmt.Fprintf(b, " %v", set)
		}
	}
	if _, ok := d.Filter[ipvs.Element{Set: ipvs.Served, Key: key}]; !ok {
		b.WriteString(" NOT SERVED")
	}
	b.WriteString("\n")
	for _, e := range slices.SortedFunc(maps.Keys(d.Filter), ipvs.Element.Compare) {
		if e.Set == ipvs.Allowed && e.Key == key {
			fmt.Fprintf(b, "  <- %v\n", e.Prefix())
		}
	}
	serverText(b, vs)
	directText(b, d, key)
	if internal, ok := d.ClusterInternal[key]; ok {
		fmt.Fprintf(b, "  cluster-internal %v\n", internal.Settings)
		serverText(b, internal)
	}
}

// directText writes how many slots of a directed virtual server each node has, and how many each had before their last
// change.
func directText(b *strings.Builder, d *Desired, key ipvs.Key) {
	v, directed := d.Direct.Virtuals[key]
	if !directed {
		return
	}
	now, before := map[netip.Addr]int{}, map[netip.Addr]int{}
	for slot, node := range v.Slots {
		now[d.Direct.Nodes[node]]++
		if was := v.Before[slot]; was != node {
			before[d.Direct.Nodes[was]]++
		}
	}
	b.WriteString("  slots")
	if v.ByClient {
		b.WriteString(" by client")
	}
	for i, counts := range []map[netip.Addr]int{now, before} {
		if i == 1 && len(counts) > 0 {
			b.WriteString(", before")
		}
		for _, node := range slices.SortedFunc(maps.Keys(counts), netip.Addr.Compare) {
			fmt.Fprintf(b, " %v=%d", node, counts[node])
		}
	}
	b.WriteString("\n")
}

func serverText(b *strings.Builder, vs ipvs.VirtualServer) {
	for _, at := range slices.SortedFunc(maps.Keys(vs.RealServers), netip.AddrPort.Compare) {
		fmt.Fprintf(b, "  -> %v %v\n", at, vs.RealServers[at])
	}
}

// filterText writes the elements that the lines of virtual servers do not contain.
func filterText(b *strings.Builder, d *Desired) {
	lines := map[ipvs.Set][]string{}
	for _, e := range slices.SortedFunc(maps.Keys(d.Filter), ipvs.Element.Compare) {
		_, exists := d.Table[e.Key]
		_, local := d.Local[e.Key.Addr]
		switch e.Set {
		case ipvs.Endpoints:
			element := e.Key.Addr.String()
			if _, ok := d.Filter[ipvs.Element{Set: ipvs.Hairpin, Key: e.Key}]; ok {
				element += "*"
			}
			lines[e.Set] = append(lines[e.Set], element)
			continue
		case ipvs.Pods, ipvs.ServiceNetworks, ipvs.PodInterfaces:
			lines[e.Set] = append(lines[e.Set], strings.TrimSpace(e.Prefix().String()+" "+e.Interface()))
			continue
		case ipvs.Hairpin:
			_, exists = d.Filter[ipvs.Element{Set: ipvs.Endpoints, Key: e.Key}]
		case ipvs.Addresses:
			exists = local
		case ipvs.Served:
			exists = exists || isHealthPort(d, e.Key)
		}
		if !exists {
			fmt.Fprintf(b, "FILTER %v\n", e)
		}
	}
	for _, set := range []ipvs.Set{ipvs.Endpoints, ipvs.Pods, ipvs.PodInterfaces, ipvs.ServiceNetworks} {
		if len(lines[set]) > 0 {
			fmt.Fprintf(b, "%v %s\n", set, strings.Join(lines[set], " "))
		}
	}
	for _, addr := range slices.SortedFunc(maps.Keys(d.Local), netip.Addr.Compare) {
		if _, ok := d.Filter[ipvs.Element{Set: ipvs.Addresses, Key: ipvs.Key{Addr: addr}}]; !ok {
			fmt.Fprintf(b, "NOT IN THE FILTER %v\n", addr)
		}
	}
}

func isHealthPort(d *Desired, key ipvs.Key) bool {
	for _, h := range d.HealthPorts {
		if key.Protocol == ipvs.TCP && h.Port == key.Port && slices.Contains(h.Addrs.Addrs(), key.Addr) {
			return true
		}
	}
	return false
}

func words(addrs map[netip.Addr]struct{}) string {
	var b strings.Builder
	for _, a := range slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare) {
		b.WriteString(" " + a.String())
	}
	return b.String()
}
