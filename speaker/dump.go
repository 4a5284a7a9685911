package speaker

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// Dump is the state of the loop, for the diagnosis of a node. Each field of it is named here, so that no password of a
// BGPPeer is in it.
type Dump struct {
	// Reconciled is when the last reconcile ended, Reason why the node is not as planned.
	Reconciled time.Time `json:"reconciled"`
	Ready      bool      `json:"ready"`
	Reason     string    `json:"reason,omitempty"`
	Leaving    bool      `json:"leaving,omitempty"`
	// Observer is set while this node must claim nothing.
	Observer bool `json:"observer,omitempty"`
	// Interfaces are those on which other members are received, Isolated those of them on which only others receive one
	// another.
	Interfaces []string        `json:"interfaces,omitempty"`
	Isolated   []string        `json:"isolated,omitempty"`
	Members    []MemberDump    `json:"members"`
	VirtualIPs []VirtualIPDump `json:"virtualIPs"`
	Services   []ServiceDump   `json:"services"`
}

// MemberDump is another node as its speaker is received.
type MemberDump struct {
	Node  string `json:"node"`
	Alive bool   `json:"alive"`
	// On are the interfaces on which it is received. On those of Asymmetric it does not receive this node.
	On         []string `json:"on,omitempty"`
	Asymmetric []string `json:"asymmetric,omitempty"`
	Away       bool     `json:"away,omitempty"`
	Observer   bool     `json:"observer,omitempty"`
	Leaving    bool     `json:"leaving,omitempty"`
	Synced     bool     `json:"synced"`
	Direct     bool     `json:"direct"`
	Claims     int      `json:"claims"`
}

// VirtualIPDump is a VirtualIP with the decision of this node.
type VirtualIPDump struct {
	Name      string       `json:"name"`
	Addresses []netip.Addr `json:"addresses"`
	Services  []string     `json:"services"`
	Nodes     []string     `json:"nodes"`
	Owner     string       `json:"owner,omitempty"`
	Reason    view.Reason  `json:"reason"`
	// Moved is why it last came to this node or left it, at At.
	Moved view.Reason `json:"moved,omitempty"`
	At    time.Time   `json:"at,omitzero"`
	// Claims are the claims that the nodes publish, by node.
	Claims map[string]string `json:"claims"`
	// Announced are the interfaces on which this node answers, by address. Unable is why it cannot.
	Announced map[netip.Addr][]string    `json:"announced,omitempty"`
	Unable    map[netip.Addr]view.Reason `json:"unable,omitempty"`
}

// ServiceDump is a Service with its virtual servers and endpoints.
type ServiceDump struct {
	Service string      `json:"service"`
	Reason  view.Reason `json:"reason"`
	// NotDirect is why it is not forwarded directly although it should be.
	NotDirect      view.Reason         `json:"notDirect,omitempty"`
	VirtualServers []VirtualServerDump `json:"virtualServers,omitempty"`
	Endpoints      []EndpointDump      `json:"endpoints,omitempty"`
}

// VirtualServerDump is a planned virtual server. With forwarding "direct" its connections are distributed over Nodes.
type VirtualServerDump struct {
	Name        string                    `json:"name"`
	RealServers map[netip.AddrPort]uint32 `json:"realServers"` // with their weights
	Nodes       []netip.Addr              `json:"nodes,omitempty"`
}

// EndpointDump is an endpoint of an EndpointSlice. One that is not in use takes no new connections from this node.
type EndpointDump struct {
	Addr        netip.Addr `json:"address"`
	Node        string     `json:"node,omitempty"`
	InUse       bool       `json:"inUse"`
	Ready       bool       `json:"ready"`
	Serving     bool       `json:"serving"`
	Terminating bool       `json:"terminating,omitempty"`
	Unreachable bool       `json:"unreachable,omitempty"`
}

// Dump returns the state of the loop, as its own goroutine reads it between two reconciles.
func (s *Speaker) Dump(ctx context.Context) (Dump, error) {
	answer := make(chan Dump, 1)
	select {
	case s.dumps <- answer:
		return <-answer, nil
	case <-ctx.Done():
		return Dump{}, fmt.Errorf("the reconcile loop does not answer, its last reconcile ended at %s: %w",
			s.Health().Reconciled.UTC().Format(time.RFC3339), context.Cause(ctx))
	}
}

