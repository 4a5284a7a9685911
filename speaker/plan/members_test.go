package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/speaker/view"
)

// station is the speaker of one node in a scenario.
type station struct {
	dead, observer, stopping, unsynced bool
	// notunnels is set if it cannot use tunnels.
	notunnels bool
	// ipv4tunnels is set if it can use them for IPv4 only.
	ipv4tunnels bool
	// paused is set while it has just become reachable again.
	paused   bool
	isolated map[string]struct{}
	unable   map[netip.Addr]view.Reason
	// asymmetric are the nodes that it does not receive.
	asymmetric map[string]bool
	// returned counts how often another node became reachable again.
	returned int
	// view is its last state of the cluster while it is disconnected from the API server; nil while connected.
	view *view.View
	// links are its own interfaces, if they differ from the common ones.
	links map[string]view.Link
	// published are its last published claims.
	published map[string]view.Claim
}

func (f *fixture) station(node string) *station {
	if f.stations[node] == nil {
		f.stations[node] = &station{isolated: map[string]struct{}{}, unable: map[netip.Addr]view.Reason{}, asymmetric: map[string]bool{}}
	}
	return f.stations[node]
}

// viewOf returns the View of one node's speaker. Every Node of the API has a speaker.
func (f *fixture) viewOf(node string) *view.View {
	s := f.station(node)
	v := *f.view
	if s.view != nil {
		v = *s.view
	}
	if s.links != nil {
		v.Links = s.links
	}
	v.Unable, v.Leaving = s.unable, s.stopping
	v.NotDirect = ""
	if s.notunnels {
		v.NotDirect = view.TunnelUnavailable
	}
	v.DirectIPv4Only = s.ipv4tunnels
	v.Members = view.Members{Observer: s.observer, Isolated: s.isolated, Returned: s.returned, Peers: map[string]view.Member{}}
	for name := range f.view.Nodes {
		if name == node {
			continue
		}
		o := f.station(name)
		m := view.Member{Alive: !o.dead && !s.asymmetric[name], Observer: o.observer, Leaving: o.stopping, Synced: !o.unsynced, Direct: !o.notunnels,
			DirectIPv4Only: o.ipv4tunnels,
			Returned:       o.paused, On: map[string]struct{}{}, Claims: map[view.VIPID]view.Claim{}}
		for l := range v.Links {
			if _, cut := s.isolated[l]; !cut && m.Alive {
				m.On[l] = struct{}{}
			}
		}
		if o.asymmetric[node] && !o.observer && len(m.On) > 0 {
			m.Asymmetric = maps.Clone(m.On)
		}
		for vip, c := range o.published {
			m.Claims[view.IDOf(vip)] = c
		}
		v.Members.Peers[name] = m
	}
	return &v
}

