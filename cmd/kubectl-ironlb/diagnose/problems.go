package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Group is a problem with the objects that have it.
type Group struct {
	Kind    string   `json:"kind"`
	State   State    `json:"state"` // Problem, Warning or Unknown
	Reason  string   `json:"reason"`
	Message string   `json:"message,omitempty"`
	Objects []string `json:"objects"`
}

// Problems returns all problems of the cluster, grouped by cause: the worst first, then in the order of the kinds below
// and of the first object.
func (c *Cluster) Problems() []Group {
	g := newGroups(c)
	g.unread(slices.Sorted(maps.Keys(c.Unread))...)
	if c.Controller != "" {
		g.add("Cluster", Problem, ReasonNotReady, c.Controller, "ironlb-ccm")
	}
	if c.Daemons != "" {
		g.add("Cluster", Problem, ReasonNotReady, c.Daemons, "ironlb-speaker")
	}
	for i := range c.Services {
		if svc := &c.Services[i]; c.Affected(svc) {
			if f := c.Cause(svc); f != nil && f.Reason != ReasonUnread {
				g.add("Service", f.State, f.Reason, f.Message, svc.Namespace+"/"+svc.Name)
			}
		}
	}
	g.specs()
	for i := range c.Speakers {
		g.node(&c.Speakers[i])
	}
	slices.SortStableFunc(g.all, func(a, b Group) int { return cmp.Compare(severity(a.State), severity(b.State)) })
	return g.all
}

func severity(s State) int { return slices.Index([]State{Problem, Unknown, Warning, Info, OK}, s) }

// Worse reports whether a state matters more than another.
func (s State) Worse(than State) bool { return severity(s) < severity(than) }

type groups struct {
	*Cluster
	absence map[string]v1alpha1.Absence
	all     []Group
	of      map[problem]int // index in all
	members map[member]bool
}

func newGroups(c *Cluster) *groups {
	return &groups{Cluster: c, absence: c.Absent(), of: map[problem]int{}, members: map[member]bool{}}
}

// problem identifies a Group.
type problem struct {
	kind            string
	state           State
	reason, message string
}

// member is an object with a problem.
type member struct {
	problem
	object string
}

// add adds an object to the group of its problem. Messages that differ only in the object are one.
func (g *groups) add(kind string, state State, reason, message, object string) {
	key := problem{kind, state, reason, message}
	i, known := g.of[key]
	if !known {
		i, g.all = len(g.all), append(g.all, Group{Kind: kind, State: state, Reason: reason, Message: message})
		g.of[key] = i
	}
	if one := (member{key, object}); !g.members[one] {
		g.members[one] = true
		g.all[i].Objects = append(g.all[i].Objects, object)
	}
}

// unread adds those of the kinds that could not be listed.
func (g *groups) unread(kinds ...string) {
	for _, kind := range kinds {
		if why := g.Unread[kind]; why != "" {
			g.add("Cluster", Unknown, ReasonUnread, "cannot be listed: "+why, kind)
		}
	}
}

// specs adds the problems of what the operator configures.
func (g *groups) specs() {
	for i := range g.Pools {
		p := &g.Pools[i]
		g.unlessTrue("IPAddressPool", p.Name, p.Status.Conditions, condition.Ready)
		for _, kind := range []string{"Exhausted", "Draining", "Withheld"} {
			if c := trueCondition(p.Status.Conditions, kind); c != nil {
				g.add("IPAddressPool", Warning, c.Reason, c.Message, p.Name)
			}
		}
	}
	for i := range g.L2 {
		g.unlessTrue("L2Advertisement", g.L2[i].Name, g.L2[i].Status.Conditions, condition.Ready)
	}
	for i := range g.BGP {
		g.unlessTrue("BGPAdvertisement", g.BGP[i].Name, g.BGP[i].Status.Conditions, condition.Ready)
	}
	for i := range g.Peers {
		g.unlessTrue("BGPPeer", g.Peers[i].Name, g.Peers[i].Status.Conditions, condition.Ready)
		// The sessions have the other reasons.
		if c := meta.FindStatusCondition(g.Peers[i].Status.Conditions, v1alpha1.ConditionEstablished); c != nil && c.Reason == "NoNode" {
			g.add("BGPPeer", Problem, c.Reason, c.Message, g.Peers[i].Name)
		}
	}
}

