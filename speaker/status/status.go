// Package status reports the outcome of each reconcile: the status of VirtualIPs that this node reports, the status of
// the node, Services and addresses by reason, and what the log and the metrics contain about them.
//
// A Status keeps what was published, so that only differences are published and logged. For each reconcile it is given
// the plan and what the other parts observed (Inputs).
package status

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// Reporter publishes the status of VirtualIPs. Report takes the full set each time, keeps it, and does not block.
type Reporter interface {
	Report(map[string]report.VIPStatus)
}

// NodeReporter publishes the status of this node. ReportNode keeps its argument and does not block.
type NodeReporter interface {
	ReportNode(report.NodeStatus)
}

// Config of a Status.
type Config struct {
	// Node is the name of this node.
	Node string
	Log  *slog.Logger
	// Line logs what may concern many objects for one reason, given in attribute "reason", in one line for all.
	Line     func(level slog.Level, message string, attrs ...any)
	Metrics  *Metrics
	Reporter Reporter
	// Nodes may be nil: then the status of the node is not published.
	Nodes NodeReporter
}

// Inputs of one report. Its maps are not modified and not kept.
type Inputs struct {
	Desired *plan.Desired
	View    *view.View
	// Published returns the announcement of an address, which may still be probed. Held are the announced addresses
	// with their interfaces.
	Published func(netip.Addr) (ownership.Announcement, bool)
	Held      map[netip.Addr][]string
	// Tunnels are those of direct forwarding, nil without a driver.
	Tunnels *view.Tunnels
	// ReturnRoutes are those of the pools. The slice is immutable.
	ReturnRoutes []view.PoolReturn
	// Differ are the nodes whose slots of direct forwarding differ for long, sorted. The slice is immutable.
	Differ []string
	// Conflicts are the addresses for which another host answers.
	Conflicts map[netip.Addr]view.Conflict
	// Claims are the published claims of this node.
	Claims map[string]view.Claim
	Reach  view.Reachability
	// BGP is set if there is a BGP daemon. Sessions are its sessions.
	BGP      bool
	Sessions map[string]routes.Session
	// Err is why the node does not match the plan.
	Err error
}

// Status is what was reported. One goroutine owns it.
type Status struct {
	cfg Config
	in  Inputs

	statuses map[string]report.VIPStatus
	moved    map[string]move
	// rivals are, by VirtualIP, the unreachable nodes that seem to announce it as well.
	rivals   map[string]string
	vips     *tally[string]
	services *tally[pools.ServiceKey]
	// refused are the refused addresses of Services, as last reported.
	refused  map[pools.ServiceKey]map[netip.Addr]pools.Refusal
	refusals *tally[refusedAddress]
	// fallbacks are the Services that are not forwarded directly although they should be, as last logged.
	fallbacks map[pools.ServiceKey]view.Fallback
	// routed counts the addresses of BGPAdvertisements by outcome. up are the peers with an established session. prefs
	// are as last logged.
	routed   *tally[netip.Addr]
	up       map[string]struct{}
	prefs    map[routes.LocalPrefs]int
	unserved unserved
	// notDirect are the addresses that only BGP announces and that are not forwarded directly, as of the last report.
	notDirect map[view.Reason]report.NotDirect
}

// New returns a Status that has reported nothing yet.
func New(cfg Config) *Status {
	return &Status{
		cfg:       cfg,
		statuses:  map[string]report.VIPStatus{},
		moved:     map[string]move{},
		rivals:    map[string]string{},
		vips:      newTally[string](cfg.Metrics.vips),
		services:  newTally[pools.ServiceKey](cfg.Metrics.services),
		refused:   map[pools.ServiceKey]map[netip.Addr]pools.Refusal{},
		fallbacks: map[pools.ServiceKey]view.Fallback{},
		refusals:  newTally[refusedAddress](cfg.Metrics.refused),
		routed:    newTally[netip.Addr](cfg.Metrics.routed),
		unserved:  unserved{of: map[netip.Addr]view.Reason{}},
	}
}

// Clear stops the reports of this node about VirtualIPs: other nodes own them and report them.
func (s *Status) Clear() {
	clear(s.statuses)
	s.cfg.Reporter.Report(map[string]report.VIPStatus{})
}

// Changed names what a report covers.
type Changed struct {
	Services map[pools.ServiceKey]struct{}
	VIPs     map[string]struct{}
	Addrs    map[netip.Addr]struct{}
}

// Report records the outcome for what changed. It publishes the status of the node and, if one changed, the statuses of
// the VirtualIPs that this node reports.
func (s *Status) Report(in Inputs, of Changed) {
	s.in = in
	for _, service := range slices.SortedFunc(maps.Keys(of.Services), pools.ServiceKey.Compare) {
		reason, exists := in.Desired.Services[service]
		before, was := s.services.of[service]
		s.services.set(service, reason, exists)
		if exists && reason != before && (was || reason != view.Programmed) {
			s.cfg.Line(slog.LevelInfo, "Service outcome", "service", service, "reason", reason)
		}
		s.reportRefused(service)
		s.reportFallback(service)
	}
	changed := false
	for _, name := range slices.Sorted(maps.Keys(of.VIPs)) {
		changed = s.reportVIP(name) || changed
	}
	s.cfg.Metrics.announced.Set(float64(len(in.Held)))
	s.reportRoutes(of.Addrs)
	if len(of.Services)+len(of.Addrs)+len(of.VIPs) > 0 {
		s.notDirect = s.listNotDirect()
	}
	s.ReportNode(in)
	if changed {
		s.cfg.Reporter.Report(maps.Clone(s.statuses))
	}
}

