package virtualip

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/placement"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// attached are the interfaces of the nodes, by the latest SpeakerStatuses: which nodes can answer for an address.
type attached struct {
	bySubnet map[netip.Prefix]map[string]bool
	byName   map[string]map[string]bool
	// of are the subnets that contain an address, sets the nodes by the subnets and names that suffice.
	of   map[netip.Addr][]netip.Prefix
	sets map[string]placement.Able
}

// foreignHosts are the addresses of foreign hosts (no nodes), as detected by the speakers before use. An announced
// address is not among them: its node defends it.
type foreignHosts struct {
	hosts    map[netip.Addr]foreignHost
	replaced map[pools.ServiceKey][]time.Time
}

// foreignHost is a foreign host, by its hardware address, and until when it counts.
type foreignHost struct {
	host  string
	until time.Time
}

// addressConflict is an address that was found to be in use, and the Services on it.
type addressConflict struct {
	addr     netip.Addr
	host     string
	services []pools.ServiceKey
}

func newAttached(speakers []v1alpha1.SpeakerStatus) attached {
	out := attached{
		bySubnet: map[netip.Prefix]map[string]bool{}, byName: map[string]map[string]bool{},
		of: map[netip.Addr][]netip.Prefix{}, sets: map[string]placement.Able{},
	}
	for i := range speakers {
		for _, in := range speakers[i].Status.Interfaces {
			add(out.byName, in.Name, speakers[i].Name)
			for _, text := range in.Subnets {
				if subnet, err := netip.ParsePrefix(text); err == nil {
					add(out.bySubnet, subnet.Masked(), speakers[i].Name)
				}
			}
		}
	}
	return out
}

func add[K comparable](sets map[K]map[string]bool, key K, node string) {
	if sets[key] == nil {
		sets[key] = map[string]bool{}
	}
	sets[key][node] = true
}

// unknown describes the named interfaces that no node has up, empty for none or before the first report.
func (a *attached) unknown(named []string) string {
	var absent []condition.Name
	for _, name := range named {
		if len(a.byName[name]) == 0 {
			absent = append(absent, condition.Name(name))
		}
	}
	if len(absent) == 0 || len(a.byName) == 0 {
		return ""
	}
	has := condition.Some(condition.Names(slices.Sorted(maps.Keys(a.byName))))
	return fmt.Sprintf("spec.interfaces: no node has %s up, or it is no Ethernet interface of its own; nodes have %s: correct the name, or remove it", condition.Some(absent), has)
}

// able returns the nodes that have an interface for each address of a unit, nil if there are none or all nodes are
// listed anyway.
func (p *Placer) able(u unit, who match) placement.Able {
	if u.local || len(who.nodes) <= placement.Most {
		return nil
	}
	return p.attached.able(u.addresses, who)
}

func (a *attached) able(addresses []pools.Address, who match) placement.Able {
	var key strings.Builder
	for _, name := range who.interfaces {
		key.WriteString(name + " ")
	}
	subnets := make([][]netip.Prefix, len(addresses))
	for i, address := range addresses {
		if who.bySubnet {
			subnets[i] = a.containing(address.Addr)
		}
		for _, subnet := range subnets[i] {
			key.WriteString(subnet.String() + " ")
		}
		key.WriteByte('/')
	}
	if set, known := a.sets[key.String()]; known {
		return set
	}
	var set placement.Able
	if nodes := a.nodes(who.interfaces, subnets); len(nodes) > 0 {
		set = &nodes
	}
	if a.sets != nil { // nil before the first report
		a.sets[key.String()] = set
	}
	return set
}

// nodes returns the nodes with one of the named interfaces, or with an interface in one of the subnets of each address.
func (a *attached) nodes(named []string, subnets [][]netip.Prefix) map[string]bool {
	out := map[string]bool{}
	for i, of := range subnets {
		here := map[string]bool{}
		for _, subnet := range of {
			for node := range a.bySubnet[subnet] {
				here[node] = i == 0 || out[node]
			}
		}
		for _, name := range named {
			for node := range a.byName[name] {
				here[node] = i == 0 || out[node]
			}
		}
		out = here
	}
	for node, is := range out {
		if !is {
			delete(out, node)
		}
	}
	return out
}

// containing returns the subnets that contain an address, sorted.
func (a *attached) containing(addr netip.Addr) []netip.Prefix {
	if of, known := a.of[addr]; known {
		return of
	}
	var of []netip.Prefix
	for subnet := range a.bySubnet {
		if subnet.Contains(addr) {
			of = append(of, subnet)
		}
	}
	slices.SortFunc(of, netip.Prefix.Compare)
	if a.of != nil {
		a.of[addr] = of
	}
	return of
}