// unlessTrue adds a condition that is not True.
func (g *groups) unlessTrue(kind, name string, all []metav1.Condition, of string) {
	switch c := meta.FindStatusCondition(all, of); {
	case c == nil || c.Status == metav1.ConditionTrue:
	case c.Status == metav1.ConditionFalse:
		g.add(kind, Problem, c.Reason, c.Message, name)
	default:
		g.add(kind, Unknown, c.Reason, c.Message, name)
	}
}

// node adds the problems that a speaker reports.
func (g *groups) node(speaker *v1alpha1.SpeakerStatus) {
	name, s := speaker.Name, &speaker.Status
	if why := g.absence[name]; why != "" {
		g.add("Node", Problem, string(why), "its speaker is gone: its last report is outdated", name)
		if s.BGP != nil {
			for _, session := range s.BGP.Sessions {
				g.add("BGP session", Unknown, string(why), "the speaker of its node is gone", name+" to "+session.Peer)
			}
		}
		return
	}
	if !s.DataPlane.Healthy {
		g.add("Node", Problem, s.DataPlane.Reason, s.DataPlane.Message, name)
	}
	if s.CutOff {
		g.add("Node", Problem, "CutOff", "may be cut off: most other nodes became unreachable at once, and no gateway answers", name)
	}
	for _, c := range s.Conditions {
		if state := stateOf(c); c.Status == metav1.ConditionFalse {
			g.add("Node", state, c.Reason, c.Message, name)
		}
	}
	for _, u := range s.Unreachable {
		g.add("Node", Problem, "Unreachable", g.unreachable(&u), name)
	}
	for _, m := range s.Members {
		if m.State != v1alpha1.MemberAlive && g.absence[m.Node] == "" {
			g.add("Node", Warning, string(m.State), fmt.Sprintf("%s receives its heartbeats no longer, or not by all paths, since %s", name, g.ago(m.Since)), m.Node)
		}
	}
	for _, other := range s.WithoutWitness {
		g.add("Node", Warning, "WithoutWitness", "answers neither ICMP echo nor ARP: only Kubernetes detects its death", other)
	}
	if s.BGP != nil {
		g.bgp(name, s.BGP)
	}
}

func (g *groups) unreachable(u *v1alpha1.UnreachableStatus) string {
	var silent []string
	for _, w := range u.Silent {
		silent = append(silent, string(w))
	}
	more := ""
	if u.Gateway != "" {
		more += fmt.Sprintf("; gateway %s answers", u.Gateway)
	}
	if u.EndpointsFailedOpen > 0 {
		more += fmt.Sprintf("; %d endpoints take connections because no other is left", u.EndpointsFailedOpen)
	}
	return fmt.Sprintf("cannot reach %s since %s (silent: %s): %d endpoints take no new connections%s", u.Node, g.ago(&u.Since), strings.Join(silent, ", "), u.Endpoints, more)
}

func (g *groups) bgp(node string, bgp *v1alpha1.BGPStatus) {
	for i := range bgp.Sessions {
		s := &bgp.Sessions[i]
		name := node + " to " + s.Peer
		switch {
		case s.State != v1alpha1.SessionEstablished:
			g.add("BGP session", Problem, cmp.Or(s.Reason, ReasonSessionDown), cmp.Or(s.Message, "state "+string(s.State)), name)
		case s.Reason == v1alpha1.ReasonNotConfigured:
			g.add("BGP session", Warning, s.Reason, s.Message, name)
		case s.BFD != nil && s.BFD.Reason != "":
			g.add("BGP session", Warning, s.BFD.Reason, cmp.Or(s.BFD.Message, string(s.BFD.State)), name)
		}
	}
	for _, u := range bgp.Unserved {
		text := strings.Join(u.Addresses, ", ")
		if more := int(u.Count) - len(u.Addresses); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		g.add("Node", Problem, u.Reason, strings.TrimSuffix(text+": "+u.Message, ": "), node)
	}
}
