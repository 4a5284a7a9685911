package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/advertise"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/status"
	"github.com/ironlb/ironlb/speaker/view"
)

// reconcile plans, compares and applies the changes that are due, and observes the node if that is due. An error does
// not stop the remaining work.
func (s *Speaker) reconcile(ctx context.Context) error {
	start := time.Now()
	s.began = start
	defer s.lines.Flush()
	todo := newWork()
	s.dataplane.ProbeDirect(ctx, start)
	if ok := s.plan(todo, start); !ok {
		s.audited = start
		return errNotSynced
	}
	s.compareSlots(start)
	due := s.takeDue(todo, start)
	if !due.any && todo.empty() {
		if s.bgp.ObserveSessions(start) {
			s.status.ReportNode(s.outcome())
		}
		return s.currentErrors()
	}
	s.withdraw(todo)
	s.announceReady(todo)
	if due.observe {
		s.observe(ctx, todo, due.thorough)
	}
	s.program(ctx, todo)
	s.evaluateReadiness(todo)
	s.announceAll(todo)
	s.release(start)
	s.report(todo)
	s.schedule(due.retry, time.Since(start))
	if s.cfg.Progress != nil && s.dataplane.Complete() {
		s.cfg.Progress.Applied(start) // later changes may have come too late for this plan
	}
	return s.currentErrors()
}

// due is what a reconcile does besides the changes of the plan.
type due struct {
	// any is set if there is anything to do, retry if failed work is retried.
	any, retry bool
	// observe is set to observe the node, thorough to list everything.
	observe, thorough bool
}

// takeDue adds pending and failed work that is due to the work.
func (s *Speaker) takeDue(todo *work, now time.Time) (d due) {
	s.updateParts()
	s.dataplane.AddPending(todo.Work, now)
	families := s.dataplane.UpdateFamilies(todo.Work)
	d.retry = !now.Before(s.retries.at) && !s.settled()
	d.thorough = s.cfg.Trigger.resync.Swap(false)
	known := s.dataplane.Known()
	if d.retry || !known && d.thorough {
		s.takeFailed(todo)
	}
	d.observe = d.thorough || d.retry || families || !now.Before(s.audited.Add(auditEvery))
	if !known && !d.retry && !d.thorough {
		d.observe = false // a trigger does not hasten the retry of a failed observation
	}
	d.any = d.observe || s.mustPublish || s.bgp.MayBegin(known) || !maps.Equal(s.conflicts, s.cfg.Announcer.Conflicts())
	return d
}

// withdraw stops what is no longer to be announced. It precedes every other change.
func (s *Speaker) withdraw(todo *work) {
	s.bgp.Withdraw(todo.bgp)
	s.l2.Withdraw(todo.Addrs, todo.vips)
}

// announceReady publishes and announces what the node forwards before the work is done: a failover does not wait for
// unrelated work.
func (s *Speaker) announceReady(todo *work) {
	ready := s.dataplane.Ready(todo.Work)
	s.announce(todo, func(vip string) bool {
		return !slices.ContainsFunc(s.desired.VIPs[vip].Addresses, func(a netip.Addr) bool { return !ready(a) })
	})
	s.bgp.AnnounceReady(todo.bgp, ready)
}

// announceAll publishes and announces the rest, after the possible work is programmed and failed parts are out of the
// plan.
func (s *Speaker) announceAll(todo *work) {
	s.announce(todo, func(string) bool { return true })
	s.bgp.AnnounceAll(todo.bgp, s.dataplane.Known())
	s.bgp.PruneBlackholes()
}

// announce publishes the claims for the VirtualIPs that may allows, and then announces their addresses.
func (s *Speaker) announce(todo *work, may func(vip string) bool) {
	s.publishClaims(todo, may)
	s.l2.Announce(todo.Addrs, todo.vips, todo.announce, may)
	todo.announce = false
}

// program applies the work to the node.
func (s *Speaker) program(ctx context.Context, todo *work) {
	before := s.changes
	s.dataplane.Program(ctx, todo.Work)
	began := s.measureChanges()
	if !s.dataplane.Known() {
		s.retries.work.add(todo) // to be reported once the node is observed
		return
	}
	reason, _ := s.dataplane.NotDirect()
	if only, _ := s.dataplane.DirectIPv4Only(); reason != s.noTunnel || only != s.view.DirectIPv4Only {
		s.cfg.Trigger.Now() // Apply found it: plan without tunnels
	}
	s.measureReach()
	if s.changes > before {
		s.cfg.Metrics.program.Observe(time.Since(began).Seconds())
	}
	s.cfg.Metrics.table(s.dataplane.Size())
	if t := s.dataplane.Tunnels(); t != nil {
		s.cfg.Metrics.direct(t.VirtualServers, len(s.desired.Fallbacks))
	}
}