// stationCommand changes the state of speakers, and reports whether the command was one of them:
//
//	dead|alive|observer|joined|stopping|unsynced|synced NODE
//	paused|trusted NODE    the others receive it again, after it had counted as dead
//	asymmetric|receives NODE OTHER
//	returned NODE          an unreachable node became reachable again for it
//	notunnels|ipv4tunnels|tunnels NODE whether it can use tunnels, and for which families
//	isolated|rejoined NODE INTERFACE
//	unable NODE IP REASON
//	able NODE IP
//	linkdown|linked NODE   its interfaces
//	cut|linkup NODE        its connection to the API server
//	recreated NODE         its speaker restarts
//	link NAME [SUBNET...]  on every node
func (f *fixture) stationCommand(words []string) bool {
	if words[0] == "link" {
		l := view.Link{Name: words[1]}
		for _, p := range words[2:] {
			l.Subnets = append(l.Subnets, netip.MustParsePrefix(p))
		}
		f.view.Links[l.Name] = l
		return true
	}
	if len(words) < 2 {
		return false
	}
	s := f.station(words[1])
	switch words[0] {
	case "dead":
		s.dead = true
	case "alive":
		s.dead = false
	case "notunnels", "ipv4tunnels", "tunnels":
		s.notunnels, s.ipv4tunnels = words[0] == "notunnels", words[0] == "ipv4tunnels"
	case "observer":
		s.observer = true
	case "joined":
		s.observer = false
	case "stopping":
		s.stopping = true
	case "unsynced":
		s.unsynced = true
	case "synced":
		s.unsynced = false
	case "paused":
		s.paused = true
	case "trusted":
		s.paused = false
	case "asymmetric":
		s.asymmetric[words[2]] = true
	case "receives":
		delete(s.asymmetric, words[2])
	case "returned":
		s.returned++
	case "isolated":
		s.isolated = map[string]struct{}{words[2]: {}}
	case "rejoined":
		s.isolated = map[string]struct{}{}
	case "unable":
		s.unable = maps.Clone(s.unable)
		s.unable[netip.MustParseAddr(words[2])] = view.Reason(words[3])
	case "able":
		s.unable = maps.Clone(s.unable)
		delete(s.unable, netip.MustParseAddr(words[2]))
	case "linkdown":
		s.links = map[string]view.Link{}
	case "linked":
		s.links = nil
	case "cut":
		s.view = frozen(f.view)
	case "linkup":
		s.view = nil
	case "recreated":
		delete(f.planners, words[1])
		delete(f.stations, words[1])
		f.station(words[1]).observer = true
	default:
		return false
	}
	return true
}

// frozen returns a copy that later commands do not change.
func frozen(v *view.View) *view.View {
	c := *v
	c.Services, c.Nodes, c.VIPs = maps.Clone(v.Services), maps.Clone(v.Nodes), maps.Clone(v.VIPs)
	c.Advertisements, c.Links = maps.Clone(v.Advertisements), maps.Clone(v.Links)
	c.Slices = maps.Clone(v.Slices)
	for key, slices := range v.Slices {
		c.Slices[key] = maps.Clone(slices)
	}
	return &c
}

// owners returns the decision of each node about every VirtualIP, one per line. A node receives the claims of those
// before it.
func (f *fixture) owners(nodes []string) []string {
	var out []string
	for _, node := range nodes {
		d := f.plan(node)
		for _, name := range slices.Sorted(maps.Keys(d.VIPs)) {
			dec := d.VIPs[name]
			line := fmt.Sprintf("%s: %s %s", node, name, dec.Reason)
			if dec.Owner != "" {
				line += " owner=" + dec.Owner
			}
			if dec.Reporter {
				line += " reporter"
			}
			if dec.Asymmetric != "" {
				line += " asymmetric=" + dec.Asymmetric
			}
			if dec.Rival != "" {
				line += " rival=" + dec.Rival
			}
			if c, claims := d.Claims[name]; claims {
				line += fmt.Sprintf(" claim=%s,%d,%d", states[c.State], c.Generation, c.Rank)
				if c.Successor != "" {
					line += "," + c.Successor
				}
			}
			for _, a := range slices.SortedFunc(maps.Keys(d.Announce), netip.Addr.Compare) {
				if ann := d.Announce[a]; ann.VIP == name {
					line += fmt.Sprintf(" answers=%v@%s", a, strings.Join(ann.Interfaces, ","))
					if ann.Probe {
						line += ",probe"
					}
					if ann.Epoch > 0 {
						line += fmt.Sprintf(",reannounce%d", ann.Epoch)
					}
				}
			}
			if dec.Moved != "" {
				line += fmt.Sprintf(" moved=%s", dec.Moved)
				if dec.From != "" {
					line += ",from=" + dec.From
				}
			}
			if at := f.planners[node].owners.WakeOf(name); !at.IsZero() {
				line += fmt.Sprintf(" wake=%v", at.Sub(f.now))
			}
			out = append(out, line)
		}
	}
	return out
}

var states = map[view.ClaimState]string{view.Held: "held", view.HandingOver: "handover", view.Declined: "declined"}

// observe records the published claims of a node.
func (f *fixture) observe(node string, d *Desired) {
	f.station(node).published = maps.Clone(d.Claims)
}
