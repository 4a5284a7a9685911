package pools

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// reference implements the rules plainly: no index, every count computed from scratch, every address of a pool listed.
// It shares only the value types, the label selectors and the text form of reasons with the Allocator.
type reference struct {
	all     []Pool
	inUse   []*Pool
	homes   map[netip.Addr]*Pool
	labels  map[string]map[string]string
	nodes   map[string][]netip.Addr
	hosts   map[netip.Addr]string
	svc     map[ServiceKey]*refService
	cooling map[netip.Addr]refCoolDown
	now     time.Time
}

type refService struct {
	claim  Claim
	lease  []Address
	left   []Address // until written
	back   bool      // its status lost what it holds
	reason Reason
	misfit bool
}

type refCoolDown struct {
	freed time.Time
	by    ServiceKey
}

func newReference() *reference {
	return &reference{labels: map[string]map[string]string{}, nodes: map[string][]netip.Addr{}, svc: map[ServiceKey]*refService{}, cooling: map[netip.Addr]refCoolDown{}}
}

// list returns every address of the pool, entries as listed.
func list(p *Pool) []netip.Addr {
	var out []netip.Addr
	for _, r := range p.Ranges {
		for a := r.First; a.Compare(r.Last) <= 0; a = a.Next() {
			out = append(out, a)
		}
	}
	return out
}

// setPools computes which pools are in use (the older of two that overlap) and which of them has each address.
func (r *reference) setPools(all []Pool) {
	r.all, r.inUse, r.homes = all, r.used(all), map[netip.Addr]*Pool{}
	for _, p := range r.inUse {
		for _, a := range list(p) {
			r.homes[a] = p
		}
	}
}

func (r *reference) used(all []Pool) []*Pool {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(p, o Pool) int { return cmp.Or(p.Created.Compare(o.Created), cmp.Compare(p.Name, o.Name)) })
	var out []*Pool
	seen := map[netip.Addr]bool{}
	for i := range sorted {
		addrs := list(&sorted[i])
		if sorted[i].Unreadable || slices.ContainsFunc(addrs, func(a netip.Addr) bool { return seen[a] }) {
			continue
		}
		out = append(out, &sorted[i])
		for _, a := range addrs {
			seen[a] = true
		}
	}
	return out
}

func (r *reference) poolOf(a netip.Addr) *Pool {
	return r.homes[a]
}

func has(l []Address, a netip.Addr) bool {
	return slices.ContainsFunc(l, func(h Address) bool { return h.Addr == a })
}

// staying returns the holders that do not release the address.
func (r *reference) staying(a netip.Addr) []*refService {
	return slices.DeleteFunc(r.holders(a), func(s *refService) bool { return !has(s.lease, a) })
}

