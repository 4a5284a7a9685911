package forwarding

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

// ListKey identifies one list of real servers of a Service. All virtual servers of a port with the same family and
// policy share one list.
type ListKey struct {
	// Port is the name of the port of the Service.
	Port     string
	Protocol ipvs.Protocol
	IPv4     bool
	// Local is set for endpoints of this node only, Slots for those that get slots.
	Local, Slots bool
}

// list is a list of real servers that are endpoints.
type list struct {
	servers map[netip.AddrPort]ipvs.RealServer
	// chosen is the number of servers that take new connections.
	chosen int
	// failedOpen is set if they were chosen as if every node was reachable, because otherwise none would be.
	failedOpen bool
	// since is when an endpoint was first seen as terminating, or as no longer chosen.
	since map[netip.AddrPort]time.Time
}

// candidates are the endpoints of a port in one family.
type candidates = map[netip.AddrPort]*view.Endpoint

// pod is a real server that takes new connections; drained is one that only keeps its connections.
var (
	pod     = ipvs.RealServer{Weight: 1, Forward: ipvs.Masquerade}
	drained = ipvs.RealServer{Weight: 0, Forward: ipvs.Masquerade}
)

// minus returns the endpoints that are not in those, and the same map if those is empty.
func minus[T any](endpoints map[netip.AddrPort]*view.Endpoint, those map[netip.AddrPort]T) map[netip.AddrPort]*view.Endpoint {
	if len(those) == 0 {
		return endpoints
	}
	out := make(map[netip.AddrPort]*view.Endpoint, len(endpoints))
	for at, e := range endpoints {
		if _, is := those[at]; !is {
			out[at] = e
		}
	}
	return out
}

// candidates returns the endpoints of a port in one family. An address and port in several slices counts once; the
// entry that is not terminating has precedence.
func (w *planning) candidates(port view.Port, v4 bool) map[netip.AddrPort]*view.Endpoint {
	key := ListKey{Port: port.Name, Protocol: port.Protocol, IPv4: v4}
	if done, ok := w.byPort[key]; ok {
		return done
	}
	out := map[netip.AddrPort]*view.Endpoint{}
	w.byPort[key] = out
	for _, slice := range w.slices {
		number, ok := numberOf(slice, port)
		if !ok {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.Addr.Is4() != v4 || !e.Addr.IsValid() || e.Addr.IsUnspecified() {
				continue
			}
			at := netip.AddrPortFrom(e.Addr, number)
			if have, twice := out[at]; !twice || compareEndpoints(e, have) < 0 {
				out[at] = e
			}
		}
	}
	return out
}

// numberOf returns the slice's number of a Service port, matched by name and protocol.
func numberOf(s view.Slice, port view.Port) (uint16, bool) {
	for _, p := range s.Ports {
		if p.Name == port.Name && p.Protocol == port.Protocol && p.Protocol != 0 && p.Port != 0 {
			return p.Port, true
		}
	}
	return 0, false
}

// compareEndpoints orders the entries of several slices for one endpoint by precedence. Only equal ones compare as
// equal.
func compareEndpoints(e, f *view.Endpoint) int {
	return cmp.Or(
		falseFirst(e.Terminating, f.Terminating), falseFirst(!e.Ready, !f.Ready), falseFirst(!e.Serving, !f.Serving),
		cmp.Compare(e.Node, f.Node), slices.Compare(e.ForNodes, f.ForNodes), slices.Compare(e.ForZones, f.ForZones),
	)
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// offering returns the slices with one of the ports: the endpoints of the others take no connections.
func offering(all map[string]view.Slice, ports []view.Port) map[string]view.Slice {
	out := make(map[string]view.Slice, len(all))
	for name, slice := range all {
		if slices.ContainsFunc(ports, func(p view.Port) bool { _, ok := numberOf(slice, p); return ok }) {
			out[name] = slice
		}
	}
	return out
}

// recordEndpoints records the endpoint addresses and their nodes.
func (w *planning) recordEndpoints() {
	for _, slice := range w.slices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			w.endpoints[e.Addr] = w.endpoints[e.Addr] || w.isLocal(e)
			if e.Node != "" && !w.isLocal(e) {
				w.out.uses[e.Node] = struct{}{}
			}
		}
	}
}

// recordNodes records the nodes with endpoints of each port, for announcements and the healthCheckNodePort. Nodes that
// are unreachable from here are included, because each node plans its own announcements.
func (w *planning) recordNodes() {
	if !slices.ContainsFunc(w.out.Addresses, func(a view.Address) bool { return a.Kind != view.ClusterIP }) && !w.servesHealth() {
		return
	}
	for _, port := range w.svc.Ports {
		w.out.IPv4 = w.addNodes(w.out.IPv4, port, true)
		w.out.IPv6 = w.addNodes(w.out.IPv6, port, false)
	}
}