// reportVIP records the outcome for a VirtualIP, and reports whether its published status changed.
func (s *Status) reportVIP(name string) (changed bool) {
	dec, exists := s.in.Desired.VIPs[name]
	status := s.status(dec)
	s.addFallback(&status, s.in.View.VIPs[name])
	s.recordMove(name, dec, exists)
	status.Took = s.moved[name].took
	s.reportSplit(name, dec.Rival)
	if dec.Reason == view.NoInterface && s.vips.of[name] != view.NoInterface {
		for _, addr := range dec.Addresses {
			s.cfg.Line(slog.LevelWarn, "interfaces missing", "address", addr, "missing", dec.Missing, "up", dec.Up, "reason", dec.Reason)
		}
	}
	s.vips.set(name, status.Reason, exists)
	before, was := s.statuses[name]
	is := exists && dec.Reporter
	if is == was && (!is || equal(before, status)) {
		return false
	}
	if is {
		s.statuses[name] = status
	} else {
		delete(s.statuses, name)
	}
	return true
}

// ReportNode publishes the status of this node. The receiver writes it if it differs.
func (s *Status) ReportNode(in Inputs) {
	s.in = in
	s.countSessions()
	if s.cfg.Nodes == nil {
		return
	}
	status := report.NodeStatus{Healthy: true, Links: map[string]view.Link{}, Members: map[string]report.MemberState{}}
	named := s.namedInterfaces()
	for name, link := range s.in.View.Links {
		if len(link.Subnets) > 0 || has(named, name) { // exclude Pod interfaces, which change all the time
			status.Links[name] = link
		}
	}
	status.Gateways, status.Tunnels, status.SlotsDiffer = s.in.Desired.Gateways, s.in.Tunnels, s.in.Differ
	status.ReturnRoutes, status.Dead = s.in.ReturnRoutes, s.in.View.Members.Dead
	status.Reach, status.Unreachable = s.in.Reach, maps.Clone(s.in.Desired.Unreachable)
	if err := in.Err; err != nil {
		status.Healthy, status.Reason, status.Message = false, view.DataPlaneNotReady, err.Error()
	}
	for _, c := range in.Claims {
		if c.Announces() {
			status.VirtualIPs++
		}
	}
	for name, m := range s.in.View.Members.Peers {
		status.Members[name] = report.StateOf(m, s.in.View.Members.Segments)
	}
	if in.BGP {
		status.Sessions, status.LocalPrefs, status.Unserved = maps.Clone(s.in.Sessions), s.prefs, s.unserved.list()
		status.NotDirect = s.notDirect
		status.Families = make(map[string]report.SessionFamilies, len(status.Sessions))
		for name, peer := range s.in.Desired.BGP.Peers {
			status.Families[name] = report.SessionFamilies{IPv4: peer.IPv4, IPv6: peer.IPv6}
		}
	}
	s.cfg.Nodes.ReportNode(status)
}

// namedInterfaces returns the interfaces that addresses or L2Advertisements need.
func (s *Status) namedInterfaces() map[string]struct{} {
	out := map[string]struct{}{}
	maps.Copy(out, s.in.Desired.Segments)
	for _, ad := range s.in.View.Advertisements {
		for _, name := range ad.Interfaces {
			out[name] = struct{}{}
		}
	}
	return out
}

func has[K comparable, V any](m map[K]V, key K) bool { _, ok := m[key]; return ok }

// unserved are the addresses that this node could not program, with the reason. published is the last report, nil if
// that is outdated. The errors themselves are logged elsewhere.
type unserved struct {
	of        map[netip.Addr]view.Reason
	published map[view.Reason][]netip.Addr
}

// record records the outcome for an address.
func (u *unserved) record(addr netip.Addr, routed routes.Routed, covered bool) {
	before, was := u.of[addr]
	failed := covered && routed.Failed()
	if was == failed && (!was || before == routed.Reason) {
		return
	}
	u.published = nil
	if failed {
		u.of[addr] = routed.Reason
	} else {
		delete(u.of, addr)
	}
}

// list returns the addresses by reason, sorted.
func (u *unserved) list() map[view.Reason][]netip.Addr {
	if u.published == nil {
		u.published = map[view.Reason][]netip.Addr{}
		for addr, reason := range u.of {
			u.published[reason] = append(u.published[reason], addr)
		}
		for reason := range u.published {
			slices.SortFunc(u.published[reason], netip.Addr.Compare)
		}
	}
	return u.published
}

// refusedAddress is an address of a Service that no Service may have.
type refusedAddress struct {
	service pools.ServiceKey
	addr    netip.Addr
}

// reportRefused logs and counts the addresses of a Service that are newly refused or refused by another rule. A Service
// seldom has one.
func (s *Status) reportRefused(service pools.ServiceKey) {
	before, now := s.refused[service], s.in.Desired.Refused[service]
	if len(before)+len(now) == 0 {
		return
	}
	for addr := range before {
		if _, still := now[addr]; !still {
			s.refusals.set(refusedAddress{service, addr}, "", false)
		}
	}
	for _, addr := range slices.SortedFunc(maps.Keys(now), netip.Addr.Compare) {
		why := now[addr]
		s.refusals.set(refusedAddress{service, addr}, view.Reason(why.Rule), true)
		if before[addr] != why {
			s.cfg.Line(slog.LevelWarn, "address refused for every Service", "service", service, "address", addr, "reason", why.Rule,
				"message", addr.String()+" "+why.String())
		}
	}
	if len(now) == 0 {
		delete(s.refused, service)
	} else {
		s.refused[service] = now
	}
}
