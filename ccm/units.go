package ccm

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/ccm/placement"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// unit is the addresses that move together: those of one Service, and of all that share one with it.
type unit struct {
	addresses []pools.Address // by address
	services  []pools.ServiceKey
}

// name is that of the VirtualIP: the lowest address, in a form that Kubernetes takes for a name.
func (u unit) name() string {
	lowest := u.addresses[0].Addr
	if lowest.Is4() {
		return lowest.String()
	}
	return strings.ReplaceAll(lowest.StringExpanded(), ":", "-")
}

// unitsOf groups the addresses that Services show in their status and have a right to. What only the ledger knows is
// about to be written; what only the status shows is about to be cleared, and may be another Service's already.
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
	bySvc := map[pools.ServiceKey]*node{}
	byAddr := map[netip.Addr]*node{}
	poolOf := map[netip.Addr]string{}
	for _, svc := range services {
		held := standing(svc)
		if len(held) == 0 {
			continue
		}
		own := &node{}
		bySvc[keyOf(svc)] = own
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

// advertisement is an L2Advertisement that can be asked.
type advertisement struct {
	pools     []string // none: all
	selectors []pools.Selector
	every     bool // all nodes: no selector given
}

// advertisementOf reads the object. A selector that cannot be read matches nothing and is reported.
func advertisementOf(obj *v1alpha1.L2Advertisement) (advertisement, error) {
	a := advertisement{pools: obj.Spec.IPAddressPools, every: len(obj.Spec.NodeSelectors) == 0}
	var bad error
	for i := range obj.Spec.NodeSelectors {
		s, err := v1alpha1.SelectorOf(&obj.Spec.NodeSelectors[i])
		if err != nil {
			bad = err
		}
		a.selectors = append(a.selectors, s)
	}
	return a, bad
}

// matcher knows which nodes may answer for a pool.
type matcher struct {
	ads    []advertisement
	nodes  []*v1.Node // those that may answer at all, by name
	byPool map[string][]string
}

func newMatcher(ads []advertisement, nodes []*v1.Node) *matcher {
	m := &matcher{ads: ads, byPool: map[string][]string{}}
	for _, n := range nodes {
		if mayAnswer(n) {
			m.nodes = append(m.nodes, n)
		}
	}
	slices.SortFunc(m.nodes, func(a, b *v1.Node) int { return cmp.Compare(a.Name, b.Name) })
	return m
}

// advertised says whether any advertisement is for the pool.
func (m *matcher) advertised(pool string) bool {
	return slices.ContainsFunc(m.ads, func(a advertisement) bool { return a.serves(pool) })
}

// serves says whether the advertisement is for the pool.
func (a advertisement) serves(pool string) bool {
	return len(a.pools) == 0 || slices.Contains(a.pools, pool)
}

// on says whether the advertisement is on the node.
func (a advertisement) on(n *v1.Node) bool {
	return a.every || slices.ContainsFunc(a.selectors, func(s pools.Selector) bool { return s.Matches(n.Labels) })
}

// pool returns the names of the nodes that may answer for the pool, sorted.
func (m *matcher) pool(pool string) []string {
	if names, ok := m.byPool[pool]; ok {
		return names
	}
	var names []string
	for _, n := range m.nodes {
		if slices.ContainsFunc(m.ads, func(a advertisement) bool { return a.serves(pool) && a.on(n) }) {
			names = append(names, n.Name)
		}
	}
	m.byPool[pool] = names
	return names
}

// eligible returns the nodes that may answer for all the addresses, sorted.
func (m *matcher) eligible(addresses []pools.Address) []string {
	names := m.pool(addresses[0].Pool)
	for _, a := range addresses[1:] {
		if a.Pool == addresses[0].Pool {
			continue
		}
		also := m.pool(a.Pool)
		names = slices.DeleteFunc(slices.Clone(names), func(n string) bool {
			_, ok := slices.BinarySearch(also, n)
			return !ok
		})
	}
	return names
}

// taintToBeDeleted is set by the cluster autoscaler on a node that it is about to remove.
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// mayAnswer says whether the node may have addresses at all. One that is not ready may: it only comes last.
func mayAnswer(n *v1.Node) bool {
	if v, ok := n.Labels[v1.LabelNodeExcludeBalancers]; ok {
		if excluded, err := strconv.ParseBool(v); err != nil || excluded {
			return false
		}
	}
	return n.DeletionTimestamp == nil &&
		!slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == taintToBeDeleted })
}

// placementNode is what placement needs to know of the node.
func placementNode(n *v1.Node) placement.Node {
	return placement.Node{
		Name: n.Name,
		Ready: slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool {
			return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
		}),
	}
}