// sameInterfaces reports whether two lists are equal.
func sameInterfaces(a, b []v1alpha1.InterfaceStatus) bool {
	return slices.EqualFunc(a, b, func(a, b v1alpha1.InterfaceStatus) bool {
		return a.Name == b.Name && slices.Equal(a.Subnets, b.Subnets)
	})
}

const (
	// withheldFor is how long an address is withheld after a foreign host answered for it.
	withheldFor = 10 * time.Minute
	// maxReplacements is how many addresses a Service gives up for that reason in withheldFor. A host that answers for
	// every address would otherwise make it go through a full pool and withhold that from all Services.
	maxReplacements = 3
	// settledAfter is the age from which clients may use a VirtualIP: its Services keep the address through a conflict.
	settledAfter = 2 * time.Minute

	reasonAddressInUse = "AddressInUse"
)

// read processes the conflicts of the VirtualIPs, and returns the new ones, in the order of addresses.
func (o *foreignHosts) read(now time.Time, have map[string]*v1alpha1.VirtualIP) (found []addressConflict) {
	if o.hosts == nil {
		o.hosts, o.replaced = map[netip.Addr]foreignHost{}, map[pools.ServiceKey][]time.Time{}
	}
	for key, times := range o.replaced {
		if times = slices.DeleteFunc(times, func(at time.Time) bool { return now.Sub(at) >= withheldFor }); len(times) == 0 {
			delete(o.replaced, key)
		} else {
			o.replaced[key] = times
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		vip := have[name]
		c := meta.FindStatusCondition(vip.Status.Conditions, v1alpha1.ConditionAnnounced)
		switch {
		case c == nil: // not probed yet
		case c.Status == metav1.ConditionTrue:
			for _, addr := range watch.Addresses(vip.Spec.Addresses) {
				delete(o.hosts, addr)
			}
		default:
			found = append(found, o.conflicts(now, vip)...)
		}
	}
	maps.DeleteFunc(o.hosts, func(_ netip.Addr, by foreignHost) bool { return !now.Before(by.until) })
	return found
}

// conflicts processes the conflicts of a VirtualIP that is not announced.
func (o *foreignHosts) conflicts(now time.Time, vip *v1alpha1.VirtualIP) (found []addressConflict) {
	for _, c := range vip.Status.Conflicts {
		addr, err := netip.ParseAddr(c.Address)
		if err != nil {
			continue // the CRD allows only addresses
		}
		n := addressConflict{addr: addr.Unmap(), host: c.MAC}
		often := false
		for _, s := range vip.Spec.Services {
			key := pools.ServiceKey{Namespace: s.Namespace, Name: s.Name}
			n.services = append(n.services, key)
			often = often || len(o.replaced[key]) >= maxReplacements
		}
		if _, known := o.hosts[n.addr]; !known {
			if often || now.Sub(vip.CreationTimestamp.Time) > settledAfter {
				continue
			}
			for _, key := range n.services {
				o.replaced[key] = append(o.replaced[key], now)
			}
			found = append(found, n)
		}
		o.hosts[n.addr] = foreignHost{host: c.MAC, until: now.Add(withheldFor)}
	}
	return found
}

// next returns when the first address may be assigned again, zero for never.
func (o *foreignHosts) next() (at time.Time) {
	for _, by := range o.hosts {
		if at.IsZero() || by.until.Before(at) {
			at = by.until
		}
	}
	return at
}

// withholdForeign withholds the addresses of foreign hosts in the ledger, and sends an Event to the Services that get
// another one.
func (p *Placer) withholdForeign(now time.Time, have map[string]*v1alpha1.VirtualIP) {
	if !p.settled(now) {
		return // the statuses may be outdated
	}
	for _, n := range p.foreign.read(now, have) {
		for _, key := range n.services {
			svc, err := p.services.Services(key.Namespace).Get(key.Name)
			if err != nil || slices.Contains(servicerecord.RequestedBy(svc), n.addr) {
				continue // deleted, or it requests exactly this address
			}
			p.events.Eventf(svc, v1.EventTypeWarning, reasonAddressInUse, "%s", n.text(p.ledger.PoolOf(n.addr)))
		}
	}
	hosts := make(map[netip.Addr]string, len(p.foreign.hosts))
	for addr, by := range p.foreign.hosts {
		hosts[addr] = by.host
	}
	p.ledger.SetHosts(hosts)
	if at := p.foreign.next(); !at.IsZero() {
		p.wake(at)
	}
}

func (n addressConflict) text(pool string) string {
	return fmt.Sprintf("another host, %s, answers for %s: the Service gets another address if one is free. "+
		"Remove the address from that host, or from IPAddressPool %s", n.host, n.addr, pool)
}
