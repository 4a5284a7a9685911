package ccm

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

const annotationSharingKey = "ironlb.io/sharing-key"

// checker observes every change of every Service in order and records violations: an address held twice unrequested, or
// changed unrequested. It applies the rules, not the state of ironlb-ccm.
type checker struct {
	mu      sync.Mutex
	seen    map[types.UID]*subject
	faults  []string
	changes int           // of addresses, in total
	changed chan struct{} // closed and replaced at each of them
}

// subject is a Service as last observed.
type subject struct {
	svc  *v1.Service
	asks []ask // all since the last change of its addresses, including the one in effect then
}

// ask is a Service's request.
type ask struct {
	balanced  bool // a load balancer that is not being deleted
	addresses string
	pool      string
}

func newChecker(services []v1.Service) *checker {
	j := &checker{seen: map[types.UID]*subject{}, changed: make(chan struct{})}
	for i := range services {
		j.see(watch.Added, &services[i])
	}
	return j
}

// follow reads events until the channel closes.
func (j *checker) follow(events <-chan watch.Event) {
	for e := range events {
		if svc, ok := e.Object.(*v1.Service); ok {
			j.see(e.Type, svc)
		} else {
			j.fault("the watch of Services broke: %v", e.Object)
		}
	}
}

func (j *checker) see(t watch.EventType, svc *v1.Service) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.seen[svc.UID]
	if s == nil {
		s = &subject{svc: &v1.Service{}, asks: []ask{askOf(svc)}}
		j.seen[svc.UID] = s
	}
	before := s.svc
	s.svc = svc
	if a := askOf(svc); a != s.asks[len(s.asks)-1] {
		s.asks = append(s.asks, a)
	}
	if t == watch.Deleted {
		delete(j.seen, svc.UID)
		return
	}
	had, has := ingress(before), ingress(svc)
	if !slices.Equal(had, has) {
		if lost := without(had, has); len(lost) > 0 && !s.asked(had, has) {
			j.fault("%s/%s had %v and has %v, and did not ask for that: %+v; last written by %s", svc.Namespace, svc.Name, had, has, s.asks, writers(svc))
		}
		s.asks = s.asks[len(s.asks)-1:]
		j.changes++
		close(j.changed)
		j.changed = make(chan struct{})
	}
	for _, a := range without(held(svc), held(before)) {
		for _, other := range j.seen {
			if other.svc.UID != svc.UID && slices.Contains(held(other.svc), a) && !mayShare(svc, other.svc) {
				j.fault("%s/%s got %s, which %s/%s holds", svc.Namespace, svc.Name, a, other.svc.Namespace, other.svc.Name)
			}
		}
	}
}

func (j *checker) fault(format string, args ...any) {
	j.faults = append(j.faults, fmt.Sprintf(format, args...))
}

// asked reports whether a request of the Service explains its current addresses.
func (s *subject) asked(had, has []netip.Addr) bool {
	return slices.ContainsFunc(s.asks, func(a ask) bool {
		switch {
		case !a.balanced:
			return true
		case len(has) < len(had):
			return false
		case a.addresses != "":
			return a.addresses == join(has)
		}
		// One family may move to the requested pool while the pool has no address of the other.
		return a.pool != "" && !slices.ContainsFunc(without(has, had), func(x netip.Addr) bool { return !inPool(a.pool, x) })
	})
}

// writers lists the writers of the Service, with the times.
func writers(svc *v1.Service) string {
	var out []string
	for _, f := range svc.ManagedFields {
		if f.Time != nil {
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s at %s", f.Manager, f.Subresource, f.Time.Format("15:04:05"))))
		}
	}
	return strings.Join(out, ", ")
}

// verdict returns the faults so far and the number of changes.
func (j *checker) verdict() ([]string, int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.faults), j.changes
}

// next returns a channel that is closed at the next change of an address.
func (j *checker) next() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.changed
}

func askOf(svc *v1.Service) ask {
	return ask{balanced(svc), svc.Annotations[v1alpha1.AnnotationAddresses], svc.Annotations[v1alpha1.AnnotationPool]}
}