// addNodes adds a port that has endpoints in a family, unless another one has the same nodes.
func (w *planning) addNodes(to []view.PortNodes, port view.Port, v4 bool) []view.PortNodes {
	p := view.PortNodes{Port: port.Name}
	for _, e := range w.candidates(port, v4) {
		switch {
		case e.Ready:
			add(&p.Ready, e.Node)
		case e.Usable():
			add(&p.Usable, e.Node)
		}
	}
	if len(p.Ready)+len(p.Usable) == 0 {
		return to
	}
	p.Arriving = w.arriving(port, v4)
	if slices.ContainsFunc(to, p.Equal) {
		return to
	}
	return append(to, p)
}

// add adds to a set, which may be nil.
func add(set *map[string]struct{}, name string) {
	if *set == nil {
		*set = map[string]struct{}{}
	}
	(*set)[name] = struct{}{}
}

// countHere returns the number of addresses of ready endpoints on this node in a family, over all ports, and 0 if
// another node serves a port that this one does not.
func (w *planning) countHere(v4 bool) int {
	if ports, _ := w.out.Ports(v4); !view.Serves(ports, w.name) {
		return 0
	}
	addrs := map[netip.Addr]struct{}{}
	for key, from := range w.byPort {
		for at, e := range from {
			if key.IPv4 == v4 && e.Ready && w.isLocal(e) {
				addrs[at.Addr()] = struct{}{}
			}
		}
	}
	return len(addrs)
}

// choose returns the candidates of a list that take new connections. Endpoints on unreachable nodes are excluded first,
// before conditions, hints and checks. So each fallback takes effect at once: endpoints of another zone, or terminating
// ones that still serve. The list fails open: if no remaining endpoint is ready, or terminating and serving, it chooses
// as if every node was reachable. It does not fail open if that would choose nothing either. A new endpoint that is
// ready counts, checked or not. Each list fails open independently: one port of a Service may while another does not.
func (w *planning) choose(key ListKey, from candidates) (chosen candidates, failedOpen bool) {
	left := w.reachable(from)
	if chosen = w.chooseOf(key, from, left); len(chosen) > 0 || len(left) == len(from) {
		return chosen, false
	}
	chosen = w.chooseOf(key, from, from)
	return chosen, len(chosen) > 0
}

// chooseOf returns the candidates among some that take new connections: the ready ones that the topology hints allow,
// and if there is none, the terminating ones that still serve. A local list has only endpoints of
// this node. It and the list of slots ignore hints. While all of these are new and refuse connections, other ready ones
// replace them, or else terminating ones. It returns none only if none is ready or serves.
func (w *planning) chooseOf(key ListKey, from, some candidates) candidates {
	ready, usable := candidates{}, candidates{}
	for at, e := range some {
		switch {
		case key.Local && !w.isLocal(e):
		case e.Ready:
			ready[at] = e
		case e.Usable():
			usable[at] = e
		}
	}
	fresh := w.newcomers(key, from, ready)
	if len(ready) == 0 {
		return usable
	}
	known := minus(ready, fresh)
	if !key.Local && !key.Slots {
		w.hinted(ready)
	}
	if len(known)+len(usable) == 0 {
		return ready // no alternative: a check would change nothing
	}
	for at := range ready {
		if since, is := fresh[at]; is {
			w.check(at, since)
		}
	}
	w.age(fresh)
	for _, chosen := range []map[netip.AddrPort]*view.Endpoint{minus(ready, fresh), known} {
		if len(chosen) > 0 {
			return chosen
		}
	}
	return usable
}

// hinted keeps the ready endpoints with a hint for this node, or else for its zone. A kind of hint counts only if every
// endpoint has one and at least one matches.
func (w *planning) hinted(ready map[netip.AddrPort]*view.Endpoint) {
	zone := w.node.Zone()
	for _, hint := range []func(*view.Endpoint) (given, here bool){
		func(e *view.Endpoint) (bool, bool) {
			return len(e.ForNodes) > 0, slices.Contains(e.ForNodes, w.name)
		},
		func(e *view.Endpoint) (bool, bool) {
			return len(e.ForZones) > 0, zone != "" && slices.Contains(e.ForZones, zone)
		},
	} {
		all, any := true, false
		for _, e := range ready {
			given, here := hint(e)
			all, any = all && given, any || here
		}
		if !all || !any {
			continue
		}
		for at, e := range ready {
			if _, here := hint(e); !here {
				delete(ready, at)
			}
		}
		return
	}
}

