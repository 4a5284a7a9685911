package pools

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Rule is the reason why no Service may have an address.
type Rule string

// The rules. All but the last four protect the addresses that the cluster itself depends on. An address that becomes
// local on a node, or is announced, is taken from its real host (CVE-2020-8554).
const (
	// RuleSpecial: no host is reachable at it (RFC 6890, RFC 5771, RFC 4291).
	RuleSpecial Rule = "SpecialPurpose"
	// RuleNode: it is an InternalIP or ExternalIP of a Node.
	RuleNode Rule = "NodeAddress"
	// RuleGateway: it is a next hop of a node.
	RuleGateway Rule = "Gateway"
	// RulePeer: a BGPPeer has it.
	RulePeer Rule = "BGPPeer"
	// RuleSubnet: it is the first or the last address of a subnet of a node, which the subnet itself needs (RFC 919; RFC
	// 4291 section 2.6.1).
	RuleSubnet Rule = "Subnet"
	// RuleAPIServer: the API server listens on it.
	RuleAPIServer Rule = "APIServer"
	// RuleServiceNetwork: it is in a ServiceCIDR.
	RuleServiceNetwork Rule = "ServiceCIDR"
	// RulePodNetwork: it is in a Pod CIDR of a Node.
	RulePodNetwork Rule = "PodCIDR"
	// RuleEndpoint: an EndpointSlice has it. A user who can write EndpointSlices can name any address, so addresses of
	// pools are exempt.
	RuleEndpoint Rule = "Endpoint"
	// RulePool: it belongs to a pool, and the pool assigns it. No external IP is taken from a pool.
	RulePool Rule = "Pool"
	// RuleNotAllowed: an external IP is in no CIDR that the operator allows.
	RuleNotAllowed Rule = "NotAllowed"
	// RuleService: the status of a Service that another controller serves, or that is being deleted, shows it, or
	// spec.externalIPs of a Service names it.
	RuleService Rule = "Service"
	// RuleNoPool: it belongs to no pool, and to none when it was assigned.
	RuleNoPool Rule = "NoPool"
)

// order is the precedence of the rules if several refuse an address.
var order = []Rule{
	RuleSpecial, RuleNode, RuleGateway, RulePeer, RuleSubnet, RuleAPIServer, RuleServiceNetwork, RulePodNetwork, RuleEndpoint, RulePool,
	RuleNotAllowed, RuleService, RuleNoPool,
}

// Refusal is the rule that denies an address to Services. The zero value is none.
type Refusal struct {
	Rule Rule
	// Of is the object that the rule refers to, if any: a Node, BGPPeer, ServiceCIDR or Service, or the name of a
	// special range.
	Of string
}

func (r Refusal) compare(o Refusal) int {
	return cmp.Or(cmp.Compare(slices.Index(order, r.Rule), slices.Index(order, o.Rule)), cmp.Compare(r.Of, o.Of))
}

// String returns a clause with the address as the subject: "is ...".
func (r Refusal) String() string {
	switch r.Rule {
	case RuleSpecial:
		return fmt.Sprintf("is %s address, which no Service can have", withArticle(r.Of))
	case RuleNode:
		return "is an address of Node " + r.Of
	case RuleGateway:
		return "is a gateway of Node " + r.Of
	case RulePeer:
		return "is the address of BGPPeer " + r.Of
	case RuleSubnet:
		return "is the network or broadcast address of a subnet of Node " + r.Of
	case RuleService:
		return "is in status.loadBalancer or spec.externalIPs of Service " + r.Of
	case RuleAPIServer:
		return "is an address of the API server"
	case RuleServiceNetwork:
		return "is in ServiceCIDR " + r.Of
	case RulePodNetwork:
		if r.Of == "" {
			return "is in podCIDRs of the configuration"
		}
		return "is in a Pod CIDR of Node " + r.Of
	case RuleEndpoint:
		return "is an endpoint of Service " + r.Of
	case RulePool:
		return "is in IPAddressPool " + r.Of
	case RuleNotAllowed:
		return "is in none of the CIDRs that the cluster's operator allows for external IPs (externalIPCIDRs)"
	case RuleNoPool:
		return "is in no IPAddressPool"
	}
	return ""
}

func withArticle(of string) string {
	if strings.ContainsRune("aeiouI", rune(of[0])) {
		return "an " + of
	}
	return "a " + of
}

// Guard determines which addresses may become local on a node or be announced. Its input is the set of addresses that
// the cluster depends on and the CIDRs that the operator allows. One goroutine uses it.
type Guard struct {
	// allowed are the CIDRs of external IPs.
	allowed []netip.Prefix
	of      map[Refusal][]netip.Prefix
	by      map[netip.Prefix][]Refusal // sorted
	// lengths counts the prefixes in by, per prefix length, for IPv4 and for IPv6.
	lengths [2]map[int]int
}

// NewGuard returns a Guard without protected prefixes. externalIPs are the CIDRs that the operator allows.
func NewGuard(externalIPs []netip.Prefix) *Guard {
	return &Guard{
		allowed: slices.Clone(externalIPs), of: map[Refusal][]netip.Prefix{}, by: map[netip.Prefix][]Refusal{},
		lengths: [2]map[int]int{{}, {}},
	}
}