func (r *reference) holders(a netip.Addr) []*refService {
	var out []*refService
	for _, s := range r.svc {
		if has(s.lease, a) || has(s.left, a) {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(s, o *refService) int { return s.claim.Service.Compare(o.claim.Service) })
	return out
}

// poolName returns the pool in which an address in use is counted.
func (r *reference) poolName(a netip.Addr) string {
	if p := r.poolOf(a); p != nil {
		return p.Name
	}
	first := r.holders(a)[0]
	for _, h := range append(slices.Clone(first.lease), first.left...) {
		if h.Addr == a {
			return h.Pool
		}
	}
	panic("no holder")
}

// ofNode reports whether a node has the address.
func (r *reference) ofNode(a netip.Addr) bool {
	for _, has := range r.nodes {
		if slices.Contains(has, a) {
			return true
		}
	}
	return false
}

// never reports whether the pool assigns the address to no Service.
func (r *reference) never(p *Pool, a netip.Addr) bool {
	return p.AvoidBuggyIPs && endsBadly(a) || r.ofNode(a) || r.hosts[a] != ""
}

func (r *reference) unreadable(name string) bool {
	return slices.ContainsFunc(r.all, func(p Pool) bool { return p.Name == name && p.Unreadable })
}

func endsBadly(a netip.Addr) bool {
	return a.Is4() && (a.As4()[3] == 0 || a.As4()[3] == 255)
}

func (r *reference) allows(p *Pool, c *Claim) bool {
	al := p.Allocation
	ns := len(al.Namespaces) == 0 && len(al.NamespaceSelectors) == 0 || slices.Contains(al.Namespaces, c.Service.Namespace)
	if labels, known := r.labels[c.Service.Namespace]; known {
		for _, s := range al.NamespaceSelectors {
			ns = ns || s.Matches(labels)
		}
	}
	svc := len(al.ServiceSelectors) == 0
	for _, s := range al.ServiceSelectors {
		svc = svc || s.Matches(c.Labels)
	}
	return ns && svc
}

func listed(p *Pool, x, y string) bool {
	return x == y || slices.Contains(p.SharingNamespaces, x) && slices.Contains(p.SharingNamespaces, y)
}

// fine reports whether the claim still fits the address that it holds.
func (r *reference) fine(a netip.Addr, c *Claim) bool {
	p := r.poolOf(a)
	if p == nil {
		return r.unreadable(r.poolName(a)) && !r.ofNode(a)
	}
	if p.AvoidBuggyIPs && endsBadly(a) || r.ofNode(a) || !r.allows(p, c) {
		return false
	}
	for _, h := range r.staying(a) {
		if !listed(p, c.Service.Namespace, h.claim.Service.Namespace) {
			return false
		}
	}
	return true
}

// together reports whether the two request to share an address.
func together(c, h *Claim) bool { return c.SharingKey != "" && c.SharingKey == h.SharingKey }

func agree(c, h *Claim) bool {
	if !together(c, h) {
		return false
	}
	for _, p := range c.Ports {
		for _, o := range h.Ports {
			if p == o {
				return false
			}
		}
	}
	return !c.Local && !h.Local || c.Selector != "" && c.Selector == h.Selector && c.Service.Namespace == h.Service.Namespace
}

func (r *reference) mayJoin(a netip.Addr, s *refService) bool {
	p := r.poolOf(a)
	for _, h := range r.holders(a) {
		if h == s {
			continue
		}
		if !agree(&s.claim, &h.claim) || !listed(p, s.claim.Service.Namespace, h.claim.Service.Namespace) || !r.fine(a, &h.claim) {
			return false
		}
	}
	return true
}

// room reports whether the namespace may hold x (of family f, or any free one) of the pool, in addition to the
// Service's address of the other family.
func (r *reference) room(p *Pool, s *refService, lease map[Family]netip.Addr, f Family, x netip.Addr) bool {
	if !p.NamespaceQuota.Set {
		return true
	}
	held := map[netip.Addr]bool{}
	for _, o := range r.svc {
		if o == s || o.claim.Service.Namespace != s.claim.Service.Namespace {
			continue
		}
		for _, h := range append(slices.Clone(o.lease), o.left...) {
			held[h.Addr] = r.poolName(h.Addr) == p.Name
		}
	}
	if held[x] || has(s.left, x) {
		return true
	}
	for _, h := range s.left {
		held[h.Addr] = r.poolName(h.Addr) == p.Name
	}
	for of, a := range lease {
		if of != f && a.IsValid() {
			if h := r.poolOf(a); h != nil && h.Name == p.Name || h == nil && len(r.holders(a)) > 0 && r.poolName(a) == p.Name {
				held[a] = true
			}
		}
	}
	n := int64(0)
	for _, is := range held {
		if is {
			n++
		}
	}
	return n < p.NamespaceQuota.Max
}

type refChoice struct {
	addr   Address
	ok     bool
	exact  bool
	quota  bool
	reason Reason
}

func (r *reference) assign(c Claim) (lease []Address, reason Reason) {
	r.expire()
	s := r.svc[c.Service]
	if s == nil {
		s = &refService{claim: c}
		r.svc[c.Service] = s
		r.takeRecorded(s)
	}
	s.claim = c
	lease, reason = r.answer(s)
	r.move(s, lease)
	s.misfit = false
	for _, h := range lease {
		for _, o := range r.staying(h.Addr) {
			s.misfit = s.misfit || o != s && !o.misfit && !agree(&c, &o.claim)
		}
	}
	s.reason = reason
	return lease, reason
}

// takeRecorded puts a new Service on the addresses of its status, except those held by others.
func (r *reference) takeRecorded(s *refService) {
	for _, h := range s.claim.Held {
		ok := true
		for _, o := range r.holders(h.Addr) {
			ok = ok && (o == s || agree(&s.claim, &o.claim))
		}
		if ok && !has(s.lease, h.Addr) {
			s.lease = append(s.lease, h)
		}
	}
	r.restoreLost(s)
}

// restoreLost puts a Service on the addresses that its status lost, if it has no address of a pool otherwise.
func (r *reference) restoreLost(s *refService) {
	for _, h := range s.claim.Lost {
		p := r.poolOf(h.Addr)
		if p == nil || r.never(p, h.Addr) || !r.allows(p, &s.claim) || !r.mayJoin(h.Addr, s) {
			continue
		}
		inside := func(o Address) bool { return FamilyOf(o.Addr) == FamilyOf(h.Addr) && r.poolOf(o.Addr) != nil }
		if !slices.ContainsFunc(s.lease, inside) {
			s.back = len(s.claim.Held) == 0
			s.lease = append(s.lease, h)
		}
	}
}

// record puts a Service on the addresses of its status, after a restart.
func (r *reference) record(s *refService) {
	for _, h := range s.claim.Held {
		for _, o := range r.holders(h.Addr) {
			s.misfit = s.misfit || !o.misfit && !agree(&s.claim, &o.claim)
		}
	}
	for _, h := range s.claim.Held {
		if !has(s.lease, h.Addr) {
			s.lease = append(s.lease, h)
		}
	}
}

// heldIn returns the address of a family that a Service keeps if possible: first one in a pool, then one assigned from
// a pool, then any other.
func (r *reference) heldIn(s *refService, f Family) *Address {
	for _, good := range []func(Address) bool{
		func(h Address) bool { return r.poolOf(h.Addr) != nil },
		func(h Address) bool { return h.Pool != "" },
		func(Address) bool { return true },
	} {
		for i, h := range s.lease {
			if FamilyOf(h.Addr) == f && good(h) {
				return &s.lease[i]
			}
		}
	}
	return nil
}

// move puts the Service on the lease. Addresses without a holder cool down.
func (r *reference) move(s *refService, lease []Address) {
	for _, h := range s.lease {
		if !has(lease, h.Addr) {
			s.left = append(s.left, h)
		}
	}
	s.lease = slices.Clone(lease)
	s.left = slices.DeleteFunc(s.left, func(h Address) bool { return has(lease, h.Addr) })
	for _, h := range lease {
		delete(r.cooling, h.Addr)
	}
}

func (r *reference) written(k ServiceKey) {
	s := r.svc[k]
	if s == nil {
		return
	}
	old := s.left
	s.left, s.back = nil, false
	for _, h := range old {
		if p := r.poolOf(h.Addr); len(r.holders(h.Addr)) == 0 && p != nil && p.ReuseAfter > 0 && !r.never(p, h.Addr) {
			r.cooling[h.Addr] = refCoolDown{r.now, s.claim.Service}
		}
	}
}

func (r *reference) release(k ServiceKey) {
	r.expire()
	if s := r.svc[k]; s != nil {
		r.move(s, nil)
		r.written(k)
		delete(r.svc, k)
	}
}

// expire ends the cool-downs that are over, or whose pool is gone.
func (r *reference) expire() {
	r.endCoolDowns(func(e refCoolDown, p *Pool) bool { return !r.now.Before(e.freed.Add(p.ReuseAfter)) })
}

func (r *reference) endCoolDowns(over func(refCoolDown, *Pool) bool) {
	for a, e := range r.cooling {
		if p := r.poolOf(a); p == nil || r.never(p, a) || over(e, p) {
			delete(r.cooling, a)
		}
	}
}

func (r *reference) answer(s *refService) ([]Address, Reason) {
	lease, reason := r.answerOf(s)
	if s.claim.Policy == RequireDualStack && len(s.claim.Families) == 2 && len(lease) == 1 && s.back {
		return nil, reason
	}
	return lease, reason
}

func (r *reference) answerOf(s *refService) ([]Address, Reason) {
	c := &s.claim
	fams := c.Families
	if len(fams) == 0 {
		fams = []Family{IPv4}
	}
	if c.Policy == SingleStack {
		fams = fams[:1]
	}
	if c.Invalid != "" {
		return s.lease, InvalidRequest
	}
	requested := map[Family]netip.Addr{}
	for _, a := range c.Addresses {
		if !slices.Contains(fams, FamilyOf(a)) || requested[FamilyOf(a)].IsValid() {
			return s.lease, WrongFamily
		}
		requested[FamilyOf(a)] = a
	}
	got := r.chooseFamilies(s, fams, requested)
	if len(fams) == 2 && got[fams[0]].ok && got[fams[1]].quota && !got[fams[1]].ok {
		reversed := r.chooseFamilies(s, []Family{fams[1], fams[0]}, requested)
		onlyRequested := c.Policy == PreferDualStack && requested[fams[1]].IsValid() && !requested[fams[0]].IsValid()
		if reversed[fams[1]].ok && (reversed[fams[0]].ok || onlyRequested) {
			got = reversed
		}
	}
	any := got[fams[0]].ok || got[fams[len(fams)-1]].ok
	for _, f := range fams {
		if ch := got[f]; !ch.ok && (c.Policy != PreferDualStack || ch.exact || !any) {
			return s.lease, ch.reason
		}
	}
	var lease []Address
	found := map[Reason]bool{}
	for _, f := range fams {
		ch := got[f]
		if ch.ok || ch.reason == SharingRefused {
			found[ch.reason] = true
		} else {
			found[SecondFamilyPending] = true
		}
		if ch.ok {
			lease = append(lease, ch.addr)
		} else if h := r.heldIn(s, f); h != nil {
			lease = append(lease, *h)
		}
	}
	for _, reason := range []Reason{SharingRefused, Draining, SecondFamilyPending} {
		if found[reason] {
			return lease, reason
		}
	}
	return lease, Allocated
}

// chooseFamilies chooses in the given order. The later choice counts the earlier one in the quota.
func (r *reference) chooseFamilies(s *refService, fams []Family, requested map[Family]netip.Addr) map[Family]refChoice {
	lease := map[Family]netip.Addr{}
	for _, f := range []Family{IPv4, IPv6} {
		if h := r.heldIn(s, f); h != nil {
			lease[f] = h.Addr
		}
	}
	got := map[Family]refChoice{}
	for _, f := range fams {
		ch := r.chooseOne(s, f, requested[f], lease)
		if ch.ok {
			lease[f] = ch.addr.Addr
		}
		got[f] = ch
	}
	return got
}

func (r *reference) chooseOne(s *refService, f Family, x netip.Addr, lease map[Family]netip.Addr) refChoice {
	c := &s.claim
	held := r.heldIn(s, f)
	switch {
	case x.IsValid() && held != nil && held.Addr == x:
		if p := r.poolOf(x); p != nil && c.Pool != "" && c.Pool != p.Name && c.Pool != held.Pool {
			return refChoice{reason: InvalidRequest, exact: true}
		}
		ch := r.keep(s, *held, func() refChoice { return refChoice{} })
		ch.exact = true
		return ch
	case x.IsValid():
		ch := r.chooseExact(s, x, lease)
		ch.exact = true
		return ch
	case c.Pool != "":
		named := func() refChoice { return r.chooseNamed(s, f, lease) }
		if held != nil && (held.Pool == c.Pool || r.poolName(held.Addr) == c.Pool) {
			return r.keep(s, *held, named)
		}
		return named()
	}
	auto := func() refChoice { return r.chooseAuto(s, f, lease) }
	if held != nil {
		return r.keep(s, *held, auto)
	}
	return auto()
}

func (r *reference) keep(s *refService, held Address, other func() refChoice) refChoice {
	c := &s.claim
	p := r.poolOf(held.Addr)
	keep := refChoice{addr: held, ok: true, reason: Allocated}
	if p != nil && (c.Pool != held.Pool || held.Pool == "") {
		keep.addr.Pool = p.Name
	}
	host := r.hosts[held.Addr] != "" && !slices.Contains(c.Addresses, held.Addr)
	if host || !r.fine(held.Addr, c) || c.Pool != "" && c.Pool != r.poolName(held.Addr) {
		keep.reason = Draining
	}
	apart := false
	for _, h := range r.staying(held.Addr) {
		if h != s && !h.misfit && !agree(c, &h.claim) {
			keep.reason = SharingRefused
			apart = apart || !together(c, &h.claim)
		}
	}
	if keep.reason != Allocated && (apart || c.Reallocate || host) {
		if ch := other(); ch.ok {
			return ch
		}
	}
	return keep
}

func (r *reference) chooseExact(s *refService, x netip.Addr, lease map[Family]netip.Addr) refChoice {
	c := &s.claim
	p := r.poolOf(x)
	if p == nil {
		for i := range r.all {
			if !r.all[i].Unreadable && slices.Contains(list(&r.all[i]), x) {
				return refChoice{reason: PoolOverlapping}
			}
		}
		return refChoice{reason: AddressOutsidePools}
	}
	switch {
	case c.Pool != "" && c.Pool != p.Name:
		return refChoice{reason: InvalidRequest}
	case p.AvoidBuggyIPs && endsBadly(x):
		return refChoice{reason: AddressAvoided}
	case r.ofNode(x):
		return refChoice{reason: AddressWithheld}
	case !r.allows(p, c):
		return refChoice{reason: PoolNotAdmitting}
	case !r.mayJoin(x, s) && c.SharingKey == "":
		return refChoice{reason: AddressTaken}
	case !r.mayJoin(x, s):
		return refChoice{reason: SharingRefused}
	case !r.room(p, s, lease, FamilyOf(x), x):
		return refChoice{reason: QuotaReached, quota: true}
	}
	return refChoice{addr: Address{x, p.Name}, ok: true, reason: Allocated}
}

func (r *reference) chooseNamed(s *refService, f Family, lease map[Family]netip.Addr) refChoice {
	c := &s.claim
	for i := range r.all {
		if r.all[i].Name != c.Pool {
			continue
		}
		for _, p := range r.inUse {
			switch {
			case p.Name != c.Pool:
			case !r.allows(p, c):
				return refChoice{reason: PoolNotAdmitting}
			case !slices.ContainsFunc(p.Ranges, func(x Range) bool { return x.Family() == f }):
				return refChoice{reason: PoolLacksFamily}
			default:
				return r.chooseIn(s, f, []*Pool{p}, lease)
			}
		}
		if r.all[i].Unreadable {
			return refChoice{reason: PoolUnreadable}
		}
		return refChoice{reason: PoolOverlapping}
	}
	return refChoice{reason: PoolNotFound}
}

func (r *reference) chooseAuto(s *refService, f Family, lease map[Family]netip.Addr) refChoice {
	var from []*Pool
	for _, p := range r.inUse {
		if p.AutoAssign && r.allows(p, &s.claim) {
			from = append(from, p)
		}
	}
	rank := func(p *Pool) int64 {
		switch {
		case !p.Allocation.Set:
			return 1 << 40
		case p.Allocation.Priority == 0:
			return 1 << 39
		}
		return int64(p.Allocation.Priority)
	}
	slices.SortFunc(from, func(p, o *Pool) int { return cmp.Or(cmp.Compare(rank(p), rank(o)), cmp.Compare(p.Name, o.Name)) })
	return r.chooseIn(s, f, from, lease)
}

func (r *reference) chooseIn(s *refService, f Family, from []*Pool, lease map[Family]netip.Addr) refChoice {
	full, quota, refused := 0, 0, false
	for _, p := range from {
		var mine, shared, free []netip.Addr
		has := false
		for _, a := range list(p) {
			if FamilyOf(a) != f {
				continue
			}
			has = true
			coolDown, cooling := r.cooling[a]
			refused = refused || r.refusesShare(a, s)
			switch {
			case r.never(p, a):
			case cooling && coolDown.by == s.claim.Service:
				mine = append(mine, a)
			case cooling:
			case len(r.holders(a)) == 0:
				free = append(free, a)
			case !slices.Contains(r.holders(a), s) && r.mayJoin(a, s):
				shared = append(shared, a)
			}
		}
		if !has {
			continue
		}
		for _, options := range [][]netip.Addr{mine, shared, free} {
			if len(options) > 0 && r.room(p, s, lease, f, options[0]) {
				return refChoice{addr: Address{options[0], p.Name}, ok: true, reason: Allocated}
			}
		}
		if r.room(p, s, lease, f, netip.Addr{}) {
			full++
		} else {
			quota++
		}
	}
	switch {
	case full+quota == 0:
		return refChoice{reason: NoPool}
	case refused:
		return refChoice{reason: SharingRefused, quota: quota > 0}
	case full == 0:
		return refChoice{reason: QuotaReached, quota: true}
	}
	return refChoice{reason: PoolExhausted, quota: quota > 0}
}

// refusesShare reports whether all holders of the address have the Service's sharing key, and do not share it.
func (r *reference) refusesShare(a netip.Addr, s *refService) bool {
	on := r.holders(a)
	for _, h := range on {
		if h == s || !together(&s.claim, &h.claim) {
			return false
		}
	}
	return len(on) > 0 && !r.mayJoin(a, s)
}
