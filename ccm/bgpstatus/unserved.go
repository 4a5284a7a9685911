package bgpstatus

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// unserved evaluates which addresses of BGPAdvertisements no node serves: from the speakers' reports about the sessions
// of their own nodes, the Nodes, and the endpoints of the Services.
type unserved struct {
	log *slog.Logger
	// ready reports whether the addresses of all Services are known; nil: not in use.
	ready func() bool
	// held returns the addresses of a Service, with their pools.
	held func(*v1.Service) []pools.Address
	// endpoints returns the EndpointSlices of a Service; known reports whether they are known.
	endpoints func(*v1.Service) []*discoveryv1.EndpointSlice
	known     func() bool
	// forwarding returns how the addresses of a Service are forwarded.
	forwarding func(*v1.Service) v1alpha1.Forwarding
	// publish takes the warning about each listed address.
	publish       func(map[netip.Addr]condition.Problem)
	ignoreExclude bool

	// since is when each address was first found unserved for its reason: the zero time if an earlier process reported
	// it.
	since  map[addressReason]time.Time
	logged map[string][]netip.Addr
	// notDirect are further warnings about addresses.
	notDirect notDirect
}

type addressReason struct {
	addr   netip.Addr
	reason string
}

// unservedAddress is an address that no node serves, with the indexes of the advertisements that cover it.
type unservedAddress struct {
	reason string
	ads    []int
}

// sharers are the Services on one address, with its pools.
type sharers struct {
	ipv4     bool
	services []*v1.Service
	pools    []string
}

// adReach is the reach of an advertisement.
type adReach struct {
	// covered is set if it selects a node with a speaker, eligible if one of them is not excluded.
	covered, eligible bool
	// sessions are the eligible nodes with a session that accepts the family, and whether one is established; excluded is
	// set if another node has one.
	sessions map[v1.IPFamily]map[string]bool
	excluded map[v1.IPFamily]bool
}

// Allocations is what unserved addresses depend on of the allocation of addresses.
type Allocations interface {
	// Standing returns the addresses that the Service shows rightfully.
	Standing(svc *v1.Service) []pools.Address
	// Adopted reports whether recorded addresses have been adopted: before that no Service holds anything.
	Adopted() bool
}

// Publish takes the problem of each listed address that no node serves.
type Publish func(map[netip.Addr]condition.Problem)

// Evaluation is what the evaluation of unserved addresses needs.
type Evaluation struct {
	Endpoints   *watch.EndpointSlices
	Allocations Allocations
	Publish     Publish
	// Forwarding returns how the addresses of a Service are forwarded.
	Forwarding func(*v1.Service) v1alpha1.Forwarding
	// IgnoreExclude includes nodes with the exclude label.
	IgnoreExclude bool
}

// update lists the unserved addresses in the status of the advertisements, and publishes, counts and logs them. It
// returns the delay until the next evaluation, 0 for none.
func (u *unserved) update(o *bgpObjects, ads []bgpAdvertisement, now time.Time) (recheck time.Duration) {
	first, before := u.since == nil, u.since
	u.since = map[addressReason]time.Time{}
	lists, all := make([]map[string][]netip.Addr, len(ads)), map[string][]netip.Addr{}
	found := u.evaluate(o, ads)
	for _, addr := range slices.SortedFunc(maps.Keys(found), netip.Addr.Compare) {
		is := found[addr]
		key := addressReason{addr, is.reason}
		at, was := before[key]
		inStatus := func(i int) bool { return reported(&o.ads.Items[i], is.reason, addr) }
		if !was && !(first && slices.ContainsFunc(is.ads, inStatus)) {
			at = now
		}
		u.since[key] = at
		if left := at.Add(watch.UnannouncedFor).Sub(now); left > 0 {
			if recheck == 0 || left < recheck {
				recheck = left
			}
			continue
		}
		all[is.reason] = append(all[is.reason], addr)
		for _, i := range is.ads {
			if lists[i] == nil {
				lists[i] = map[string][]netip.Addr{}
			}
			lists[i][is.reason] = append(lists[i][is.reason], addr)
		}
	}
	warnings := map[netip.Addr]condition.Problem{}
	for i := range ads {
		o.ads.Items[i].Status.Unserved = nil
		for _, reason := range slices.Sorted(maps.Keys(lists[i])) {
			status := v1alpha1.NewUnservedStatus(reason, unservedMessages[reason], lists[i][reason])
			o.ads.Items[i].Status.Unserved = append(o.ads.Items[i].Status.Unserved, status)
			if reason == reasonNoEndpoint {
				continue // its author knows
			}
			for _, addr := range lists[i][reason][:len(status.Addresses)] {
				warnings[addr] = condition.Problem{Reason: reason, Message: fmt.Sprintf("%s by BGP: %s", addr, status.Message)}
			}
		}
	}
	others, at := u.notDirect.update(o, now)
	if at > 0 && (recheck == 0 || at < recheck) {
		recheck = at
	}
	maps.Copy(others, warnings) // an address has one warning
	u.publish(others)
	measureUnserved(all)
	u.report(all)
	return recheck
}