// NewFor is how long an endpoint counts as new after it became ready, and so the maximum duration of its check.
const NewFor = 5 * time.Second

// newcomers returns the new endpoints among the ready ones of a list, and when each became ready. A Pod without a
// readinessProbe is Ready before its program listens and briefly refuses connections; clients of kube-proxy therefore
// see errors in rolling updates. An endpoint that already takes connections, because there was no other, is not new to
// its list.
func (w *planning) newcomers(key ListKey, from, ready map[netip.AddrPort]*view.Endpoint) map[netip.AddrPort]time.Time {
	before := w.before[key].servers
	var fresh map[netip.AddrPort]time.Time
	for at, since := range w.readySince(key, from) {
		if _, of := ready[at]; !of || since.IsZero() || before[at].Weight > 0 {
			continue
		}
		if fresh == nil {
			fresh = map[netip.AddrPort]time.Time{}
		}
		fresh[at] = since
	}
	return fresh
}

// readySince returns when the ready candidates became ready. The zero time means not new: the check has a result, the
// time is over, or it was ready in the first plan of the Service, since when is unknown. Only TCP endpoints can be new,
// because only TCP refuses connections.
func (w *planning) readySince(key ListKey, from map[netip.AddrPort]*view.Endpoint) map[netip.AddrPort]time.Time {
	if !w.options.EndpointChecks || key.Protocol != ipvs.TCP {
		return nil
	}
	key.Local, key.Slots = false, false
	if done, ok := w.out.since[key]; ok {
		return done
	}
	before, planned := w.since[key]
	out := map[netip.AddrPort]time.Time{}
	for at, e := range from {
		if !e.Ready {
			continue
		}
		since, was := before[at]
		if planned && !was {
			since = w.now
		}
		if w.answered(at) || !w.now.Before(since.Add(NewFor)) {
			since = time.Time{}
		}
		out[at] = since
	}
	w.out.since[key] = out
	return out
}

// check requests the check of a new endpoint. Its result counts from the next plan on, so that all lists of one plan
// use the same results.
func (w *planning) check(at netip.AddrPort, since time.Time) {
	c := endpointCheck(at)
	w.checks[c] = struct{}{}
	if _, found := w.view.Checks[c]; found {
		w.wake(w.now)
	}
	w.wake(since.Add(NewFor))
}

// answered reports whether a check requested by the last plan of the Service has a result.
func (w *planning) answered(at netip.AddrPort) bool {
	c := endpointCheck(at)
	_, found := w.view.Checks[c]
	if !found {
		return false
	}
	_, asked := slices.BinarySearchFunc(w.asked, c, view.Check.Compare)
	return asked
}

// age has the Service planned again when the first of these endpoints is no longer new.
func (w *planning) age(since map[netip.AddrPort]time.Time) {
	for _, at := range since {
		if !at.IsZero() {
			w.wake(at.Add(NewFor))
		}
	}
}

func endpointCheck(at netip.AddrPort) view.Check { return view.Check{Addr: at.Addr(), Port: at.Port()} }

// list returns the real servers of a port.
func (w *planning) list(port view.Port, v4, local bool) list {
	key := ListKey{Port: port.Name, Protocol: port.Protocol, IPv4: v4, Local: local}
	if done, ok := w.out.lists[key]; ok {
		return done
	}
	from := w.candidates(port, v4)
	chosen, failedOpen := w.choose(key, from)
	out := list{
		servers: make(map[netip.AddrPort]ipvs.RealServer, len(chosen)), chosen: len(chosen), failedOpen: failedOpen,
	}
	for at := range chosen {
		out.servers[at] = pod
	}
	if port.Protocol == ipvs.TCP {
		w.drain(&out, w.before[key], from, local)
	}
	if !local {
		w.countUnreachable(out, from)
	}
	w.out.lists[key] = out
	return out
}

// drain keeps listed TCP endpoints that are not chosen, with weight 0: terminating ones, so that a new process finds
// them, too; previously chosen ones that are not ready any more, that the hints assign elsewhere, or whose node is
// unreachable; and in the first plan of a Service those that an earlier process may have left out. Their connections
// continue for at most Options.DrainLimit, and at most Options.ResetAfter after their node became unreachable. An
// endpoint that leaves its slice is removed at once. UDP and SCTP do not drain.
func (w *planning) drain(out *list, before list, from map[netip.AddrPort]*view.Endpoint, local bool) {
	for at, e := range from {
		if _, chosen := out.servers[at]; chosen || local && !w.isLocal(e) {
			continue
		}
		since, drains := before.since[at]
		if _, had := before.servers[at]; !drains && !had && !e.Terminating && !w.wasLeftOut(e, out.failedOpen) {
			continue
		}
		if !drains {
			since = w.now
		}
		if out.since == nil {
			out.since = map[netip.AddrPort]time.Time{}
		}
		out.since[at] = since // kept after the limit, or it would start again
		if until := w.drainsUntil(e, since, out.failedOpen); !until.IsZero() {
			if !w.now.Before(until) {
				continue
			}
			w.wake(until)
		}
		out.servers[at] = drained
	}
}

