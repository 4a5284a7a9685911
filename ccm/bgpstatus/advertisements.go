package bgpstatus

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/ccm/advertisement"
	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// bgpAdvertisement is a parsed BGPAdvertisement.
type bgpAdvertisement struct {
	advertisement.Selection
	spec *v1alpha1.BGPAdvertisementSpec
	name string
	// reason is that of the first problem; problems are all of them.
	reason   string
	problems []string
	// withheld is set while a community is missing: it announces nothing.
	withheld bool
}

// notDirect are the addresses that only BGP announces and that nodes forward to endpoints, although their Services are
// to be forwarded directly. For the addresses of VirtualIPs the owner reports it.
type notDirect struct {
	// since is when each was first found so: the zero time if an earlier process may have reported it.
	since map[netip.Addr]time.Time
}

// fallback is why nodes forward an address to endpoints, according to the first of them by name.
type fallback struct {
	node, reason, message string
	nodes                 int
}

// defaultLocalPref is the LOCAL_PREF sent to an internal peer without a configured value. RFC 4271, 9.1.1 leaves it to
// the speaker; all implementations use this one.
const defaultLocalPref = 100

func (a *bgpAdvertisement) problem(reason, text string) {
	if a.reason == "" {
		a.reason = reason
	}
	a.problems = append(a.problems, text)
}

func (a *bgpAdvertisement) localPref() int64 {
	if a.spec.LocalPref == nil {
		return defaultLocalPref
	}
	return *a.spec.LocalPref
}

func (a *bgpAdvertisement) advertisesTo(peer string) bool {
	return len(a.spec.Peers) == 0 || slices.Contains(a.spec.Peers, peer)
}

// length returns the aggregation length for the address's family.
func (a *bgpAdvertisement) length(addr netip.Addr) int {
	if addr.Is4() {
		return int(a.spec.AggregationLength)
	}
	return int(a.spec.AggregationLengthV6)
}

// Reasons of the condition Ready of a BGPAdvertisement. The first that applies is used.
const (
	reasonUnknownCommunity  = "UnknownCommunity"
	reasonUnknownPeer       = "UnknownPeer"
	reasonLocalPrefConflict = "LocalPrefConflict"
)

// evaluateAdvertisements returns the condition Ready of each advertisement, by name, and the parsed advertisements.
func evaluateAdvertisements(o *bgpObjects) (map[string]metav1.Condition, []bgpAdvertisement) {
	ads := make([]bgpAdvertisement, len(o.ads.Items))
	known, labels := communitiesOf(o.communities.Items), make(map[string]map[string]string, len(o.pools.Items))
	for i := range o.pools.Items {
		labels[o.pools.Items[i].Name] = o.pools.Items[i].Labels
	}
	for i := range o.ads.Items {
		obj := &o.ads.Items[i]
		a := &ads[i]
		a.name, a.spec = obj.Name, &obj.Spec
		var err error
		if a.Selection, err = advertisement.OfBGP(obj); err != nil {
			a.problem(condition.ReasonInvalidSelector, fmt.Sprintf("%v. The selector matches nothing until it is fixed", err))
		}
		a.checkReferences(known, o.peers.Items)
		if missing := a.Missing(obj.Spec.IPAddressPoolSelectors, labels); missing != "" {
			a.problem(condition.ReasonUnknownPool, missing)
		}
		if a.reason != condition.ReasonInvalidSelector && len(a.Nodes) > 0 && len(o.nodes) > 0 && !slices.ContainsFunc(o.nodes, a.SelectsNode) {
			a.problem(reasonNoNode, "spec.nodeSelectors: no node matches: widen them, or label a node. The advertisement announces nothing until then")
		}
	}
	for i := range ads {
		for j := range ads[:i] {
			contradict(&ads[j], &ads[i], o)
		}
	}
	for i := range ads {
		ads[i].evaluateAggregates(o.pools.Items)
		for _, text := range ads[i].Repeated {
			ads[i].problem(condition.ReasonRepeatedSelector, text)
		}
	}
	out := make(map[string]metav1.Condition, len(ads))
	for i := range ads {
		a := &ads[i]
		c := metav1.Condition{Type: condition.Ready, Status: metav1.ConditionTrue, Reason: condition.ReasonRead, Message: "The advertisement is in use", ObservedGeneration: o.ads.Items[i].Generation}
		if a.spec.LocalPref != nil && len(o.peers.Items) > 0 && !slices.ContainsFunc(o.peers.Items, func(p v1alpha1.BGPPeer) bool { return a.advertisesTo(p.Name) && internal(&p) }) {
			c.Message = "The advertisement is in use. spec.localPref is not sent to any of its peers: they are external"
		}
		if len(a.problems) > 0 {
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, a.reason, strings.Join(a.problems, "; ")
		}
		out[a.name] = c
	}
	return out, ads
}