// reported reports whether the status of an advertisement lists the address. The status lists the lowest ones, so a
// higher one counts if there are more than those.
func reported(ad *v1alpha1.BGPAdvertisement, reason string, addr netip.Addr) bool {
	return slices.ContainsFunc(ad.Status.Unserved, func(u v1alpha1.UnservedStatus) bool {
		listed := watch.Addresses(u.Addresses)
		more := int(u.Count) > len(listed) && (len(listed) == 0 || addr.Compare(slices.MaxFunc(listed, netip.Addr.Compare)) > 0)
		return u.Reason == reason && (more || slices.Contains(listed, addr))
	})
}

// report logs one line for each reason whose addresses changed.
func (u *unserved) report(all map[string][]netip.Addr) {
	for _, reason := range slices.Sorted(maps.Keys(unservedMessages)) {
		switch is := all[reason]; {
		case slices.Equal(is, u.logged[reason]):
		case len(is) == 0:
			u.log.Info("BGP addresses serving traffic again", "reason", reason, "count", len(u.logged[reason]))
		default:
			u.log.Warn("BGP addresses not serving traffic", "reason", reason, "message", unservedMessages[reason],
				"count", len(is), "addresses", is[:min(len(is), v1alpha1.MostUnserved)])
		}
	}
	u.logged = all
}

// evaluate returns the addresses that no node serves.
func (u *unserved) evaluate(o *bgpObjects, ads []bgpAdvertisement) map[netip.Addr]unservedAddress {
	if len(ads) == 0 {
		return nil
	}
	labels := map[string]map[string]string{}
	for i := range o.pools.Items {
		labels[o.pools.Items[i].Name] = o.pools.Items[i].Labels
	}
	of := map[netip.Addr]sharers{}
	for _, svc := range o.services {
		for _, h := range u.held(svc) {
			s := of[h.Addr]
			s.ipv4 = h.Addr.Is4()
			s.services = append(s.services, svc)
			if !slices.Contains(s.pools, h.Pool) {
				s.pools = append(s.pools, h.Pool)
			}
			of[h.Addr] = s
		}
	}
	reach := make([]adReach, len(ads))
	for i := range ads {
		reach[i] = u.reach(o, &ads[i])
	}
	out := map[netip.Addr]unservedAddress{}
	for addr, s := range of {
		var is unservedAddress
		var by []adReach
		for i := range ads {
			if ads[i].covers(s, labels) {
				is.ads, by = append(is.ads, i), append(by, reach[i])
			}
		}
		if is.reason = u.reason(addr, s, by); is.reason != "" {
			out[addr] = is
		}
	}
	return out
}

// covers reports whether the advertisement selects all Services on an address and its pools. One that lacks a community
// announces nothing.
func (a *bgpAdvertisement) covers(s sharers, labels map[string]map[string]string) bool {
	return !a.withheld && !slices.ContainsFunc(s.services, func(svc *v1.Service) bool { return !a.SelectsService(svc.Labels) }) &&
		!slices.ContainsFunc(s.pools, func(pool string) bool { return !a.SelectsPool(pool, labels[pool]) })
}

func (u *unserved) reach(o *bgpObjects, a *bgpAdvertisement) adReach {
	r := adReach{sessions: map[v1.IPFamily]map[string]bool{v1.IPv4Protocol: {}, v1.IPv6Protocol: {}}, excluded: map[v1.IPFamily]bool{}}
	nodes := make(map[string]*v1.Node, len(o.nodes))
	for _, n := range o.nodes {
		nodes[n.Name] = n
	}
	for i := range o.speakers.Items {
		s := &o.speakers.Items[i]
		n := nodes[s.Name]
		excluded := false
		switch {
		case n == nil && o.absent[s.Name] != "": // a node without a Node object announces while its speaker runs
			continue
		case n != nil && !a.SelectsNode(n):
			continue
		case n != nil:
			excluded = watch.ExclusionReason(n, u.ignoreExclude) != ""
			r.covered, r.eligible = true, r.eligible || !excluded
		}
		for family, nodes := range r.sessions {
			if configured, established := a.sessions(s, family); configured {
				if r.excluded[family] = r.excluded[family] || excluded; !excluded {
					nodes[s.Name] = established
				}
			}
		}
	}
	return r
}

// sessions reports whether the node has a session that receives the advertisement and accepts the family, and whether
// one is established. An established one without families counts for both: an earlier version of the speaker or of the
// CRD has none.
func (a *bgpAdvertisement) sessions(s *v1alpha1.SpeakerStatus, family v1.IPFamily) (configured, established bool) {
	if s.Status.BGP == nil {
		return false, false
	}
	for i := range s.Status.BGP.Sessions {
		session := &s.Status.BGP.Sessions[i]
		up := session.State == v1alpha1.SessionEstablished
		unknown := up && len(session.Families) == 0
		if a.advertisesTo(session.Peer) && (unknown || slices.Contains(session.Families, family)) {
			configured, established = true, established || unknown || up
		}
	}
	return configured, established
}

