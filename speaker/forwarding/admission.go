package forwarding

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// touchedAdmissions updates the addresses and networks of the cluster itself. It adds the Services whose accepted
// addresses, or the pools of these, changed.
func (p *Planner) touchedAdmissions(v *view.View, t view.Touched, services map[pools.ServiceKey]struct{}) {
	m := &p.admission
	m.touchedEndpoints(v, t, services)
	if !m.learn(v, t, p.node, p.options) {
		return
	}
	for key, before := range p.services {
		if _, already := services[key]; already {
			continue
		}
		if addresses, refused := p.accept(v, v.Services[key]); !slices.Equal(addresses, before.Addresses) || !maps.Equal(refused, before.refused) {
			services[key] = struct{}{}
		}
	}
}

// touchedEndpoints drops outdated endpoint checks and adds the Services with such an address.
func (m *admission) touchedEndpoints(v *view.View, t view.Touched, services map[pools.ServiceKey]struct{}) {
	if t.All {
		clear(m.endpoints)
		return
	}
	if len(m.endpoints) == 0 {
		return
	}
	drop := func(addr netip.Addr) {
		delete(m.endpoints, addr)
		maps.Copy(services, m.external[addr])
	}
	for key := range t.Slices {
		for addr, of := range m.endpoints {
			if of == key && !hasEndpoint(v.Slices[key], addr) {
				drop(addr)
			}
		}
		for _, slice := range v.Slices[key] {
			for _, e := range slice.Endpoints {
				if of, cached := m.endpoints[e.Addr]; cached && (of == pools.ServiceKey{} || key.Compare(of) < 0) {
					drop(e.Addr)
				}
			}
		}
	}
}

// hasEndpoint reports whether an address is an endpoint in one of the slices.
func hasEndpoint(all map[string]view.Slice, addr netip.Addr) bool {
	for _, slice := range all {
		if slices.ContainsFunc(slice.Endpoints, func(e view.Endpoint) bool { return e.Addr == addr }) {
			return true
		}
	}
	return false
}

// accept returns the accepted addresses of a Service, and why the others are refused. An external or foreign address of
// another node is served by that node and not recorded as refused.
func (p *Planner) accept(v *view.View, svc view.Service) (accepted []view.Address, refused map[netip.Addr]pools.Refusal) {
	node := v.Nodes[p.node]
	for _, a := range svc.Addresses {
		var why pools.Refusal
		var bad bool
		switch guard := p.admission.guard; a.Kind {
		case view.ClusterIP:
			why, bad = guard.ClusterIP(a.IP)
		case view.LoadBalancer:
			if pool := p.admission.pools.PoolOf(a.IP); pool != "" {
				a.Pool = pool
			}
			why, bad = guard.Assigned(a.IP, a.Pool)
		case view.External:
			why, bad = guard.External(a.IP, p.admission.pools.PoolOf(a.IP), isHost(v, a.IP, node))
		case view.Foreign:
			why, bad = guard.Foreign(a.IP, isHost(v, a.IP, node))
		}
		if !bad && bearsEndpoints(a.Kind) && !isHost(v, a.IP, node) {
			if of := p.admission.endpointOf(v, a.IP); of != (pools.ServiceKey{}) {
				why, bad = pools.Refusal{Rule: pools.RuleEndpoint, Of: of.String()}, true
			}
		}
		switch {
		case !bad:
			accepted = append(accepted, a)
		case why.Rule != pools.RuleNode || !bearsEndpoints(a.Kind):
			if refused == nil {
				refused = map[netip.Addr]pools.Refusal{}
			}
			refused[a.IP] = why
		}
	}
	return accepted, refused
}

// bearsEndpoints reports whether an address of the kind is refused if it is an endpoint. Addresses of pools and
// ClusterIPs are not: a user who can write EndpointSlices could withdraw them.
func bearsEndpoints(k view.AddressKind) bool { return k == view.External || k == view.Foreign }

// endpointOf returns the first Service by name that has an address as an endpoint, the zero key for none. It scans all
// endpoints at most once per plan.
func (m *admission) endpointOf(v *view.View, addr netip.Addr) pools.ServiceKey {
	if first, known := m.endpoints[addr]; known {
		return first
	}
	if m.all == nil {
		m.all = map[netip.Addr]pools.ServiceKey{}
		for key, slices := range v.Slices {
			for _, slice := range slices {
				for _, e := range slice.Endpoints {
					if first, there := m.all[e.Addr]; !there || key.Compare(first) < 0 {
						m.all[e.Addr] = key
					}
				}
			}
		}
	}
	m.endpoints[addr] = m.all[addr]
	return m.all[addr]
}

// record records the present addresses of a Service, none for a deleted one.
func (m *admission) record(key pools.ServiceKey, addresses []view.Address) {
	for _, addr := range m.externalOf[key] {
		m.external.Remove(addr, key)
	}
	var external []netip.Addr
	for _, a := range addresses {
		if bearsEndpoints(a.Kind) {
			external = append(external, a.IP)
			m.external.Add(a.IP, key)
		}
	}
	for _, addr := range m.externalOf[key] {
		if _, still := m.external[addr]; !still {
			delete(m.endpoints, addr)
		}
	}
	incremental.Set(m.externalOf, key, external, len(external) > 0)
}

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

// AddrSet is a set of addresses, comparable with ==. The zero value is empty.
type AddrSet struct{ text string }

// NewAddrSet returns the set of these addresses.
func NewAddrSet(addrs ...netip.Addr) AddrSet {
	sorted := slices.Compact(slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare))
	texts := make([]string, len(sorted))
	for i, a := range sorted {
		texts[i] = a.String()
	}
	return AddrSet{strings.Join(texts, " ")}
}

// Addrs returns the addresses, sorted.
func (s AddrSet) Addrs() []netip.Addr {
	var addrs []netip.Addr
	for text := range strings.FieldsSeq(s.text) {
		addrs = append(addrs, netip.MustParseAddr(text)) // as NewAddrSet wrote it
	}
	return addrs
}

func (s AddrSet) String() string { return s.text }

// nodePortAddresses returns the addresses of this node that serve NodePorts: its InternalIPs, or all of
// its addresses within Options.NodePortCIDRs. Loopback and link-local addresses are excluded. The result may be empty.
func nodePortAddresses(v *view.View, node view.Node, o Options) []netip.Addr {
	if len(o.NodePortCIDRs) == 0 {
		return node.Addresses
	}
	addrs := map[netip.Addr]struct{}{}
	for _, a := range slices.AppendSeq(slices.Clone(node.Addresses), maps.Keys(v.Host)) {
		if a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() {
			continue
		}
		if slices.ContainsFunc(o.NodePortCIDRs, func(p netip.Prefix) bool { return p.Contains(a) }) {
			addrs[a] = struct{}{}
		}
	}
	return slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare)
}

// isHost reports whether an address is one of this node itself, which an external IP may be. It must not be taken from
// the node, nor may the node's own ports be refused there.
func isHost(v *view.View, addr netip.Addr, node view.Node) bool {
	_, host := v.Host[addr]
	return host || slices.Contains(node.Addresses, addr)
}