// communitiesOf returns, per name and value, the objects that define it.
func communitiesOf(objects []v1alpha1.Community) map[string]map[string][]string {
	known := map[string]map[string][]string{}
	for i := range objects {
		for _, c := range objects[i].Spec.Communities {
			if known[c.Name] == nil {
				known[c.Name] = map[string][]string{}
			}
			known[c.Name][c.Value] = append(known[c.Name][c.Value], objects[i].Name)
		}
	}
	return known
}

// checkReferences checks that the objects named by the advertisement exist.
func (a *bgpAdvertisement) checkReferences(known map[string]map[string][]string, peers []v1alpha1.BGPPeer) {
	for _, entry := range a.spec.Communities {
		if !v1alpha1.CommunityName(entry) {
			continue
		}
		values := known[entry]
		a.withheld = a.withheld || len(values) != 1
		switch len(values) {
		case 1:
		case 0:
			a.problem(reasonUnknownCommunity, fmt.Sprintf("spec.communities: no Community has the name %s: add it to one, or remove it. The advertisement announces nothing until then", entry))
		default:
			var objects []condition.Name
			for _, names := range values {
				for _, name := range names {
					objects = append(objects, condition.Name(name))
				}
			}
			slices.Sort(objects)
			a.problem(reasonUnknownCommunity, fmt.Sprintf("spec.communities: %s has different values in the Communities %s: make them equal, or rename one. The advertisement announces nothing until then",
				entry, condition.Some(objects)))
		}
	}
	var missing []condition.Name
	for _, name := range a.spec.Peers {
		if !slices.ContainsFunc(peers, func(p v1alpha1.BGPPeer) bool { return p.Name == name }) {
			missing = append(missing, condition.Name(name))
		}
	}
	if len(missing) > 0 {
		a.problem(reasonUnknownPeer, fmt.Sprintf("spec.peers: there is no BGPPeer %s: create it, or remove it from the list", condition.Some(missing)))
	}
}

// contradict records a conflict on both advertisements if they send a peer different values of localPref for one
// prefix.
func contradict(a, b *bgpAdvertisement, o *bgpObjects) {
	if a.localPref() == b.localPref() {
		return
	}
	peer := slices.IndexFunc(o.peers.Items, func(p v1alpha1.BGPPeer) bool { return a.advertisesTo(p.Name) && b.advertisesTo(p.Name) && internal(&p) })
	if peer < 0 || !slices.ContainsFunc(o.nodes, func(n *v1.Node) bool { return a.SelectsNode(n) && b.SelectsNode(n) }) || !together(a, b, o.services) {
		return
	}
	pool, same := samePrefix(a, b, o.pools.Items)
	if !same {
		return
	}
	for _, pair := range [][2]*bgpAdvertisement{{a, b}, {b, a}} {
		pair[0].problem(reasonLocalPrefConflict, fmt.Sprintf(
			"spec.localPref: is %d, and that of BGPAdvertisement %s is %d for the same prefixes of IPAddressPool %s to BGPPeer %s: make them equal. The lower one counts until then",
			pair[0].localPref(), pair[1].name, pair[1].localPref(), pool, o.peers.Items[peer].Name))
	}
}

// together reports whether both advertisements can select one Service.
func together(a, b *bgpAdvertisement, services []*v1.Service) bool {
	if len(a.Services) == 0 && len(b.Services) == 0 {
		return true
	}
	return slices.ContainsFunc(services, func(s *v1.Service) bool {
		return s.Spec.Type == v1.ServiceTypeLoadBalancer && a.SelectsService(s.Labels) && b.SelectsService(s.Labels)
	})
}

// samePrefix reports whether both advertisements announce a prefix, and names the first one's pool.
func samePrefix(a, b *bgpAdvertisement, all []v1alpha1.IPAddressPool) (pool string, same bool) {
	of := func(ad *bgpAdvertisement) map[string][]pools.Range {
		out := map[string][]pools.Range{}
		for i := range all {
			if ranges, err := pools.ParseRanges(all[i].Spec.Addresses); err == nil && ad.SelectsPool(all[i].Name, all[i].Labels) {
				out[all[i].Name] = ranges
			}
		}
		return out
	}
	others := of(b)
	for name, ranges := range of(a) {
		for _, r := range ranges {
			length := a.length(r.First)
			if length != b.length(r.First) {
				continue
			}
			for _, theirs := range others {
				if slices.ContainsFunc(theirs, func(s pools.Range) bool { return s.Family() == r.Family() && meets(r, s, length) }) && (!same || name < pool) {
					pool, same = name, true
				}
			}
		}
	}
	return pool, same
}

// meets reports whether the two ranges have addresses in one prefix of the length.
func meets(a, b pools.Range, length int) bool {
	network := func(addr netip.Addr) netip.Addr {
		p, _ := addr.Prefix(length) // the schema keeps it in range
		return p.Addr()
	}
	return network(a.First).Compare(network(b.Last)) <= 0 && network(b.First).Compare(network(a.Last)) <= 0
}