// plan makes a new plan if something changed or a timer expired, and reports whether a plan exists.
func (s *Speaker) plan(todo *work, now time.Time) bool {
	v, touched, ok := s.cfg.Source.Observe()
	if !ok {
		return false
	}
	s.view = v
	s.observeMembers(v, &touched)
	wake := s.planner.Wake()
	s.reason = view.Restored
	if s.desired != nil && !touched.Any() && !s.mustPublish && (wake.IsZero() || wake.After(now)) {
		return true
	}
	s.reason = view.Planned
	touched.All = touched.All || s.desired == nil
	var changed *plan.Changed
	s.desired, changed = s.planner.Plan(v, touched, now)
	todo.planned(changed)
	if !todo.Work.Empty() {
		s.unprogrammed = append(s.unprogrammed, plannedChange{began: now, since: touched.Since, work: todo.Work.Forwarding()})
	}
	if changed.DirectNodes || touched.Host || len(touched.Links) > 0 {
		s.dataplane.NetworkChanged()
	}
	if s.cfg.Traffic != nil {
		s.cfg.Traffic.Update(s.desired, changed.Keys)
	}
	s.setSegments(touched, changed)
	if s.cfg.Progress != nil {
		node, exists := v.Nodes[s.cfg.NodeName]
		s.cfg.Progress.SetNode(exists && !node.BeingDeleted)
	}
	return true
}

// report publishes the outcome.
func (s *Speaker) report(todo *work) {
	s.bgp.ObserveSessions(time.Now())
	s.reportReach()
	s.status.Report(s.outcome(), status.Changed{Services: todo.Services, VIPs: todo.vips, Addrs: todo.Addrs})
}

// outcome returns what the parts have observed and published.
func (s *Speaker) outcome() status.Inputs {
	return status.Inputs{
		Desired:   s.desired,
		View:      s.view,
		Published: s.l2.Published,
		Held:      s.l2.Held(),
		Tunnels:   s.dataplane.Tunnels(),
		Differ:    s.slotsDiffer,

		ReturnRoutes: s.dataplane.ReturnRoutes(s.desired.PoolReturns),
		Conflicts:    s.conflicts,
		Claims:       s.published.Claims,
		Reach:        s.reach.now,
		BGP:          s.cfg.BGP != nil,
		Sessions:     s.bgp.Sessions(),
		Err:          s.currentErrors(),
	}
}

// updateParts passes the plan to the parts.
func (s *Speaker) updateParts() {
	s.l2.Update(s.desired)
	s.bgp.Update(advertise.BGPInputs{Desired: s.desired, Reason: s.reason, NodeListed: has(s.view.Nodes, s.cfg.Plan.Node)})
	s.dataplane.Update(dataplane.Inputs{
		Desired:       s.desired,
		VIPs:          s.view.VIPs,
		Reason:        s.reason,
		Unreachable:   len(s.view.Unreachable) > 0,
		NodeDied:      s.reach.died,
		Published:     func(addr netip.Addr) bool { _, is := s.l2.Published(addr); return is },
		Routed:        s.bgp.IsRouted,
		RoutesAdopted: !s.bgp.Begun(),
	})
}

// observe observes the node. If that fails, announcements stay: the addresses were programmed and very likely still
// are.
func (s *Speaker) observe(ctx context.Context, todo *work, thorough bool) {
	todo.announce = todo.announce || thorough // the interfaces may have changed
	if thorough {
		s.bgp.RestoreBlackholes()
	}
	if s.dataplane.Observe(ctx, todo.Work, thorough) == nil {
		s.audited = time.Now()
	}
}

func has[K comparable, V any](m map[K]V, key K) bool { _, ok := m[key]; return ok }

func sorted(addrs map[netip.Addr]struct{}) []netip.Addr {
	return slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare)
}

// log logs a change and counts it.
func (s *Speaker) log(level slog.Level, action string, attrs ...any) {
	s.changes++
	s.cfg.Metrics.change(action)
	s.lines.Add(level, action, attrs...)
}

