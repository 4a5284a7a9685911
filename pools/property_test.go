package pools

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// choices converts a source of numbers into operations on an Allocator and on the reference.
type choices struct {
	t    *testing.T
	pick func(n int) int
	a    *Allocator
	r    *reference
	log  []string
	done map[ServiceKey]bool // Reallocate is carried out, by the last decision
}

func ranges(entries ...string) []Range {
	var out []Range
	for _, e := range entries {
		r, err := ParseRange(e)
		if err != nil {
			panic(err)
		}
		out = append(out, r)
	}
	return out
}

// variants are the pools to choose from: the same names with other rules, overlapping pools, small pools.
var variants = []Pool{
	{Name: "a", Created: time.Unix(1, 0), AutoAssign: true, Ranges: ranges("203.0.113.0/30", "2001:db8::/127")},
	{Name: "a", Created: time.Unix(1, 0), AutoAssign: true, Ranges: ranges("203.0.113.1-203.0.113.2")},
	{Name: "a", Created: time.Unix(1, 0), AutoAssign: true, Ranges: ranges("203.0.113.0/30", "2001:db8::/127"), AvoidBuggyIPs: true, ReuseAfter: 2 * time.Second},
	{Name: "a", Created: time.Unix(1, 0), AutoAssign: true, Ranges: ranges("203.0.113.2-203.0.113.5"), NamespaceQuota: Limit{true, 2}},
	{Name: "b", Created: time.Unix(2, 0), AutoAssign: true, Ranges: ranges("203.0.113.8", "203.0.113.4/31", "2001:db8::8/127"), NamespaceQuota: Limit{true, 1}},
	{Name: "b", Created: time.Unix(2, 0), Ranges: ranges("203.0.113.4/31", "2001:db8::8/126"), SharingNamespaces: []string{"red", "blue"}},
	{Name: "b", Created: time.Unix(2, 0), AutoAssign: true, Ranges: ranges("203.0.113.3-203.0.113.4"), ReuseAfter: 5 * time.Second},
	{Name: "c", Created: time.Unix(0, 0), AutoAssign: true, Ranges: ranges("203.0.113.0/31"), Allocation: Allocation{Set: true, Namespaces: []string{"red"}}},
	{Name: "c", Created: time.Unix(0, 0), AutoAssign: true, Ranges: ranges("2001:db8::9-2001:db8::a", "203.0.113.9"), SharingNamespaces: []string{"red", "blue"},
		Allocation: Allocation{Set: true, Priority: 3, NamespaceSelectors: []Selector{{{"team", In, []string{"x"}}}}}},
	{Name: "d", Created: time.Unix(3, 0), AutoAssign: true, Ranges: ranges("203.0.113.9-203.0.113.10", "2001:db8::1"),
		Allocation: Allocation{Set: true, ServiceSelectors: []Selector{{{"app", Exists, nil}}}}},
	{Name: "b", Created: time.Unix(2, 0), AutoAssign: true, Unreadable: true, Ranges: ranges("203.0.113.4/30")},
	{Name: "e", Created: time.Unix(2, 0), AutoAssign: true, Ranges: ranges("203.0.113.4/31", "203.0.113.8", "2001:db8::8/127")},
}

func (c *choices) logf(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf(format, args...))
}

func (c *choices) fail(format string, args ...any) {
	c.t.Helper()
	for _, l := range c.log {
		c.t.Log(l)
	}
	c.t.Fatalf(format, args...)
}

func (c *choices) service() ServiceKey {
	return ServiceKey{[]string{"blue", "red"}[c.pick(2)], string(rune('p' + c.pick(5)))}
}