func (s *Speaker) dump() Dump {
	h := s.Health()
	d := Dump{Reconciled: h.Reconciled, Ready: h.Ready, Reason: h.Reason, Leaving: s.leaving.Load(),
		Members: []MemberDump{}, VirtualIPs: []VirtualIPDump{}, Services: []ServiceDump{}}
	if s.desired == nil {
		return d
	}
	m := s.view.Members
	d.Observer = m.Observer
	d.Interfaces, d.Isolated = names(m.Segments), names(m.Isolated)
	for _, node := range slices.Sorted(maps.Keys(m.Peers)) {
		p := m.Peers[node]
		d.Members = append(d.Members, MemberDump{Node: node, Alive: p.Alive, On: names(p.On), Asymmetric: names(p.Asymmetric), Away: p.Away,
			Observer: p.Observer, Leaving: p.Leaving, Synced: p.Synced, Direct: p.Direct, Claims: len(p.Claims)})
	}
	d.VirtualIPs = s.dumpVirtualIPs(d.VirtualIPs)
	virtuals := map[pools.ServiceKey][]ipvs.Key{}
	for key, port := range s.desired.ServicePorts {
		virtuals[port.Service] = append(virtuals[port.Service], key)
	}
	for _, service := range slices.SortedFunc(maps.Keys(s.desired.Services), pools.ServiceKey.Compare) {
		d.Services = append(d.Services, s.dumpService(service, virtuals[service]))
	}
	return d
}

// dumpVirtualIPs appends the VirtualIPs.
func (s *Speaker) dumpVirtualIPs(out []VirtualIPDump) []VirtualIPDump {
	at := map[view.VIPID]int{}
	held := s.l2.Held()
	for _, name := range slices.Sorted(maps.Keys(s.view.VIPs)) {
		vip, dec := s.view.VIPs[name], s.desired.VIPs[name]
		d := VirtualIPDump{Name: name, Addresses: slices.Clone(vip.Addresses), Nodes: slices.Clone(vip.Nodes), Owner: dec.Owner, Reason: dec.Reason,
			Moved: dec.Moved, At: dec.At, Claims: map[string]string{}, Announced: map[netip.Addr][]string{}, Unable: map[netip.Addr]view.Reason{}}
		for _, service := range vip.Services {
			d.Services = append(d.Services, service.String())
		}
		for _, addr := range vip.Addresses {
			if on, is := held[addr]; is {
				d.Announced[addr] = slices.Clone(on)
			}
			if why, is := s.unable[addr]; is {
				d.Unable[addr] = why
			}
		}
		if claim, is := s.published.Claims[name]; is {
			d.Claims[s.cfg.NodeName] = claim.State.String()
		}
		at[view.IDOf(name)] = len(out)
		out = append(out, d)
	}
	for node, member := range s.view.Members.Peers {
		for id, claim := range member.Claims {
			if i, known := at[id]; known {
				out[i].Claims[node] = claim.State.String()
			}
		}
	}
	return out
}

func (s *Speaker) dumpService(service pools.ServiceKey, virtuals []ipvs.Key) ServiceDump {
	d := ServiceDump{Service: service.String(), Reason: s.desired.Services[service], NotDirect: s.desired.Fallbacks[service].Reason}
	inUse := map[netip.Addr]struct{}{} // endpoints, and nodes with endpoints
	for _, key := range slices.SortedFunc(slices.Values(virtuals), ipvs.Key.Compare) {
		v := VirtualServerDump{Name: key.String(), RealServers: map[netip.AddrPort]uint32{}}
		for at, server := range s.desired.Table[key].RealServers {
			v.RealServers[at] = server.Weight
			if server.Weight > 0 {
				inUse[at.Addr()] = struct{}{}
			}
		}
		if directed, is := s.desired.Direct.Virtuals[key]; is {
			v.Nodes = nodesOf(directed.Slots, s.desired.Direct.Nodes)
			for _, node := range v.Nodes {
				inUse[node] = struct{}{}
			}
		}
		d.VirtualServers = append(d.VirtualServers, v)
	}
	for _, name := range slices.Sorted(maps.Keys(s.view.Slices[service])) {
		for _, e := range s.view.Slices[service][name].Endpoints {
			node, _ := s.view.Nodes[e.Node].Address(e.Addr.Is4())
			d.Endpoints = append(d.Endpoints, EndpointDump{Addr: e.Addr, Node: e.Node, Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating,
				InUse:       has(inUse, e.Addr) || e.Node != s.cfg.NodeName && has(inUse, node),
				Unreachable: e.Node != s.cfg.NodeName && has(s.view.Unreachable, e.Node)})
		}
	}
	return d
}

// nodesOf returns the nodes of the slots, sorted.
func nodesOf(slots *ipvs.Slots, nodes []netip.Addr) []netip.Addr {
	if slots == nil {
		return nil
	}
	set := map[netip.Addr]struct{}{}
	for _, index := range slots {
		if int(index) < len(nodes) {
			set[nodes[index]] = struct{}{}
		}
	}
	return sorted(set)
}

func names(set map[string]struct{}) []string { return slices.Sorted(maps.Keys(set)) }
