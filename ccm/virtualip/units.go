package virtualip

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// unit is the addresses that move together: those of one Service, and of all Services that share one with it.
type unit struct {
	addresses []pools.Address // by address
	services  []pools.ServiceKey
	// local: a Service has policy Local, and only nodes with its endpoints answer.
	local bool
}

// Outages are the outages of the API server.
type Outages interface {
	// Settles returns when all speakers have had the time to report what happened in the last outage, and when that
	// ended. Zero: there was none.
	Settles(within time.Duration) (at, since time.Time)
}

// name returns the name of the VirtualIP: the lowest address, in a form that is a valid Kubernetes name.
func (u unit) name() string {
	lowest := u.addresses[0].Addr
	if lowest.Is4() {
		return lowest.String()
	}
	return strings.ReplaceAll(lowest.StringExpanded(), ":", "-")
}

// unitsOf groups the addresses that Services show in their status rightfully. An address only in the ledger is about to
// be written. An address only in the status is about to be cleared, and may belong to another Service already.
func unitsOf(services []*v1.Service, standing func(*v1.Service) []pools.Address) []unit {
	type node struct{ parent *node } // a union-find over Services, joined by their addresses
	var find func(*node) *node
	find = func(n *node) *node {
		if n.parent != nil {
			n.parent = find(n.parent)
			return n.parent
		}
		return n
	}
	bySvc, local := map[pools.ServiceKey]*node{}, map[pools.ServiceKey]bool{}
	byAddr := map[netip.Addr]*node{}
	poolOf := map[netip.Addr]string{}
	for _, svc := range services {
		held := standing(svc)
		if len(held) == 0 {
			continue
		}
		own := &node{}
		bySvc[servicerecord.KeyOf(svc)] = own
		local[servicerecord.KeyOf(svc)] = svc.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal
		for _, a := range held {
			if p, ok := poolOf[a.Addr]; !ok || a.Pool < p {
				poolOf[a.Addr] = a.Pool
			}
			if other := byAddr[a.Addr]; other == nil {
				byAddr[a.Addr] = own
			} else if x, y := find(other), find(own); x != y {
				x.parent = y
			}
		}
	}
	units := map[*node]*unit{}
	for key, n := range bySvc {
		root := find(n)
		if units[root] == nil {
			units[root] = &unit{}
		}
		units[root].services = append(units[root].services, key)
		units[root].local = units[root].local || local[key]
	}
	for a, n := range byAddr {
		u := units[find(n)]
		u.addresses = append(u.addresses, pools.Address{Addr: a, Pool: poolOf[a]})
	}
	out := make([]unit, 0, len(units))
	for _, u := range units {
		slices.SortFunc(u.addresses, pools.Address.Compare)
		slices.SortFunc(u.services, pools.ServiceKey.Compare)
		out = append(out, *u)
	}
	slices.SortFunc(out, func(a, b unit) int { return a.addresses[0].Addr.Compare(b.addresses[0].Addr) })
	return out
}

const (
	// settleFor is how long the lists of held addresses stay unchanged after a start, and after an outage of the API
	// server. The speakers may have elected other nodes meanwhile, and retry their reports every 5 s. A list written
	// earlier would move an address back.
	settleFor = 10 * time.Second
	// settleMost ends that although speakers still report changes. At writesPerSecond each, they need that long for
	// 2,400 addresses that one of them took over.
	settleMost = 2 * time.Minute
)

// settles returns when the speakers have had time to report the owners, and since when they could. While reports
// arrive they are not complete: each speaker writes a limited number of statuses per second.
func (p *Placer) settles() (at, since time.Time) {
	at, since = p.started.Add(settleFor), p.started
	if later, after := p.outage.Settles(settleFor); later.After(at) {
		at, since = later, after
	}
	idle, most := p.reported.Add(settleFor), since.Add(settleMost)
	if p.reported.After(since) && idle.After(at) && at.Before(most) {
		at = idle
		if most.Before(at) {
			at = most
		}
	}
	return at, since
}

// recordReports records that a status names another owner than at the last pass, while not all has settled.
func (p *Placer) recordReports(now time.Time, have map[string]*v1alpha1.VirtualIP) {
	if p.settled(now) {
		p.owners = nil
		return
	}
	before := p.owners
	p.owners = make(map[string]string, len(have))
	for name, vip := range have {
		p.owners[name] = vip.Status.Node
		if node, known := before[name]; known && node != vip.Status.Node {
			p.reported = now
		}
	}
}

// mayBeHeld reports whether a node may hold the VirtualIP without having been able to report it.
func (p *Placer) mayBeHeld(vip *v1alpha1.VirtualIP) bool {
	made, ours := p.writer.made[vip.UID]
	_, since := p.settles()
	return len(vip.Spec.Nodes) > 0 && !(ours && made.After(since))
}

func (p *Placer) settled(now time.Time) bool {
	if p.started.IsZero() {
		p.started = now
	}
	at, _ := p.settles()
	return !now.Before(at)
}