// wasLeftOut reports whether an earlier process may have left out an endpoint because its node was unreachable.
func (w *planning) wasLeftOut(e *view.Endpoint, failedOpen bool) bool {
	_, unreachable := w.unreachable(e)
	return w.before == nil && unreachable && e.Ready && !failedOpen
}

// drainsUntil returns when an endpoint that drains since then is removed, zero for never. In a list that failed open,
// unreachable nodes count as reachable.
func (w *planning) drainsUntil(e *view.Endpoint, since time.Time, failedOpen bool) (until time.Time) {
	if w.options.DrainLimit > 0 {
		until = since.Add(w.options.DrainLimit)
	}
	if since, is := w.unreachable(e); is && !failedOpen {
		until = incremental.Earlier(until, w.options.resetAt(since))
	}
	return until
}

// unreachable reports whether an endpoint is on an unreachable node, and since when. An endpoint on this node, or
// without a node, never is.
func (w *planning) unreachable(e *view.Endpoint) (since time.Time, is bool) {
	if e.Node == "" || w.isLocal(e) {
		return time.Time{}, false
	}
	since, is = w.view.Unreachable[e.Node]
	return since, is
}

// reachable returns the candidates that are not on an unreachable node, and the same map if none is.
func (w *planning) reachable(from candidates) candidates {
	if len(w.view.Unreachable) == 0 {
		return from
	}
	out := map[netip.AddrPort]struct{}{}
	for at, e := range from {
		if _, is := w.unreachable(e); is {
			out[at] = struct{}{}
		}
	}
	return minus(from, out)
}

// countUnreachable counts the endpoints of a list on unreachable nodes.
func (w *planning) countUnreachable(l list, from candidates) {
	if len(w.view.Unreachable) == 0 {
		return
	}
	anyReady := false
	for _, e := range from {
		anyReady = anyReady || e.Ready
	}
	for at, e := range from {
		if _, is := w.unreachable(e); !is || !e.Ready && (anyReady || !e.Usable()) {
			continue
		}
		if w.out.unreachable == nil {
			w.out.unreachable = map[string]view.UnreachableEndpoints{}
		}
		n := w.out.unreachable[e.Node]
		switch {
		case !l.failedOpen:
			n.LeftOut++
		case l.servers[at].Weight > 0:
			n.FailedOpen++
		}
		w.out.unreachable[e.Node] = n
	}
}

// stays reports whether a node that is unreachable since then is still a real server of weight 0, and has the Service
// planned again when that ends. Only TCP has connections to keep.
func (w *planning) stays(protocol ipvs.Protocol, since time.Time) bool {
	until := w.options.resetAt(since)
	if protocol != ipvs.TCP || !until.IsZero() && !w.now.Before(until) {
		return false
	}
	w.wake(until)
	return true
}

// touchedUnreachable adds the Services whose plan may differ because a node became unreachable or reachable: those with
// an endpoint there, and those that forward through it.
func (p *Planner) touchedUnreachable(touched view.Touched, services map[pools.ServiceKey]struct{}) {
	for node := range touched.Unreachable {
		for key := range p.usersOf[node] {
			services[key] = struct{}{}
		}
	}
}

// indexNodes records which nodes a Service uses now, and its counts on unreachable ones.
func (p *Planner) indexNodes(key pools.ServiceKey, before, after servicePlan) {
	for node := range before.uses {
		if _, still := after.uses[node]; !still {
			p.usersOf.Remove(node, key)
		}
	}
	for node := range after.uses {
		if _, was := before.uses[node]; !was {
			p.usersOf.Add(node, key)
		}
	}
	for node, n := range before.unreachable {
		p.countMore(node, view.UnreachableEndpoints{LeftOut: -n.LeftOut, FailedOpen: -n.FailedOpen})
	}
	for node, n := range after.unreachable {
		p.countMore(node, n)
	}
}

func (p *Planner) countMore(node string, n view.UnreachableEndpoints) {
	sum := p.forwarding.Unreachable[node]
	sum.LeftOut, sum.FailedOpen = sum.LeftOut+n.LeftOut, sum.FailedOpen+n.FailedOpen
	incremental.Set(p.forwarding.Unreachable, node, sum, sum != view.UnreachableEndpoints{})
	p.changed.Unreachable[node] = struct{}{}
}