// reason returns why no node serves an address that advertisements of this reach cover, empty if one does.
func (u *unserved) reason(addr netip.Addr, s sharers, by []adReach) string {
	family := v1.IPv6Protocol
	if addr.Is4() {
		family = v1.IPv4Protocol
	}
	covered, eligible, configured, established, excluded := false, false, false, false, false
	for _, r := range by {
		covered, eligible, excluded = covered || r.covered, eligible || r.eligible, excluded || r.excluded[family]
		for _, up := range r.sessions[family] {
			configured, established = true, established || up
		}
	}
	announces := func(node string, down bool) bool {
		return slices.ContainsFunc(by, func(r adReach) bool { up, is := r.sessions[family][node]; return is && (up || down) })
	}
	switch {
	case !covered: // the condition Ready of the advertisement explains it
		return ""
	case !configured && !eligible && excluded:
		return reasonExcluded
	case !configured:
		return reasonNoPeer
	case !established:
		return reasonNoSession
	case !u.known():
		return ""
	}
	reason := u.endpointReason(s, func(node string) bool { return announces(node, true) })
	if reason == "" && u.endpointReason(s, func(node string) bool { return announces(node, false) }) != "" {
		return reasonNoSession // of a node with an endpoint
	}
	return reason
}

// endpointReason returns which endpoints an announced address lacks. For policy Local, a node needs an endpoint of each
// port of the Services that has any (docs/design/bgp.md), as the speakers decide it (speaker/view, Serves).
func (u *unserved) endpointReason(s sharers, announces func(node string) bool) string {
	open, anywhere := false, false
	var local []map[string]bool
	for _, svc := range s.services {
		ports := nodesOf(svc, u.endpoints(svc), s.ipv4)
		anywhere = anywhere || len(ports) > 0
		if svc.Spec.ExternalTrafficPolicy != v1.ServiceExternalTrafficPolicyLocal || u.forwarding(svc) != v1alpha1.ForwardingPod {
			open = true
		} else {
			local = append(local, ports...)
		}
	}
	if len(local) == 0 {
		switch {
		case !open:
			return reasonNoLocalEndpoint
		case !anywhere:
			return reasonNoEndpoint
		}
		return ""
	}
	for _, terminating := range []bool{false, true} {
		able := false
		for node := range local[0] {
			if slices.ContainsFunc(local, func(nodes map[string]bool) bool { ready, has := nodes[node]; return !ready && !(terminating && has) }) {
				continue
			}
			if able = true; announces(node) {
				return ""
			}
		}
		if able {
			break
		}
	}
	return reasonNoLocalEndpoint
}

// nodesOf returns the nodes of each port of a Service that has endpoints in a family: true for those with a ready one,
// false for those with a terminating one only, which still serves. An endpoint without a node counts as one of node "".
func nodesOf(svc *v1.Service, all []*discoveryv1.EndpointSlice, ipv4 bool) (ports []map[string]bool) {
	for _, port := range svc.Spec.Ports {
		nodes := map[string]bool{}
		for _, slice := range all {
			if (slice.AddressType == discoveryv1.AddressTypeIPv4) != ipv4 || !slices.ContainsFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool {
				return p.Name != nil && *p.Name == port.Name && p.Port != nil && ptr.Deref(p.Protocol, v1.ProtocolTCP) == cmp.Or(port.Protocol, v1.ProtocolTCP)
			}) {
				continue
			}
			for i := range slice.Endpoints {
				e := &slice.Endpoints[i]
				ready := ptr.Deref(e.Conditions.Ready, true)
				if ready || ptr.Deref(e.Conditions.Serving, true) && ptr.Deref(e.Conditions.Terminating, false) {
					node := ptr.Deref(e.NodeName, "")
					nodes[node] = nodes[node] || ready
				}
			}
		}
		if len(nodes) > 0 {
			ports = append(ports, nodes)
		}
	}
	return ports
}

// WatchEndpoints has the controller evaluate which addresses no node serves.
func (b *Controller) WatchEndpoints(e Evaluation) error {
	endpoints, of := e.Endpoints, e.Allocations
	handler := cache.FilteringResourceEventHandler{
		FilterFunc: func(o any) bool { return ofLoadBalancer(b.services, o) }, Handler: b.Handler(),
	}
	known, synced, err := endpoints.Watch(handler)
	if err != nil {
		return err
	}
	b.Synced = append(b.Synced, synced, of.Adopted)
	b.unserved = unserved{
		log: b.log, ready: of.Adopted, held: of.Standing, known: known, publish: e.Publish, ignoreExclude: e.IgnoreExclude,
		forwarding: e.Forwarding,
		endpoints: func(svc *v1.Service) []*discoveryv1.EndpointSlice {
			return endpoints.Of(pools.ServiceKey{Namespace: svc.Namespace, Name: svc.Name})
		},
	}
	return nil
}

// ofLoadBalancer reports whether an EndpointSlice is one of a Service of type LoadBalancer.
func ofLoadBalancer(services corelisters.ServiceLister, o any) bool {
	if tomb, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = tomb.Obj
	}
	slice, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return false
	}
	svc, err := services.Services(slice.Namespace).Get(slice.Labels[discoveryv1.LabelServiceName])
	return err == nil && svc.Spec.Type == v1.ServiceTypeLoadBalancer
}
