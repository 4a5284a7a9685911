package virtualip

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/ccm/advertisement"
	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/placement"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
)

// Reasons of the condition NoEligibleNode.
const (
	reasonNoNodeMatches      = "NoNodeMatches"
	reasonNodesExcluded      = "NodesExcluded"
	reasonNoCommonNode       = "NoCommonNode"
	reasonServicesNotCovered = "ServicesNotCovered"
	reasonNodesEligible      = "NodesEligible"
)

// match is the set of nodes that may announce a unit.
type match struct {
	// nodes are eligible, sorted; weights are their preferences. Shared by units with equal matches.
	nodes   []string
	weights placement.Weights
	// interfaces are those that the advertisements name; bySubnet: one names none, and those in the subnet of an address
	// announce it.
	interfaces []string
	bySubnet   bool
	// reason and message explain an empty set.
	reason, message string
}

// matcher determines the eligible nodes of a unit. Each pass creates a new one.
type matcher struct {
	ads      []advertisement.Selection
	nodes    []*v1.Node        // by name
	excluded map[string]string // why a node may not announce any address
	poolOf   func(pool string) map[string]string
	services func(pools.ServiceKey) map[string]string
	cached   map[string]match
}

// newMatcher takes the advertisements and nodes, whether the exclude label of nodes is ignored, and the functions that
// return the labels of a pool and of a Service.
func newMatcher(ads []advertisement.Selection, nodes []*v1.Node, ignoreExclude bool, poolOf func(string) map[string]string,
	services func(pools.ServiceKey) map[string]string) *matcher {
	m := &matcher{ads: ads, nodes: slices.Clone(nodes), excluded: map[string]string{}, poolOf: poolOf, services: services, cached: map[string]match{}}
	slices.SortFunc(m.nodes, func(a, b *v1.Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range m.nodes {
		if why := watch.ExclusionReason(n, ignoreExclude); why != "" {
			m.excluded[n.Name] = why
		}
	}
	return m
}

// advertised returns the advertised addresses of the unit, and the nodes that may announce them together. An
// advertisement counts only if it selects every Service of the unit. None: no advertisement selects any of them.
func (m *matcher) advertised(u unit) ([]pools.Address, match) {
	var all, some []int // the advertisements that select all the Services, and those that select some
	lacks := map[int]pools.ServiceKey{}
	for i := range m.ads {
		a := &m.ads[i]
		is := func(s pools.ServiceKey) bool { return len(a.Services) == 0 || a.SelectsService(m.services(s)) }
		isNot := func(s pools.ServiceKey) bool { return !is(s) }
		switch missing := slices.IndexFunc(u.services, isNot); {
		case missing < 0:
			all = append(all, i)
		case slices.ContainsFunc(u.services, is):
			some = append(some, i)
			lacks[i] = u.services[missing]
		}
	}
	if addresses := m.served(u.addresses, all); len(addresses) > 0 {
		return addresses, m.match(addresses, all)
	}
	for _, i := range some {
		if addresses := m.served(u.addresses, some); len(addresses) > 0 && len(m.served(addresses, []int{i})) > 0 {
			return addresses, match{reason: reasonServicesNotCovered, message: fmt.Sprintf(
				"One node announces the address for all its Services, and no L2Advertisement selects all of them: %s is missing. Widen serviceSelectors, or give it another address", lacks[i])}
		}
	}
	return nil, match{}
}

// served returns the addresses whose pools are selected by one of the advertisements.
func (m *matcher) served(addresses []pools.Address, ads []int) []pools.Address {
	return slices.DeleteFunc(slices.Clone(addresses), func(a pools.Address) bool {
		labels := m.poolOf(a.Pool)
		return !slices.ContainsFunc(ads, func(i int) bool { return m.ads[i].SelectsPool(a.Pool, labels) })
	})
}

// match returns the nodes that may announce all the addresses by the advertisements.
func (m *matcher) match(addresses []pools.Address, ads []int) match {
	var of []string // the pools
	for _, a := range addresses {
		of = append(of, a.Pool)
	}
	slices.Sort(of)
	of = slices.Compact(of)
	key := fmt.Sprint(ads, len(of), strings.Join(of, "/"))
	if found, ok := m.cached[key]; ok {
		return found
	}
	out := m.compute(of, ads)
	m.cached[key] = out
	return out
}

func (m *matcher) compute(of []string, ads []int) match {
	var out match
	for _, i := range ads {
		out.interfaces = append(out.interfaces, m.ads[i].Interfaces...)
		out.bySubnet = out.bySubnet || len(m.ads[i].Interfaces) == 0
	}
	weights := map[string]int{}
	matched, excluded := 0, []string(nil)
	for _, n := range m.nodes {
		weight, everywhere, anywhere := 0, true, false
		for _, pool := range of {
			labels := m.poolOf(pool)
			here := false
			for _, i := range ads {
				if a := &m.ads[i]; a.SelectsPool(pool, labels) && a.SelectsNode(n) {
					here = true
					weight = max(weight, a.Weight(n))
				}
			}
			everywhere, anywhere = everywhere && here, anywhere || here
		}
		if anywhere {
			matched++
		}
		if !everywhere {
			continue
		}
		if why := m.excluded[n.Name]; why != "" {
			excluded = append(excluded, n.Name+" ("+why+")")
			continue
		}
		out.nodes = append(out.nodes, n.Name)
		if weight > 0 {
			weights[n.Name] = weight
		}
	}
	if len(weights) > 0 {
		out.weights = &weights
	}
	switch {
	case len(out.nodes) > 0:
	case len(excluded) > 0:
		out.reason, out.message = reasonNodesExcluded, "No node that an L2Advertisement for this address selects is eligible now: "+condition.Some(condition.Names(excluded))
		if strings.Contains(out.message, v1.LabelNodeExcludeBalancers) {
			out.message += ". Remove the label, or set the chart's value ignoreExcludeLB"
		}
	case matched > 0:
		out.reason = reasonNoCommonNode
		out.message = fmt.Sprintf("No node is eligible for the addresses of all the pools %s, which move together: make the L2Advertisements of these pools select a common node", strings.Join(of, ", "))
	default:
		out.reason, out.message = reasonNoNodeMatches, "No node matches spec.nodeSelectors of an L2Advertisement for this address: widen them, or label a node"
	}
	return out
}

// placementNode returns the node's properties that placement needs.
func placementNode(n *v1.Node) placement.Node {
	return placement.Node{Name: n.Name, Ready: watch.HasCondition(n, v1.NodeReady), Cordoned: n.Spec.Unschedulable}
}
