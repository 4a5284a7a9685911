package warnings

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/ccm/advertisement"
	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// announcements determines which addresses of Services are not announced, and why. Informers feed it; the
// Publisher queries it.
type announcements struct {
	// held returns the addresses of a Service, with their pools.
	held func(*v1.Service) []pools.Address
	// forwarding is the cluster's default.
	forwarding v1alpha1.Forwarding
	// changed is called with each Service, or every, whose warnings may have changed. It must not block.
	changed func(pools.ServiceKey)
	now     func() time.Time

	mu       sync.Mutex
	pools    map[string]map[string]string // labels
	l2, bgp  map[string]advertisement.Selection
	vips     map[string]placedVIP
	of       map[pools.ServiceKey]map[string]struct{} // names of VirtualIPs
	unserved *Unserved
}

// placedVIP is a VirtualIP with the time at which the reason of a condition, by type, changed while its status did not.
type placedVIP struct {
	*v1alpha1.VirtualIP
	changed map[string]time.Time
}

// Unserved are the problems of addresses that no node serves by BGP. The BGP controller sets them.
type Unserved struct {
	mu       sync.Mutex
	problems map[netip.Addr]condition.Problem
	awaits   bool
	changed  func()
}

// notAdvertised is the reason of a warning about an address that no advertisement covers. For other unannounced
// addresses the VirtualIP and the BGPAdvertisement have the reason.
const notAdvertised = "NotAdvertised"

// affinityPerNode is the reason of a warning about session affinity that a router may break.
const affinityPerNode = "AffinityPerNode"

func newAnnouncements(unserved *Unserved) *announcements {
	return &announcements{
		held: func(*v1.Service) []pools.Address { return nil }, changed: func(pools.ServiceKey) {}, now: time.Now,
		pools: map[string]map[string]string{}, l2: map[string]advertisement.Selection{}, bgp: map[string]advertisement.Selection{},
		vips: map[string]placedVIP{}, of: map[pools.ServiceKey]map[string]struct{}{}, unserved: unserved,
	}
}

// watch feeds the announcements. It returns the sync functions of the informers.
func (a *announcements) watch(ctx context.Context, kinds watch.Kinds) ([]cache.InformerSynced, error) {
	synced, err := kinds.WatchAll(ctx, a.handler(),
		&v1alpha1.IPAddressPool{}, &v1alpha1.L2Advertisement{}, &v1alpha1.BGPAdvertisement{}, &v1alpha1.VirtualIP{})
	return append(synced, a.unserved.known), err
}

func (a *announcements) handler() cache.ResourceEventHandler {
	set := func(o any, exists bool) {
		a.mu.Lock()
		changed := a.record(o, exists)
		a.mu.Unlock()
		for _, key := range changed {
			a.changed(key)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { set(o, true) },
		UpdateFunc: func(_, o any) { set(o, true) },
		DeleteFunc: func(o any) {
			if tomb, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tomb.Obj
			}
			set(o, false)
		},
	}
}

// affectsAll is returned by record for a change that may affect every Service.
var affectsAll = []pools.ServiceKey{allServices}

// record records an object or its deletion, and returns the affected Services.
func (a *announcements) record(o any, exists bool) []pools.ServiceKey {
	switch o := o.(type) {
	case *v1alpha1.IPAddressPool:
		same := func(old map[string]string) bool { return labels.Equals(old, o.Labels) }
		if setOrDelete(a.pools, o.Name, exists, same, o.Labels) {
			return affectsAll
		}
	case *v1alpha1.L2Advertisement:
		ad, _ := advertisement.OfL2(o) // its own condition reports the error
		setOrDelete(a.l2, o.Name, exists, nil, ad)
		return affectsAll
	case *v1alpha1.BGPAdvertisement:
		ad, _ := advertisement.OfBGP(o)
		setOrDelete(a.bgp, o.Name, exists, nil, ad)
		return affectsAll
	case *v1alpha1.VirtualIP:
		return a.recordVIP(o, exists)
	}
	return nil
}

