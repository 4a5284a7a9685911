package ccm

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

const (
	// occupiedFor is how long an address is given to nobody for which another host answered.
	occupiedFor = 10 * time.Minute
	// anotherMost is how many addresses a Service leaves for that in occupiedFor: a host that answers for every address
	// would have it go through a whole pool, and withhold that from all.
	anotherMost = 3
	// settledAfter is how old a VirtualIP is whose address clients may know: its Services keep it through a conflict.
	settledAfter = 2 * time.Minute

	reasonAddressInUse = "AddressInUse"
)

// occupied are the addresses for which hosts answer that are no nodes, as the speakers found before they used them.
// An address that is announced is not among them: its node defends it.
type occupied struct {
	hosts map[netip.Addr]occupant
	left  map[pools.ServiceKey][]time.Time
}

// occupant is a host, by its hardware address, and until when it counts.
type occupant struct {
	host  string
	until time.Time
}

// occupation is an address that was found to be occupied, and the Services on it.
type occupation struct {
	addr     netip.Addr
	host     string
	services []pools.ServiceKey
}

// read takes in what the VirtualIPs say, and returns what is new, in the order of addresses.
func (o *occupied) read(now time.Time, have map[string]*v1alpha1.VirtualIP) (found []occupation) {
	if o.hosts == nil {
		o.hosts, o.left = map[netip.Addr]occupant{}, map[pools.ServiceKey][]time.Time{}
	}
	for key, times := range o.left {
		if times = slices.DeleteFunc(times, func(at time.Time) bool { return now.Sub(at) >= occupiedFor }); len(times) == 0 {
			delete(o.left, key)
		} else {
			o.left[key] = times
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		vip := have[name]
		c := meta.FindStatusCondition(vip.Status.Conditions, v1alpha1.ConditionAnnounced)
		switch {
		case c == nil: // nobody has tried yet
		case c.Status == metav1.ConditionTrue:
			for _, addr := range addresses(vip.Spec.Addresses) {
				delete(o.hosts, addr)
			}
		default:
			found = append(found, o.conflicts(now, vip)...)
		}
	}
	maps.DeleteFunc(o.hosts, func(_ netip.Addr, by occupant) bool { return !now.Before(by.until) })
	return found
}

// conflicts reads those of a VirtualIP that is not announced.
func (o *occupied) conflicts(now time.Time, vip *v1alpha1.VirtualIP) (found []occupation) {
	for _, c := range vip.Status.Conflicts {
		addr, err := netip.ParseAddr(c.Address)
		if err != nil {
			continue // the CRD admits addresses only
		}
		n := occupation{addr: addr.Unmap(), host: c.MAC}
		often := false
		for _, s := range vip.Spec.Services {
			key := pools.ServiceKey{Namespace: s.Namespace, Name: s.Name}
			n.services = append(n.services, key)
			often = often || len(o.left[key]) >= anotherMost
		}
		if _, known := o.hosts[n.addr]; !known {
			if often || now.Sub(vip.CreationTimestamp.Time) > settledAfter {
				continue
			}
			for _, key := range n.services {
				o.left[key] = append(o.left[key], now)
			}
			found = append(found, n)
		}
		o.hosts[n.addr] = occupant{host: c.MAC, until: now.Add(occupiedFor)}
	}
	return found
}

// next is when the first address may be given out again, zero for never.
func (o *occupied) next() (at time.Time) {
	for _, by := range o.hosts {
		if at.IsZero() || by.until.Before(at) {
			at = by.until
		}
	}
	return at
}

// avoidOccupied has the ledger give no address that another host has, and tells the Services that get another one for
// that.
func (p *placer) avoidOccupied(now time.Time, have map[string]*v1alpha1.VirtualIP) {
	if !p.settled(now) {
		return // what the statuses say may be of before
	}
	for _, n := range p.occupied.read(now, have) {
		for _, key := range n.services {
			svc, err := p.services.Services(key.Namespace).Get(key.Name)
			if err != nil || slices.Contains(p.ledger.settings.claimOf(svc).Addresses, n.addr) {
				continue // it is gone, or asks for just this address
			}
			p.events.Eventf(svc, v1.EventTypeWarning, reasonAddressInUse, "%s", n.text(p.ledger.poolOf(n.addr)))
		}
	}
	hosts := make(map[netip.Addr]string, len(p.occupied.hosts))
	for addr, by := range p.occupied.hosts {
		hosts[addr] = by.host
	}
	p.ledger.setHosts(hosts)
	if at := p.occupied.next(); !at.IsZero() {
		p.wake(at)
	}
}

func (n occupation) text(pool string) string {
	return fmt.Sprintf("another host, %s, answers for %s: the Service gets another address if there is one. "+
		"Take the address away from that host, or out of IPAddressPool %s", n.host, n.addr, pool)
}
