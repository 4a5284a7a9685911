package virtualip

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

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