func (c *choices) claim(k ServiceKey) Claim {
	cl := Claim{Service: k, Created: time.Unix(int64(k.Name[0])%3, 0)}
	switch c.pick(6) {
	case 0:
		cl.Families, cl.Policy = []Family{IPv4, IPv6}, RequireDualStack
	case 1:
		cl.Families, cl.Policy = []Family{IPv6, IPv4}, PreferDualStack
	case 2:
		cl.Families, cl.Policy = []Family{IPv4, IPv6}, PreferDualStack
	case 3:
		cl.Families = []Family{IPv6}
	}
	for range 2 - min(2, c.pick(6)) {
		cl.Addresses = append(cl.Addresses, c.address())
	}
	if c.pick(4) == 0 {
		cl.Pool = []string{"a", "b", "c", "d", "nosuch"}[c.pick(5)]
	}
	cl.SharingKey = []string{"", "", "k", "k", "l"}[c.pick(5)]
	for range 1 + c.pick(2) {
		cl.Ports = append(cl.Ports, Port{"TCP", uint16(80 + c.pick(4))})
	}
	cl.Ports = slices.Compact(cl.Ports)
	cl.Local = c.pick(5) == 0
	cl.Selector = []string{"", "x", "x", "y"}[c.pick(4)]
	if c.pick(2) == 0 {
		cl.Labels = map[string]string{"app": "w"}
	}
	cl.Reallocate = c.pick(5) == 0
	if c.pick(20) == 0 {
		cl.Invalid = "unreadable"
	}
	return cl
}

func (c *choices) step() {
	switch c.pick(16) {
	case 15:
		c.host()
	case 13, 14:
		c.node()
	case 12:
		c.written(c.service())
	case 0:
		c.setPools()
	case 1, 2:
		k := c.service()
		c.logf("release %s", k)
		c.a.Release(k, c.r.now)
		c.r.release(k)
	case 3:
		c.namespace()
	case 4:
		c.r.now = c.r.now.Add(time.Duration(c.pick(4)) * time.Second)
		c.logf("now %v", c.r.now.Unix())
	case 5:
		if c.pick(3) == 0 {
			c.restart()
		}
	case 6:
		k := c.service()
		if s := c.r.svc[k]; s != nil {
			c.assign(s.claim)
		}
	default:
		c.assign(c.claim(c.service()))
	}
	if c.pick(3) != 0 {
		c.settle()
	}
	c.invariants()
}

func (c *choices) written(k ServiceKey) {
	c.logf("written %s", k)
	c.a.Written(k, c.r.now)
	c.r.expire()
	c.r.written(k)
	if s := c.r.svc[k]; s != nil && c.done[k] {
		s.claim.Reallocate = false
	}
	delete(c.done, k)
}

func (c *choices) setPools() {
	byName := map[string]Pool{}
	for range 1 + c.pick(4) {
		v := variants[c.pick(len(variants))]
		byName[v.Name] = v
	}
	var all []Pool
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, byName[name])
	}
	c.r.setPools(all)
	c.logf("pools %+v", c.r.all)
	c.a.SetPools(c.r.all)
	c.r.endCoolDowns(func(_ refCoolDown, p *Pool) bool { return p.ReuseAfter <= 0 })
}

func (c *choices) namespace() {
	ns := []string{"blue", "red"}[c.pick(2)]
	switch c.pick(3) {
	case 0:
		delete(c.r.labels, ns)
		c.a.DeleteNamespace(ns)
	case 1:
		c.r.labels[ns] = map[string]string{"team": "x"}
		c.a.SetNamespace(ns, c.r.labels[ns])
	default:
		c.r.labels[ns] = map[string]string{}
		c.a.SetNamespace(ns, c.r.labels[ns])
	}
	c.logf("namespace %s %v", ns, c.r.labels[ns])
}

// node gives a node other addresses, or removes it.
func (c *choices) node() {
	name := []string{"n1", "n2", "n3"}[c.pick(3)]
	var addrs []netip.Addr
	for range c.pick(4) {
		addrs = append(addrs, c.address())
	}
	c.logf("node %s %v", name, addrs)
	if c.r.nodes[name] = addrs; len(addrs) == 0 {
		delete(c.r.nodes, name)
	}
	c.a.Withhold(Refusal{RuleNode, name}, addrs, c.r.now)
	c.r.endCoolDowns(func(refCoolDown, *Pool) bool { return false })
}

// host sets the addresses of foreign hosts.
func (c *choices) host() {
	c.r.hosts = map[netip.Addr]string{}
	for range c.pick(4) {
		c.r.hosts[netip.AddrFrom4([4]byte{203, 0, 113, byte(c.pick(12))})] = "02:00:00:00:00:01"
	}
	c.logf("hosts %v", slices.SortedFunc(maps.Keys(c.r.hosts), netip.Addr.Compare))
	c.a.SetHosts(c.r.hosts)
	c.r.endCoolDowns(func(refCoolDown, *Pool) bool { return false })
}

