package forwarding

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// learn updates the addresses and networks of the cluster itself and those of the pools, and reports whether any
// changed.
func (m *admission) learn(v *view.View, t view.Touched, self string, o Options) bool {
	changed := false
	learn := func(differs bool) { changed = changed || differs }
	node := func(name string) {
		n := v.Nodes[name]
		learn(m.guard.SetAddresses(pools.Refusal{Rule: pools.RuleNode, Of: name}, n.Reached...))
		learn(m.guard.Set(pools.Refusal{Rule: pools.RulePodNetwork, Of: name}, n.PodCIDRs...))
	}
	if t.All {
		m.guard = pools.NewGuard(o.ExternalIPs)
		m.guard.Set(pools.Refusal{Rule: pools.RulePodNetwork}, o.DetectLocal.CIDRs...)
		for name := range v.Nodes {
			node(name)
		}
		for name, peer := range v.BGPPeers {
			m.guard.SetAddresses(pools.Refusal{Rule: pools.RulePeer, Of: name}, peer.Address)
		}
	}
	for name := range t.Nodes {
		node(name)
	}
	for name := range t.BGPPeers {
		peer := v.BGPPeers[name]
		learn(m.guard.SetAddresses(pools.Refusal{Rule: pools.RulePeer, Of: name}, peer.Address))
	}
	if t.All || t.ServiceNetworks {
		learn(m.guard.Replace(pools.RuleServiceNetwork, v.ServiceNetworks))
	}
	if t.All || t.Gateways {
		learn(m.guard.SetAddresses(pools.Refusal{Rule: pools.RuleGateway, Of: self}, slices.Collect(maps.Keys(v.Gateways))...))
	}
	if _, touched := t.Slices[apiServer]; t.All || touched {
		at := slices.Clone(o.APIServers)
		for _, e := range v.Slices[apiServer][apiServer.Name].Endpoints { // the slice written by the API server, and no other slice of the Service
			at = append(at, e.Addr)
		}
		learn(m.guard.SetAddresses(pools.Refusal{Rule: pools.RuleAPIServer}, at...))
	}
	if t.All || t.Pools {
		m.pools, changed = poolIndex(v.Pools), true
	}
	if t.All || t.Gateways || changed && len(t.Nodes) > 0 {
		m.gateways = slices.DeleteFunc(slices.SortedFunc(maps.Keys(v.Gateways), netip.Addr.Compare), m.guard.IsOfNodes)
	}
	return changed
}

// apiServer is the Service of the API server. The API server itself writes its endpoints.
var apiServer = pools.ServiceKey{Namespace: "default", Name: "kubernetes"}

func poolIndex(all map[string]view.Pool) pools.Index {
	out := make([]pools.Pool, 0, len(all))
	for name, p := range all {
		out = append(out, pools.Pool{Name: name, Ranges: p.Ranges, Created: time.Unix(p.Created, 0)})
	}
	return pools.NewIndex(out)
}
