package speaker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// Reasons of changes, for the log.
const (
	planned  = "Planned"
	restored = "Restored" // the plan is unchanged; another program changed the node, or an earlier attempt failed
)

// round is one reconcile: it plans, compares and applies the changes that are due, and observes the node if that is
// due. An error does not stop the remaining work.
func (s *Speaker) round(ctx context.Context) error {
	start := time.Now()
	s.began = start
	todo := newWork()
	if ok := s.plan(todo, start); !ok {
		s.audited = start
		return errNotSynced
	}
	s.letGo(todo)
	s.cleaning.take(todo, start)
	again := !start.Before(s.retry) && !s.settled()
	looked := s.cfg.Kick.look.Swap(false)
	if again || s.known == nil && looked {
		s.takeFailed(todo)
	}
	ipv6 := s.notesIPv6(todo)
	due := looked || again || ipv6 || !start.Before(s.audited.Add(auditEvery))
	if s.known == nil && !again && !looked {
		due = false // a trigger does not hasten the retry of a failed observation
	}
	if todo.empty() && !due && !s.mustSay && !s.mayBeginBGP() && maps.Equal(s.conflicts, s.cfg.Announcer.Conflicts()) {
		if s.noteSessions(start) {
			s.reportNode()
		}
		return s.trouble() // nothing new
	}
	s.withdraw(todo)
	ready := s.ready(todo)
	s.say(todo, ready)
	s.announce(todo, ready)
	s.routeReady(todo)
	if due {
		s.look(ctx, todo, looked)
	}
	s.carryOut(ctx, todo)
	if s.bgp.waits { // BGP has begun
		s.bgp.waits = false
		rest := newWork()
		s.takeFailed(rest)
		if rest.all && s.known != nil {
			rest.everything(s.desired, s.known)
		}
		s.carryOut(ctx, rest)
		todo.add(rest)
	}
	s.release(start)
	s.report(todo)
	s.schedule(again, time.Since(start))
	if s.cfg.Progress != nil && s.known != nil && !s.failed.missing() {
		s.cfg.Progress.Applied(start) // later changes may have come too late for this plan
	}
	return s.trouble()
}

// carryOut programs the work and then announces what is programmed.
func (s *Speaker) carryOut(ctx context.Context, todo *work) {
	if s.known != nil {
		before := s.changes
		s.apply(ctx, todo)
		if s.changes > before {
			s.cfg.Metrics.program.Observe(time.Since(s.began).Seconds())
		}
		s.cfg.Metrics.table(len(s.known.table.have), s.known.table.reals)
	} else {
		s.failed.add(todo)
	}
	s.judge(todo)
	anyOne := func(string) bool { return true }
	s.say(todo, anyOne)
	s.announce(todo, anyOne)
	s.routeAll(todo)
	s.dropBlackholes()
}

// plan makes a new plan if something changed or a timer expired, and reports whether a plan exists.
func (s *Speaker) plan(todo *work, now time.Time) bool {
	view, touched, ok := s.cfg.Source.Observe()
	if !ok {
		return false
	}
	s.view = view
	s.hear(view, &touched)
	wake := s.planner.Wake()
	s.reason = restored
	if s.desired != nil && !touched.Any() && !s.mustSay && (wake.IsZero() || wake.After(now)) {
		return true
	}
	s.reason = planned
	touched.All = touched.All || s.desired == nil
	var changed *plan.Changed
	s.desired, changed = s.planner.Plan(view, touched, now)
	todo.planned(changed)
	s.listen(touched, changed)
	if s.cfg.Progress != nil {
		node, exists := view.Nodes[s.cfg.NodeName]
		s.cfg.Progress.SetNode(exists && !node.Leaving)
	}
	return true
}

// notesIPv6 records whether IPv6 addresses are served, and reports whether that changed: IPv6 needs further sysctls.
func (s *Speaker) notesIPv6(todo *work) bool {
	before, touched := s.ipv6, false
	for key := range todo.keys {
		touched = touched || key.Addr.Is6()
	}
	if touched {
		s.ipv6 = false
		for addr := range s.desired.Keys {
			if s.ipv6 = addr.Is6(); s.ipv6 {
				break
			}
		}
	}
	return s.ipv6 != before
}

// takeFailed adds the failed work to the work.
func (s *Speaker) takeFailed(todo *work) {
	todo.add(s.failed)
	s.failed, s.errs = newWork(), nil
}

// look observes the node. If that fails, announcements stay: the addresses were programmed and very likely still are.
func (s *Speaker) look(ctx context.Context, todo *work, looked bool) {
	todo.announce = todo.announce || looked // the interfaces may have changed
	if looked {
		s.mendBlackholes()
	}
	err := s.recheck(todo)
	if err == nil {
		err = s.observe(ctx, todo, looked)
	}
	if err != nil {
		s.fail(err)
		return
	}
	if todo.all {
		todo.everything(s.desired, s.known)
	}
}

// settled reports whether there is nothing to retry and no error to clear.
func (s *Speaker) settled() bool { return s.known != nil && s.failed.empty() && len(s.errs) == 0 }

// schedule sets when to retry failed work.
func (s *Speaker) schedule(again bool, took time.Duration) {
	if s.settled() {
		s.failures, s.retry = 0, time.Time{}
		return
	}
	now := time.Now()
	soon := now.Add(retryFirst)
	switch {
	case again || s.retry.IsZero():
		wait := max(retryFirst<<min(s.failures, 10), restShare*took)
		s.failures++
		s.retry = now.Add(min(wait, retryMost))
	case len(s.errs) > s.reported && soon.Before(s.retry):
		s.retry = soon // another failure occurred
	}
	s.reported = len(s.errs)
}

// fail records an error.
func (s *Speaker) fail(err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			s.fail(e)
		}
	} else if err != nil {
		s.errs = append(s.errs, err)
	}
}

// troubleMost is the maximum number of errors in one report.
const troubleMost = 10

// trouble returns why the node is not as planned: failures, and errors that only the operator can fix.
func (s *Speaker) trouble() error {
	var errs []error
	if s.known != nil {
		errs = append(s.foreignErrors(), s.known.sysctls.All, s.known.sysctls.ARP, s.known.sysctls.IPv6, s.known.sysctls.Limits)
	}
	var told []error
	seen, more := map[string]bool{}, 0
	for _, err := range append(errs, s.errs...) {
		switch {
		case err == nil:
		case len(told) == troubleMost:
			more++
		case !seen[err.Error()]:
			seen[err.Error()] = true
			told = append(told, err)
		}
	}
	if more > 0 {
		told = append(told, fmt.Errorf("and %d more", more))
	}
	return errors.Join(told...)
}

// log writes one line about a change and counts it.
func (s *Speaker) log(action string, args ...any) {
	s.changes++
	s.cfg.Metrics.change(action)
	s.cfg.Log.Info(action, args...)
}