func (c *choices) assign(cl Claim) {
	d := c.a.Assign(cl, c.r.now)
	c.compare(cl, d.Lease, d.Reason)
	if (d.Message == "") != (d.Reason == Allocated) {
		c.fail("%s: reason %s has message %q", cl.Service, d.Reason, d.Message)
	}
	c.done[cl.Service] = d.Reallocated
	if c.pick(3) != 0 {
		c.written(cl.Service)
	}
}

// compare checks a decision of the Allocator against that of the reference.
func (c *choices) compare(cl Claim, got []Address, why Reason) {
	before := map[netip.Addr]bool{}
	if s := c.r.svc[cl.Service]; s != nil {
		for _, h := range s.lease {
			before[h.Addr] = true
		}
		half := cl.Policy == RequireDualStack && len(s.lease) == 1
		if half && s.back {
			clear(before)
		}
	}
	lease, reason := c.r.assign(cl)
	c.logf("assign %+v -> %v %s", cl, got, why)
	if !slices.Equal(got, lease) || why != reason {
		c.fail("%s: got %v %s, reference has %v %s", cl.Service, got, why, lease, reason)
	}
	if len(before) > 0 && len(got) == 0 {
		c.fail("%s lost what it held", cl.Service)
	}
	c.families(&cl, before, got)
}

// families checks that RequireDualStack never gets one address alone, and that an address outside the pools never
// replaces one inside.
func (c *choices) families(cl *Claim, before map[netip.Addr]bool, lease []Address) {
	inside := func(a netip.Addr) bool { return c.r.poolOf(a) != nil }
	for _, h := range lease {
		given := !before[h.Addr] && !has(cl.Held, h.Addr)
		if given && cl.Policy == RequireDualStack && len(lease) == 1 {
			c.fail("%s requires two families and was given %s alone", cl.Service, h.Addr)
		}
		for a := range before {
			if FamilyOf(a) == FamilyOf(h.Addr) && inside(a) && !inside(h.Addr) && !has(lease, a) {
				c.fail("%s left %s, which is in a pool, for %s, which is in none", cl.Service, a, h.Addr)
			}
		}
	}
}

// settle calls Reevaluate until it returns no Service, and assigns those that it returns. Then no Service may be left
// whose decision would change.
func (c *choices) settle() {
	for range 1000 {
		keys := c.a.Reevaluate(c.r.now)
		if len(keys) == 0 {
			c.allReevaluated()
			return
		}
		c.logf("reevaluated %v", keys)
		if !slices.IsSortedFunc(keys, func(k, o ServiceKey) int { return older(c.a.services[k], c.a.services[o]) }) {
			c.fail("reevaluated %v, not the oldest first", keys)
		}
		c.r.expire()
		for _, k := range keys {
			s := c.r.svc[k]
			if s == nil {
				c.fail("reevaluated %s, which is deleted", k)
			}
			c.compare(s.claim, c.a.Lease(k), c.a.services[k].reason)
		}
		for _, k := range keys {
			c.assign(c.r.svc[k].claim)
		}
	}
	c.fail("never settles")
}

func (c *choices) allReevaluated() {
	c.r.expire()
	for _, k := range slices.SortedFunc(maps.Keys(c.r.svc), ServiceKey.Compare) {
		s := c.r.svc[k]
		lease, reason := c.r.answer(s)
		if !slices.Equal(lease, s.lease) || reason != s.reason && (met(reason) || met(s.reason)) {
			c.fail("%s has %v %s, would get %v %s, and was not reevaluated", k, s.lease, s.reason, lease, reason)
		}
	}
}

// met reports whether the Service has what it wants, or as much of it as is available. The reason why another Service
// waits may change without another evaluation: the Service still waits.
func met(r Reason) bool { return r == Allocated || r == SecondFamilyPending || r == Draining }