// Reasons of the condition Ready of a BGPAdvertisement whose prefix covers more than the addresses it selects.
const (
	reasonAggregateTooWide = "AggregateTooWide"
	reasonAggregateOfSome  = "AggregateOfSomeServices"
)

// evaluateAggregates records prefixes with addresses outside of the pool, or of Services that no selector matches:
// routers send packets for all of them here.
func (a *bgpAdvertisement) evaluateAggregates(all []v1alpha1.IPAddressPool) {
	for _, of := range []struct {
		family pools.Family
		field  string
		length int32
		single int32
	}{
		{pools.IPv4, "aggregationLength", a.spec.AggregationLength, 32},
		{pools.IPv6, "aggregationLengthV6", a.spec.AggregationLengthV6, 128},
	} {
		if of.length == 0 || of.length == of.single {
			continue
		}
		if len(a.Services) > 0 {
			a.problem(reasonAggregateOfSome, fmt.Sprintf("spec.%s: %d, but spec.serviceSelectors is for some Services, "+
				"and the prefix has addresses of others, too: write %d, or remove the selectors. The prefix is announced all the same", of.field, of.length, of.single))
		}
		for i := range all {
			pool := &all[i]
			ranges, err := pools.ParseRanges(pool.Spec.Addresses)
			if err != nil || !a.SelectsPool(pool.Name, pool.Labels) {
				continue
			}
			if wide, within := widePrefix(ranges, of.family, int(of.length)); wide.IsValid() {
				a.problem(reasonAggregateTooWide, fmt.Sprintf("spec.%s: %d announces %v, and IPAddressPool %s has only %v of it: "+
					"write a greater length, or add the addresses to the pool. The prefix is announced all the same", of.field, of.length, wide, pool.Name, within))
				break
			}
		}
	}
}

// widePrefix returns the first prefix of the length that has an address of the ranges and one outside of them. It also
// returns the range at the start or end of the prefix. The zero Prefix: there is none. Adjoining ranges count as one.
func widePrefix(ranges []pools.Range, family pools.Family, length int) (netip.Prefix, pools.Range) {
	var joined []pools.Range
	ranges = slices.DeleteFunc(slices.Clone(ranges), func(r pools.Range) bool { return r.Family() != family })
	slices.SortFunc(ranges, func(r, s pools.Range) int { return r.First.Compare(s.First) })
	for _, r := range ranges {
		if n := len(joined); n > 0 && r.First.Compare(joined[n-1].Last.Next()) <= 0 {
			if r.Last.Compare(joined[n-1].Last) > 0 {
				joined[n-1].Last = r.Last
			}
			continue
		}
		joined = append(joined, r)
	}
	for _, r := range joined {
		for _, end := range []netip.Addr{r.First, r.Last} {
			p, err := end.Prefix(length)
			if err == nil && (p.Addr().Compare(r.First) < 0 || pools.LastOf(p).Compare(r.Last) > 0) {
				return p, r
			}
		}
	}
	return netip.Prefix{}, pools.Range{}
}

// update returns the warning about each address whose state has lasted, and the delay until the next evaluation, 0 for
// none.
func (n *notDirect) update(o *bgpObjects, now time.Time) (out map[netip.Addr]condition.Problem, recheck time.Duration) {
	first, before := n.since == nil, n.since
	n.since, out = map[netip.Addr]time.Time{}, map[netip.Addr]condition.Problem{}
	for addr, found := range fallbacks(o) {
		at, was := before[addr]
		if !was && !first {
			at = now
		}
		n.since[addr] = at
		if left := at.Add(watch.UnannouncedFor).Sub(now); left > 0 {
			if recheck == 0 || left < recheck {
				recheck = left
			}
			continue
		}
		more := ""
		if found.nodes > 1 {
			more = fmt.Sprintf(" and %d more", found.nodes-1)
		}
		message := fmt.Sprintf("%v by BGP: node %s%s: %s", addr, found.node, more, found.message)
		out[addr] = condition.Problem{Reason: found.reason, Message: message}
	}
	return out, recheck
}

// fallbacks returns the reports of the present speakers, by address. A speaker lists the lowest addresses of each
// reason.
func fallbacks(o *bgpObjects) map[netip.Addr]fallback {
	out := map[netip.Addr]fallback{}
	speakers := slices.Clone(o.speakers.Items)
	slices.SortFunc(speakers, func(a, b v1alpha1.SpeakerStatus) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range speakers {
		if s.Status.BGP == nil || o.absent[s.Name] != "" {
			continue
		}
		for _, of := range s.Status.BGP.NotDirect {
			for _, addr := range watch.Addresses(of.Addresses) {
				found, known := out[addr]
				if !known {
					found = fallback{node: s.Name, reason: of.Reason, message: of.Message}
				}
				found.nodes++
				out[addr] = found
			}
		}
	}
	return out
}