// setOrDelete sets or deletes a key, and reports whether that changes the map.
func setOrDelete[V any](m map[string]V, key string, exists bool, same func(V) bool, value V) bool {
	old, was := m[key]
	switch {
	case !exists:
		delete(m, key)
		return was
	case was && same != nil && same(old):
		return false
	}
	m[key] = value
	return true
}

// recordVIP returns the Services that use or used the VirtualIP.
func (a *announcements) recordVIP(vip *v1alpha1.VirtualIP, exists bool) (changed []pools.ServiceKey) {
	old, was := a.vips[vip.Name]
	if was {
		for _, ref := range old.Spec.Services {
			key := pools.ServiceKey(ref)
			delete(a.of[key], vip.Name)
			if len(a.of[key]) == 0 {
				delete(a.of, key)
			}
			changed = append(changed, key)
		}
	}
	delete(a.vips, vip.Name)
	if !exists {
		return changed
	}
	a.vips[vip.Name] = placedVIP{vip, old.changesIn(vip.Status.Conditions, a.now())}
	for _, ref := range vip.Spec.Services {
		key := pools.ServiceKey(ref)
		if a.of[key] == nil {
			a.of[key] = map[string]struct{}{}
		}
		a.of[key][vip.Name] = struct{}{}
		changed = append(changed, key)
	}
	return changed
}

// changesIn returns the changes of reasons up to the conditions that replace those of v.
func (v placedVIP) changesIn(conditions []metav1.Condition, now time.Time) map[string]time.Time {
	if v.VirtualIP == nil {
		return nil
	}
	out := maps.Clone(v.changed)
	for _, c := range conditions {
		before := meta.FindStatusCondition(v.Status.Conditions, c.Type)
		if before != nil && before.Status == c.Status && before.Reason != c.Reason {
			if out == nil {
				out = map[string]time.Time{}
			}
			out[c.Type] = now
		}
	}
	return out
}

// since returns when the condition got its reason.
func (v placedVIP) since(c *metav1.Condition) time.Time {
	if at := v.changed[c.Type]; at.After(c.LastTransitionTime.Time) {
		return at
	}
	return c.LastTransitionTime.Time
}

// warnings returns why the addresses of a Service are unreachable, and the delay after which there may be more: 0 for
// never.
func (a *announcements) warnings(svc *v1.Service) (out []warning, recheck time.Duration) {
	held := a.held(svc)
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	// later reports whether a state that began at since must be reported later, and records when.
	later := func(since time.Time) bool {
		left := since.Add(watch.UnannouncedFor).Sub(now)
		if left > 0 && (recheck == 0 || left < recheck) {
			recheck = left
		}
		return left > 0
	}
	bare := a.uncovered(svc, held)
	if len(bare) > 0 && !later(allocatedAt(svc)) {
		out = append(out, warning{notAdvertised, fmt.Sprintf("No L2Advertisement or BGPAdvertisement covers %s: "+
			"no node announces it. Create one, or widen its ipAddressPools, ipAddressPoolSelectors or serviceSelectors", servicerecord.Described(bare))})
	}
	for _, name := range slices.Sorted(maps.Keys(a.of[servicerecord.KeyOf(svc)])) {
		vip := a.vips[name]
		if !slices.ContainsFunc(bare, func(h pools.Address) bool { return slices.Contains(vip.Spec.Addresses, h.Addr.String()) }) {
			out = append(out, virtualIPWarnings(vip, later)...) // else the missing advertisement is the cause
		}
	}
	for _, h := range held {
		if one, is := a.unserved.of(h.Addr); is {
			out = append(out, warning{one.Reason, one.Message})
		}
	}
	return append(out, a.affinityWarnings(svc, held)...), recheck
}

// affinityWarnings reports session affinity of addresses that several nodes may announce over BGP: a node knows only
// the affinity of the clients that it forwards itself. With direct forwarding all nodes make the same choice.
func (a *announcements) affinityWarnings(svc *v1.Service, held []pools.Address) []warning {
	forwarding, _ := v1alpha1.ParseForwarding(svc.Annotations[v1alpha1.AnnotationForwarding], a.forwarding)
	if svc.Spec.SessionAffinity != v1.ServiceAffinityClientIP || forwarding == v1alpha1.ForwardingDirect {
		return nil
	}
	routed := slices.DeleteFunc(slices.Clone(held), func(h pools.Address) bool { return h.Pool == "" || !a.covers(a.bgp, h, svc) })
	if len(routed) == 0 {
		return nil
	}
	return []warning{{affinityPerNode, fmt.Sprintf("sessionAffinity is ClientIP, but each node that announces %s over BGP chooses endpoints alone: "+
		"a router that spreads connections by port breaks the affinity. Set annotation %s to %s, or have the router spread by source address",
		servicerecord.Described(routed), v1alpha1.AnnotationForwarding, v1alpha1.ForwardingDirect)}}
}