// restart adopts what the Services record, in another order.
func (c *choices) restart() {
	c.settle()
	n := newReference()
	n.labels, n.nodes, n.hosts, n.now = c.r.labels, c.r.nodes, c.r.hosts, c.r.now
	n.setPools(c.r.all)
	var claims []Claim
	for _, k := range slices.SortedFunc(maps.Keys(c.r.svc), ServiceKey.Compare) {
		cl := c.r.svc[k].claim
		cl.Held, cl.Lost = c.tampered(c.r.svc[k].lease)
		claims = append(claims, cl)
	}
	late := c.pick(2) == 0
	c.a = New()
	for ns, labels := range n.labels {
		c.a.SetNamespace(ns, labels)
	}
	for node, addrs := range n.nodes {
		c.a.Withhold(Refusal{RuleNode, node}, addrs, c.r.now)
	}
	c.a.SetHosts(n.hosts)
	if !late {
		c.a.SetPools(n.all)
	}
	shuffled := slices.Clone(claims)
	for i := range shuffled {
		j := i + c.pick(len(shuffled)-i)
		shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
	}
	c.a.Adopt(shuffled)
	if late {
		c.a.SetPools(n.all)
	}
	slices.SortFunc(claims, func(x, y Claim) int {
		if d := x.Created.Compare(y.Created); d != 0 {
			return d
		}
		return x.Service.Compare(y.Service)
	})
	for _, cl := range claims {
		if len(cl.Held)+len(cl.Lost) > 0 {
			s := &refService{claim: cl}
			n.svc[cl.Service] = s
			n.record(s)
		}
	}
	for _, cl := range claims {
		if s := n.svc[cl.Service]; s != nil && !late { // without pools nothing can be given back
			n.restoreLost(s)
		}
	}
	c.r = n
	clear(c.done)
	c.logf("restart, late %v", late)
	for _, cl := range claims {
		want := []Address(nil)
		if s := n.svc[cl.Service]; s != nil {
			want = s.lease
		}
		if got := c.a.Lease(cl.Service); !slices.Equal(got, want) {
			c.fail("restart: %s shows %v and lost %v, has %v, reference %v", cl.Service, cl.Held, cl.Lost, got, want)
		}
	}
	for _, cl := range claims {
		c.assign(cl)
	}
}

// tampered returns what the status of a Service shows of the lease and what it lost: another writer may have removed
// addresses and added others.
func (c *choices) tampered(lease []Address) (held, lost []Address) {
	for _, h := range lease {
		if c.pick(5) == 0 {
			lost = append(lost, h)
		} else {
			held = append(held, h)
		}
	}
	for range 2 - min(2, c.pick(6)) {
		held = slices.Insert(held, c.pick(len(held)+1), Address{Addr: c.address()})
	}
	return held, lost
}

func (c *choices) address() netip.Addr {
	if c.pick(3) == 0 {
		return netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 15: byte(c.pick(12))})
	}
	return netip.AddrFrom4([4]byte{203, 0, 113, byte(c.pick(12))})
}

// invariants checks that both agree on the holders, that no address is held twice without sharing, and that the counts
// are correct.
func (c *choices) invariants() {
	byAddr := map[netip.Addr][]*refService{}
	for k, s := range c.r.svc {
		for _, h := range s.left {
			byAddr[h.Addr] = append(byAddr[h.Addr], s)
		}
		if got := c.a.Lease(k); !slices.Equal(got, s.lease) {
			c.fail("%s: has %v, reference %v", k, got, s.lease)
		}
		for _, h := range s.lease {
			byAddr[h.Addr] = append(byAddr[h.Addr], s)
		}
	}
	for addr, on := range byAddr {
		if len(c.a.Holders(addr)) != len(on) {
			c.fail("%s: holders %v", addr, c.a.Holders(addr))
		}
		for i, s := range on {
			for _, o := range on[:i] {
				if !agree(&s.claim, &o.claim) && !s.misfit && !o.misfit && has(s.lease, addr) && has(o.lease, addr) {
					c.fail("%s and %s both hold %s", s.claim.Service, o.claim.Service, addr)
				}
			}
		}
	}
	c.counts(byAddr)
}