// balanced reports whether the Service is a load balancer that is not being deleted. Any other Service has given up its
// address: the next Service may have the address before the status of the first one shows the release.
func balanced(svc *v1.Service) bool {
	return svc.Spec.Type == v1.ServiceTypeLoadBalancer && svc.DeletionTimestamp == nil
}

// ingress lists the addresses of the status.
func ingress(svc *v1.Service) (out []netip.Addr) {
	for _, in := range svc.Status.LoadBalancer.Ingress {
		out = append(out, netip.MustParseAddr(in.IP))
	}
	return out
}

// held lists the addresses that the Service is entitled to.
func held(svc *v1.Service) []netip.Addr {
	if !balanced(svc) {
		return nil
	}
	return ingress(svc)
}

// mayShare reports whether two Services requested to share. Their ports always differ, and none has policy Local.
func mayShare(a, b *v1.Service) bool {
	key := a.Annotations[annotationSharingKey]
	return key != "" && key == b.Annotations[annotationSharingKey] && a.Namespace == b.Namespace
}

func without(all, some []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool { return slices.Contains(some, a) })
}

func join(addrs []netip.Addr) string {
	var s []string
	for _, a := range addrs {
		s = append(s, a.String())
	}
	return strings.Join(s, ",")
}

// wrong lists errors in the final state, without further changes and with all pools complete.
func wrong(services []v1.Service) []string {
	var bad []string
	holders := map[netip.Addr][]*v1.Service{}
	for i := range services {
		for _, a := range ingress(&services[i]) {
			holders[a] = append(holders[a], &services[i])
		}
	}
	for i := range services {
		if why := wrongWith(&services[i], holders); why != "" {
			bad = append(bad, services[i].Namespace+"/"+services[i].Name+": "+why)
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(holders), netip.Addr.Compare) {
		for i, s := range holders[a] {
			for _, o := range holders[a][i+1:] {
				if !mayShare(s, o) {
					bad = append(bad, fmt.Sprintf("%s is held by %s/%s and %s/%s", a, s.Namespace, s.Name, o.Namespace, o.Name))
				}
			}
		}
	}
	return bad
}

func wrongWith(svc *v1.Service, holders map[netip.Addr][]*v1.Service) string {
	has, want := ingress(svc), askOf(svc)
	recorded := svc.Annotations[v1alpha1.AnnotationAllocatedFrom]
	taken := func(a netip.Addr) bool {
		return slices.ContainsFunc(holders[a], func(o *v1.Service) bool { return o.UID != svc.UID && !mayShare(svc, o) })
	}
	switch {
	case svc.DeletionTimestamp != nil:
		return "is still being deleted"
	case !want.balanced && (len(has) > 0 || recorded != "" || len(svc.Finalizers) > 0):
		return fmt.Sprintf("is no load balancer and has %v, %q, %v", has, recorded, svc.Finalizers)
	case !want.balanced:
		return ""
	case len(has) > 0 && len(strings.Split(recorded, ",")) != len(has):
		return fmt.Sprintf("has %v recorded from %q", has, recorded)
	case want.addresses != "":
		if want.addresses != join(has) && inAnyPool(want.addresses) && !taken(netip.MustParseAddr(want.addresses)) {
			return fmt.Sprintf("has %v and asks for %s, which is free", has, want.addresses)
		}
		return ""
	}
	pool := want.pool
	if pool == "" {
		pool = poolMain
	}
	if len(has) >= families(svc) {
		if want.pool != "" && slices.ContainsFunc(has, func(a netip.Addr) bool { return !inPool(pool, a) }) && !full(pool, svc, taken) {
			return fmt.Sprintf("has %v and requests pool %s, which is not full", has, pool)
		}
		return ""
	}
	if full(pool, svc, taken) {
		return ""
	}
	return fmt.Sprintf("has %v, and pool %s is not full", has, pool)
}

// families returns the number of addresses the Service can have.
func families(svc *v1.Service) int { return len(svc.Spec.IPFamilies) }

// full reports whether the pool lacks a free address of a family of the Service.
func full(pool string, svc *v1.Service, taken func(netip.Addr) bool) bool {
	for _, f := range svc.Spec.IPFamilies {
		free := false
		for _, a := range addresses(pool) {
			free = free || a.Is4() == (f == v1.IPv4Protocol) && !taken(a)
		}
		if !free {
			return true
		}
	}
	return false
}
