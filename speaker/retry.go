package speaker

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

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