func (c *choices) counts(byAddr map[netip.Addr][]*refService) {
	used := c.r.inUse
	for i := range c.r.all {
		p := &c.r.all[i]
		var assigned, free [2]int64
		var ofNodes []string
		for addr := range byAddr {
			if c.r.poolName(addr) == p.Name {
				assigned[slot(FamilyOf(addr))]++
			}
		}
		if slices.ContainsFunc(used, func(u *Pool) bool { return u.Name == p.Name }) {
			for _, addr := range list(p) {
				if c.r.ofNode(addr) && !(p.AvoidBuggyIPs && endsBadly(addr)) {
					ofNodes = append(ofNodes, fmt.Sprint(addr, len(byAddr[addr])))
				}
				if byAddr[addr] == nil && !c.r.never(p, addr) {
					free[slot(FamilyOf(addr))]++
				}
			}
		}
		st, ok := c.a.PoolStatus(p.Name)
		var withheld []string
		for _, n := range st.Withheld {
			withheld = append(withheld, fmt.Sprint(n.Addr, len(n.Holders)))
		}
		slices.Sort(ofNodes)
		if slices.Sort(withheld); !slices.Equal(withheld, ofNodes) {
			c.fail("pool %s: addresses of nodes %v, want %v", p.Name, withheld, ofNodes)
		}
		got := [4]int64{st.AssignedIPv4, st.AssignedIPv6, st.AvailableIPv4, st.AvailableIPv6}
		if want := [4]int64{assigned[0], assigned[1], free[0], free[1]}; !ok || got != want {
			c.fail("pool %s: counts %v, want %v", p.Name, got, want)
		}
	}
}

func newChoices(t *testing.T, pick func(int) int) *choices {
	c := &choices{t: t, pick: pick, a: New(), r: newReference(), done: map[ServiceKey]bool{}}
	c.r.now = time.Unix(0, 0)
	return c
}

// TestAgainstReference runs long random histories against the reference.
func TestAgainstReference(t *testing.T) {
	seeds, steps := 200, 200
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 1))
		c := newChoices(t, rng.IntN)
		c.logf("seed %d", seed)
		for range steps {
			c.step()
		}
	}
}

