package ipvs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"unique"
)

// Set is a set that the packet filter uses for lookups. The rules are fixed; only the sets change.
type Set uint8

const (
	// Addresses {address}: virtual addresses. A packet to one of them with a port that is not Served is refused, so
	// that the node's own sockets are not reachable through it.
	Addresses Set = iota + 1
	// Served {key}: virtual servers that exist, or whose packets are dropped deliberately.
	Served
	// Masqueraded {key}: every client's source address is rewritten to the node's (2.2.3: policy Cluster).
	Masqueraded
	// MasqueradedUnlessPod {key}: the same, except for a source in Pods (2.2.3: a ClusterIP).
	MasqueradedUnlessPod
	// Pods {prefix}: the sources that count as Pods.
	Pods
	// Restricted {key}: only sources in Allowed may connect; others are dropped.
	Restricted
	// Allowed {key, prefix}: a source that may connect to a Restricted virtual server.
	Allowed
	// Dropped {key}: external clients are dropped: the policy is Local and this node has no endpoint.
	Dropped
	// Hairpin {address}: endpoints on this node; a packet from one to itself through a virtual server is masqueraded.
	Hairpin
	// Endpoints {address}: endpoints; their packets that are invalid in conntrack are dropped, not forwarded.
	Endpoints
	// ServiceNetworks {prefix}: the cluster's Service CIDRs; packets to an address in one that is not in Addresses are
	// dropped. Only where this node serves ClusterIPs.
	ServiceNetworks
	// PodInterfaces {prefix, interface}: packets received on the interface count as a Pod's, as a source in Pods does.
	// The prefix covers one full family: 0.0.0.0/0 or ::/0.
	PodInterfaces
	// NumSets is one more than the last.
	NumSets
)

// Element is an element of a set. It is comparable; the parts that its set does not have are zero. There are many, so
// that the parts that few have are behind a handle.
type Element struct {
	// Key is complete, or only its address.
	Key    Key
	Set    Set
	source unique.Handle[source]
}

type source struct {
	prefix   netip.Prefix
	received string
}

// From returns the element with a prefix, which is masked.
func (e Element) From(prefix netip.Prefix) Element { return e.with(source{prefix, e.Interface()}) }

// On returns the element with the name of a network interface, or a prefix of names followed by "*": "cni0", "cali*".
func (e Element) On(name string) Element { return e.with(source{e.Prefix(), name}) }

func (e Element) with(s source) Element {
	e.source = unique.Handle[source]{}
	if s != (source{}) {
		e.source = unique.Make(s)
	}
	return e
}

// Prefix returns the prefix, the zero value without one.
func (e Element) Prefix() netip.Prefix { return e.parts().prefix }

// Interface returns the name of the interface, empty without one.
func (e Element) Interface() string { return e.parts().received }

func (e Element) parts() source {
	if e.source == (unique.Handle[source]{}) {
		return source{}
	}
	return e.source.Value()
}

// PodSources identify Pods: a packet from one of the prefixes, or received on one of the interfaces (as in Element).
type PodSources struct {
	Prefixes   []netip.Prefix
	Interfaces []string
}

// Equal reports whether both are the same, in the same order.
func (p PodSources) Equal(q PodSources) bool {
	return slices.Equal(p.Prefixes, q.Prefixes) && slices.Equal(p.Interfaces, q.Interfaces)
}

// Filter is the wanted or the observed content of the packet filter.
type Filter map[Element]struct{}

// Is4 reports whether the element is of IPv4. Every element is of one family.
func (e Element) Is4() bool {
	if e.Key.Addr.IsValid() {
		return e.Key.Addr.Is4()
	}
	return e.Prefix().Addr().Is4()
}

// Compare orders elements by set, key, prefix and interface.
func (e Element) Compare(f Element) int {
	if order := cmp.Or(cmp.Compare(e.Set, f.Set), e.Key.Compare(f.Key)); order != 0 || e.source == f.source {
		return order
	}
	a, b := e.parts(), f.parts()
	return cmp.Or(
		a.prefix.Addr().Compare(b.prefix.Addr()),
		cmp.Compare(a.prefix.Bits(), b.prefix.Bits()),
		cmp.Compare(a.received, b.received),
	)
}

// String returns the element as "served TCP 203.0.113.4:80".
func (e Element) String() string {
	text := e.Set.String()
	switch {
	case e.Key.Port != 0:
		text += " " + e.Key.String()
	case e.Key.Addr.IsValid():
		text += " " + e.Key.Addr.String()
	}
	if prefix := e.Prefix(); prefix.IsValid() {
		text += " " + prefix.String()
	}
	if name := e.Interface(); name != "" {
		text += " " + name
	}
	return text
}

var setNames = [NumSets]string{
	Addresses: "addresses", Served: "served", Masqueraded: "masqueraded", MasqueradedUnlessPod: "masqueraded-unless-pod", Pods: "pods",
	Restricted: "restricted", Allowed: "allowed", Dropped: "dropped", Hairpin: "hairpin", Endpoints: "endpoints",
	ServiceNetworks: "service-networks", PodInterfaces: "pod-interfaces",
}

// String returns the name of the set.
func (s Set) String() string {
	if s > 0 && s < NumSets {
		return setNames[s]
	}
	return fmt.Sprintf("Set(%d)", uint8(s))
}

// FilterChange is one element to add or delete.
type FilterChange struct {
	Element Element
	Delete  bool
}

// DiffFilter returns the changes from have to want: additions before deletions, each sorted.
func DiffFilter(have, want Filter) []FilterChange {
	var changes []FilterChange
	for e := range want {
		if _, exists := have[e]; !exists {
			changes = append(changes, FilterChange{Element: e})
		}
	}
	for e := range have {
		if _, wanted := want[e]; !wanted {
			changes = append(changes, FilterChange{Element: e, Delete: true})
		}
	}
	SortFilterChanges(changes)
	return changes
}

// SortFilterChanges puts additions before deletions and orders each by element.
func SortFilterChanges(changes []FilterChange) {
	slices.SortFunc(changes, func(a, b FilterChange) int {
		switch {
		case a.Delete == b.Delete:
			return a.Element.Compare(b.Element)
		case b.Delete:
			return -1
		}
		return 1
	})
}