// work is the work of one reconcile: what to compare with the plan and to change or report if it differs. The embedded
// Work belongs to the data plane; its addresses and Services are also those to announce and to report.
type work struct {
	*dataplane.Work
	bgp  *advertise.Work
	vips map[string]struct{}
	// announce is set if the announcements must be published again.
	announce bool
}

func newWork() *work {
	return &work{Work: dataplane.NewWork(), bgp: advertise.NewWork(), vips: map[string]struct{}{}}
}

func (w *work) empty() bool {
	return w.Work.Empty() && w.bgp.Empty() && !w.announce && len(w.vips) == 0
}

// add adds the work of x.
func (w *work) add(x *work) {
	w.Work.Add(x.Work)
	w.bgp.Add(x.bgp)
	w.announce = w.announce || x.announce
	maps.Copy(w.vips, x.vips)
}

// planned adds the changes of a plan.
func (w *work) planned(c *plan.Changed) {
	w.Work.AddChanged(c)
	w.bgp.AddChanged(c)
	maps.Copy(w.vips, c.VIPs)
}

// How soon failed work is retried.
const (
	retryFirst = 250 * time.Millisecond
	retryMax   = 10 * time.Second
	// backoffFactor bounds the cost of failing reconciles: after one that took d, the next retry waits backoffFactor times
	// d, at most retryMax.
	backoffFactor = 20
)

// retries are the failures of the last reconciles and when to retry. The parts keep their own failed work and errors;
// work and errs are those of the loop itself.
type retries struct {
	work *work
	errs []error
	// at is when the failed work is retried, zero for never. failures counts the retries in sequence, reported the
	// errors when at was set.
	at                 time.Time
	failures, reported int
}

// takeFailed adds the failed work to the work.
func (s *Speaker) takeFailed(todo *work) {
	todo.add(s.retries.work)
	s.retries.work, s.retries.errs = newWork(), nil
	s.dataplane.TakeFailed(todo.Work)
	s.bgp.TakeFailed(todo.bgp)
	todo.announce = s.l2.TakeFailed() || todo.announce
}

// settled reports whether there is nothing to retry and no error to clear.
func (s *Speaker) settled() bool {
	return s.dataplane.Settled() && s.bgp.Settled() && s.l2.Err() == nil && s.retries.work.empty() && len(s.retries.errs) == 0
}

// schedule sets when to retry failed work.
func (s *Speaker) schedule(again bool, took time.Duration) {
	if s.settled() {
		s.retries.failures, s.retries.at = 0, time.Time{}
		return
	}
	now := time.Now()
	soon, errs := now.Add(retryFirst), len(s.errors())
	switch {
	case s.dataplane.Deferred() && s.bgp.Begun(): // it no longer needs to wait
		s.retries.at = now
	case again || s.retries.at.IsZero():
		wait := max(retryFirst<<min(s.retries.failures, 10), backoffFactor*took)
		s.retries.failures++
		s.retries.at = now.Add(min(wait, retryMax))
	case errs > s.retries.reported && soon.Before(s.retries.at):
		s.retries.at = soon // another failure occurred
	}
	s.retries.reported = errs
}

// fail records an error.
func (s *Speaker) fail(err error) {
	if err != nil {
		s.retries.errs = append(s.retries.errs, err)
	}
}

// errors returns the failures of all parts.
func (s *Speaker) errors() []error {
	return slices.Concat(s.dataplane.Errors(), s.bgp.Errors(), []error{s.l2.Err()}, s.retries.errs)
}

// maxErrors is the maximum number of errors in one report.
const maxErrors = 10

// currentErrors returns why the node does not match the plan: failures, and errors that only the operator can fix.
func (s *Speaker) currentErrors() error {
	var distinct []error
	seen, more := map[string]bool{}, 0
	for _, err := range flatten(nil, s.errors()) {
		switch {
		case len(distinct) == maxErrors:
			more++
		case !seen[err.Error()]:
			seen[err.Error()] = true
			distinct = append(distinct, err)
		}
	}
	if more > 0 {
		distinct = append(distinct, fmt.Errorf("and %d more", more))
	}
	return errors.Join(distinct...)
}

// flatten appends errors that are not nil, and each of joined errors.
func flatten(to, errs []error) []error {
	for _, err := range errs {
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			to = flatten(to, joined.Unwrap())
		} else if err != nil {
			to = append(to, err)
		}
	}
	return to
}