// covers reports whether an advertisement selects the address of the Service.
func (a *announcements) covers(ads map[string]advertisement.Selection, h pools.Address, svc *v1.Service) bool {
	for _, ad := range ads {
		if ad.SelectsPool(h.Pool, a.pools[h.Pool]) && ad.SelectsService(svc.Labels) {
			return true
		}
	}
	return false
}

// uncovered returns the addresses of pools that no advertisement selects.
func (a *announcements) uncovered(svc *v1.Service, held []pools.Address) (out []pools.Address) {
	for _, h := range held {
		if h.Pool != "" && !a.covers(a.l2, h, svc) && !a.covers(a.bgp, h, svc) {
			out = append(out, h)
		}
	}
	return out
}

// virtualIPWarnings returns why no node announces a VirtualIP, who else answers for it, and why one of its Services is
// not forwarded directly although it should be. Without conditions the state is unknown.
func virtualIPWarnings(vip placedVIP, later func(time.Time) bool) []warning {
	addresses := strings.Join(vip.Spec.Addresses, ", ")
	c := meta.FindStatusCondition(vip.Status.Conditions, v1alpha1.ConditionNoEligibleNode)
	if c != nil && c.Status == metav1.ConditionTrue {
		return []warning{{c.Type, fmt.Sprintf("No eligible node for %s. %s", addresses, c.Message)}}
	}
	var out []warning
	conflict := meta.FindStatusCondition(vip.Status.Conditions, v1alpha1.ConditionConflict)
	if conflict != nil && conflict.Status == metav1.ConditionTrue {
		out = append(out, warning{conflict.Reason, fmt.Sprintf("%s: %s", addresses, conflict.Message)})
	}
	c = meta.FindStatusCondition(vip.Status.Conditions, v1alpha1.ConditionAnnounced)
	if c != nil && c.Status == metav1.ConditionFalse && len(vip.Spec.Nodes) > 0 && len(out) == 0 && !later(vip.since(c)) {
		out = append(out, warning{c.Reason, fmt.Sprintf("No node announces %s: %s", addresses, c.Message)})
	}
	c = meta.FindStatusCondition(vip.Status.Conditions, v1alpha1.ConditionNotDirect)
	if c != nil && c.Status == metav1.ConditionTrue && !later(vip.since(c)) {
		out = append(out, warning{c.Reason, fmt.Sprintf("%s: %s", addresses, c.Message)})
	}
	return out
}

// allocatedAt returns when the Service got its address, or the zero time if it has no such condition.
func allocatedAt(svc *v1.Service) time.Time {
	if c := meta.FindStatusCondition(svc.Status.Conditions, servicerecord.ConditionAllocated); c != nil {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// NewUnserved returns none.
func NewUnserved() *Unserved { return &Unserved{changed: func() {}} }

// Expect has the publisher of warnings wait for the first Set.
func (u *Unserved) Expect() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.awaits = true
}

// Set replaces all problems.
func (u *Unserved) Set(problems map[netip.Addr]condition.Problem) {
	u.mu.Lock()
	same, changed := maps.Equal(u.problems, problems), u.changed
	u.problems, u.awaits = problems, false
	u.mu.Unlock()
	if !same {
		changed()
	}
}

// onChange sets the function that is called when a problem changed. It must not block.
func (u *Unserved) onChange(f func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.changed = f
}

// known reports whether the first Set has come, if one is expected.
func (u *Unserved) known() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.awaits
}

// of returns the problem of an address.
func (u *Unserved) of(addr netip.Addr) (condition.Problem, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p, is := u.problems[addr]
	return p, is
}