// Set replaces the prefixes of a refusal. It reports whether they changed.
func (g *Guard) Set(r Refusal, prefixes ...netip.Prefix) bool {
	next := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p.IsValid() {
			next = append(next, p.Masked())
		}
	}
	slices.SortFunc(next, netip.Prefix.Compare)
	next = slices.Compact(next)
	before := g.of[r]
	if slices.Equal(before, next) {
		return false
	}
	for _, p := range before {
		g.drop(p, r)
	}
	for _, p := range next {
		g.add(p, r)
	}
	if g.of[r] = next; len(next) == 0 {
		delete(g.of, r)
	}
	return true
}

// SetAddresses is Set for single addresses.
func (g *Guard) SetAddresses(r Refusal, addrs ...netip.Addr) bool {
	prefixes := make([]netip.Prefix, len(addrs))
	for i, a := range addrs {
		if a = a.WithZone(""); a.IsValid() {
			prefixes[i] = netip.PrefixFrom(a, a.BitLen())
		}
	}
	return g.Set(r, prefixes...)
}

// Replace replaces all prefixes of a rule, keyed by object name. It reports whether they changed.
func (g *Guard) Replace(rule Rule, all map[string][]netip.Prefix) bool {
	differs := false
	for r := range g.of {
		if _, still := all[r.Of]; r.Rule == rule && !still {
			differs = g.Set(r) || differs
		}
	}
	for name, prefixes := range all {
		differs = g.Set(Refusal{rule, name}, prefixes...) || differs
	}
	return differs
}

func (g *Guard) add(p netip.Prefix, r Refusal) {
	all := g.by[p]
	i, _ := slices.BinarySearchFunc(all, r, Refusal.compare)
	if g.by[p] = slices.Insert(all, i, r); len(all) == 0 {
		g.lengths[slot(FamilyOf(p.Addr()))][p.Bits()]++
	}
}

func (g *Guard) drop(p netip.Prefix, r Refusal) {
	all := g.by[p]
	i, _ := slices.BinarySearchFunc(all, r, Refusal.compare)
	if g.by[p] = slices.Delete(all, i, i+1); len(g.by[p]) > 0 {
		return
	}
	delete(g.by, p)
	lengths := g.lengths[slot(FamilyOf(p.Addr()))]
	if lengths[p.Bits()]--; lengths[p.Bits()] == 0 {
		delete(lengths, p.Bits())
	}
}

// first returns the first refusal of an address in the order of the rules, without the rules in but.
func (g *Guard) first(a netip.Addr, but ...Rule) (first Refusal, refused bool) {
	for _, s := range reserved {
		if s.prefix.Contains(a) {
			return Refusal{RuleSpecial, s.what}, true
		}
	}
	for length := range g.lengths[slot(FamilyOf(a))] {
		p, err := a.Prefix(length)
		if err != nil {
			continue
		}
		for _, r := range g.by[p] {
			if !slices.Contains(but, r.Rule) && (!refused || r.compare(first) < 0) {
				first, refused = r, true
			}
		}
	}
	return first, refused
}

// Assigned reports whether an address assigned by ironlb-ccm must be refused, and why. pool is its pool, now or when it
// was assigned, empty for none.
func (g *Guard) Assigned(a netip.Addr, pool string) (Refusal, bool) {
	if r, refused := g.first(a); refused {
		return r, true
	}
	return Refusal{Rule: RuleNoPool}, pool == ""
}

// External reports whether an external IP must be refused, and why. pool is the pool that has it, empty for none. own
// means that the address belongs to this node, which serves it as it is if allowed. The caller checks
// RuleEndpoint itself because it has the endpoints.
func (g *Guard) External(a netip.Addr, pool string, own bool) (Refusal, bool) {
	if pool != "" {
		return Refusal{RulePool, pool}, true
	}
	if !slices.ContainsFunc(g.allowed, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return Refusal{Rule: RuleNotAllowed}, true
	}
	return g.Foreign(a, own)
}

// Foreign reports whether an address of another controller must be refused, and why. own is as for External. Only a
// user who may write the status of Services can set such an address.
func (g *Guard) Foreign(a netip.Addr, own bool) (Refusal, bool) {
	if own {
		return g.first(a, RuleNode, RulePodNetwork) // a bridge of Pods has an address of theirs
	}
	return g.first(a)
}

// ClusterIP reports whether a ClusterIP must be refused, and why. The API server assigns each one once, out of
// ServiceCIDRs. A Node's claim to an address in a ServiceCIDR is therefore ignored.
func (g *Guard) ClusterIP(a netip.Addr) (Refusal, bool) {
	if g.has(a, RuleServiceNetwork) {
		return g.first(a, order[1:]...)
	}
	return g.first(a, RulePodNetwork, RuleAPIServer)
}

// has reports whether the rule covers the address.
func (g *Guard) has(a netip.Addr, rule Rule) bool {
	for length := range g.lengths[slot(FamilyOf(a))] {
		if p, err := a.Prefix(length); err == nil && slices.ContainsFunc(g.by[p], func(r Refusal) bool { return r.Rule == rule }) {
			return true
		}
	}
	return false
}

// IsOfNodes reports whether an address belongs to a Node or to the network of its Pods.
func (g *Guard) IsOfNodes(a netip.Addr) bool { return g.has(a, RuleNode) || g.has(a, RulePodNetwork) }