// TestOrderDoesNotMatter applies one set of claims in 100 random orders, after different histories. Claims that request
// an address or have a pool of their own come out the same in every order. Competing claims hold the same set of
// addresses in every order. Given equal holders, each new claim gets the same decision.
func TestOrderDoesNotMatter(t *testing.T) {
	all := []Pool{
		{Name: "free", AutoAssign: true, Ranges: ranges("203.0.113.0/28", "2001:db8::/124")},
		{Name: "red", AutoAssign: true, Ranges: ranges("198.51.100.7"), Allocation: Allocation{Set: true, Priority: 1, Namespaces: []string{"red"}}},
		{Name: "named", Ranges: ranges("198.51.100.0/31")},
	}
	var fixed, rivals []Claim
	for i := range 6 {
		fixed = append(fixed, Claim{Service: ServiceKey{"default", fmt.Sprintf("exact%d", i)}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(10 + i)})}})
		rivals = append(rivals, Claim{Service: ServiceKey{"default", fmt.Sprintf("any%d", i)}, Families: []Family{IPv4, IPv6}, Policy: PreferDualStack})
	}
	fixed = append(fixed,
		Claim{Service: ServiceKey{"red", "x"}},
		Claim{Service: ServiceKey{"default", "shared1"}, Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1")}, SharingKey: "k", Ports: []Port{{"TCP", 1}}},
		Claim{Service: ServiceKey{"default", "shared2"}, Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1")}, SharingKey: "k", Ports: []Port{{"TCP", 2}}},
		Claim{Service: ServiceKey{"default", "named"}, Pool: "named"},
		Claim{Service: ServiceKey{"default", "outside"}, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
	)
	want := map[ServiceKey]string{}
	var wantSet []string
	var held []Claim
	for n := range 100 {
		rng := rand.New(rand.NewPCG(uint64(n), 3))
		a := withHistory(rng, all)
		claims := slices.Concat(fixed, rivals)
		rng.Shuffle(len(claims), func(i, j int) { claims[i], claims[j] = claims[j], claims[i] })
		got := map[ServiceKey]string{}
		for _, c := range claims {
			d := a.Assign(c, time.Time{})
			got[c.Service] = fmt.Sprint(d.Lease, d.Reason, d.Message)
		}
		var set []string
		for _, c := range rivals {
			for _, h := range a.Lease(c.Service) {
				set = append(set, fmt.Sprint(h))
			}
		}
		slices.Sort(set)
		if n == 0 {
			want, wantSet = got, set
			for _, c := range slices.Concat(fixed, rivals) {
				c.Held = a.Lease(c.Service)
				held = append(held, c)
			}
		}
		for _, c := range fixed {
			if got[c.Service] != want[c.Service] {
				t.Errorf("order %d: %s has %s, at first %s", n, c.Service, got[c.Service], want[c.Service])
			}
		}
		if !slices.Equal(set, wantSet) {
			t.Errorf("order %d: in use %v, at first %v", n, set, wantSet)
		}
		sameAnswers(t, rng, all, held)
	}
}

// lastNodes are the nodes after every history.
var lastNodes = map[string][]netip.Addr{
	"n1": {netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8::1")},
	"n3": {netip.MustParseAddr("203.0.113.3"), netip.MustParseAddr("203.0.113.1")},
}

// withHistory returns an Allocator that has the pools and the last nodes, and no remaining Service.
func withHistory(rng *rand.Rand, all []Pool) *Allocator {
	a := New()
	c := &choices{pick: rng.IntN, a: a, r: newReference()}
	for range 30 {
		switch rng.IntN(5) {
		case 0:
			c.setPools()
		case 4:
			c.node()
			c.host()
		case 1:
			a.Release(c.service(), time.Time{})
		default:
			a.Assign(c.claim(c.service()), time.Time{})
		}
		if rng.IntN(2) == 0 {
			a.Reevaluate(time.Time{})
		}
	}
	for _, ns := range []string{"blue", "red"} {
		for _, name := range "pqrst" {
			a.Release(ServiceKey{ns, string(name)}, time.Time{})
		}
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	names := []string{"n1", "n2", "n3"}
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names {
		a.Withhold(Refusal{RuleNode, name}, lastNodes[name], time.Time{})
	}
	a.SetHosts(nil)
	a.SetPools(all)
	return a
}

// sameAnswers adopts the holders in a random order after a random history. Each keeps its lease. A new claim gets the
// same decision as after an adoption in the given order.
func sameAnswers(t *testing.T, rng *rand.Rand, all []Pool, held []Claim) {
	t.Helper()
	plain := New()
	plain.SetPools(all)
	for name, addrs := range lastNodes {
		plain.Withhold(Refusal{RuleNode, name}, addrs, time.Time{})
	}
	plain.Adopt(held)
	a := withHistory(rng, all)
	shuffled := slices.Clone(held)
	rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	a.Adopt(shuffled)
	for _, c := range held {
		if d := a.Assign(c, time.Time{}); d.Changed || !slices.Equal(d.Lease, c.Held) {
			t.Errorf("%s had %v, has %v", c.Service, c.Held, d.Lease)
		}
		plain.Assign(c, time.Time{})
	}
	newcomer := Claim{Service: ServiceKey{"default", "new"}, Families: []Family{IPv6, IPv4}, Policy: PreferDualStack, SharingKey: "k", Ports: []Port{{"TCP", 3}}}
	if x, y := a.Assign(newcomer, time.Time{}), plain.Assign(newcomer, time.Time{}); fmt.Sprint(x) != fmt.Sprint(y) {
		t.Errorf("newcomer gets %v, without the history %v", x, y)
	}
	if got, want := a.Reevaluate(time.Time{}), plain.Reevaluate(time.Time{}); !slices.Equal(got, want) {
		t.Errorf("reevaluated %v, without the history %v", got, want)
	}
}

func FuzzAllocator(f *testing.F) {
	for seed := range 8 {
		rng := rand.New(rand.NewPCG(uint64(seed), 2))
		b := make([]byte, 400)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := newChoices(t, func(n int) int {
			if len(data) == 0 {
				return 0
			}
			v := int(data[0]) % n
			data = data[1:]
			return v
		})
		for steps := 0; len(data) > 0 && steps < 100; steps++ {
			c.step()
		}
	})
}

func FuzzParseRange(f *testing.F) {
	for _, s := range []string{"192.0.2.0/28", "192.0.2.1-192.0.2.9", "2001:db8::1", "2001:db8::/64", "::/0", "1.2.3.4-", "::ffff:192.0.2.1", "fe80::1%eth0", "192.0.2.0/28-192.0.2.9"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRange(s)
		if err != nil {
			return
		}
		again, err := ParseRange(r.String())
		if err != nil || again != r {
			t.Fatalf("%q is %s, which reads as %s: %v", s, r, again, err)
		}
		if r.Last.Less(r.First) || r.First.BitLen() != r.Last.BitLen() || r.First.Is4In6() || !r.Contains(r.First) || !r.Contains(r.Last) {
			t.Fatalf("%q is %s", s, r)
		}
		if n := r.Size(); n < 1 || r.Family() == IPv4 && n > math.MaxUint32 {
			t.Fatalf("%q has %d addresses", s, n)
		}
	})
}
