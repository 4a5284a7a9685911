package ipvs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
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

// Element is an element of a set. It is comparable; the parts that its set does not have are zero.
type Element struct {
	Set Set
	// Key is complete, or only its address.
	Key Key
	// Prefix is masked.
	Prefix netip.Prefix
	// Interface is the name of a network interface, or a prefix of names followed by "*": "cni0", "cali*".
	Interface string
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
	return e.Prefix.Addr().Is4()
}

// Compare orders elements by set, key, prefix and interface.
func (e Element) Compare(f Element) int {
	return cmp.Or(
		cmp.Compare(e.Set, f.Set),
		e.Key.Compare(f.Key),
		e.Prefix.Addr().Compare(f.Prefix.Addr()),
		cmp.Compare(e.Prefix.Bits(), f.Prefix.Bits()),
		cmp.Compare(e.Interface, f.Interface),
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
	if e.Prefix.IsValid() {
		text += " " + e.Prefix.String()
	}
	if e.Interface != "" {
		text += " " + e.Interface
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
