package speaker

import (
	"context"
	"errors"
	"time"
)

// Why something was changed, for the log.
const (
	planned  = "Planned"
	restored = "Restored" // the plan is the same; something else changed the node, or an earlier try failed
)

// round plans, compares and applies once, and looks at the node if that is due. Whatever can be done in spite of an
// error is done.
func (s *Speaker) round(ctx context.Context) error {
	view, touched, ok := s.cfg.Source.Observe()
	if !ok {
		s.audited = time.Now()
		return errNotSynced
	}
	why := restored
	if s.desired == nil || touched.Any() {
		touched.All = touched.All || s.desired == nil
		s.desired, _ = s.planner.Plan(view, touched, time.Now())
		why = planned
	}
	look := s.cfg.Kick.look.Swap(false) || s.known == nil || time.Since(s.audited) >= auditEvery
	if why == restored && !look {
		return s.obstacle() // a kick about what is known already
	}
	withdrawErr := s.withdraw()
	if look {
		if err := s.observe(ctx); err != nil {
			// Nothing is known of the node; what was announced was programmed and very likely still is.
			err = errors.Join(withdrawErr, err, s.announce(s.stillWanted()))
			s.report()
			return err
		}
	}
	have := s.known
	have.reason = why
	obstacle := s.obstacle()
	err := errors.Join(withdrawErr, s.apply(ctx, have, s.desired.Without(have.foreign)))
	if err != nil {
		s.known = nil
	}
	s.cfg.Metrics.table(have.table)
	s.report()
	return errors.Join(err, obstacle)
}

// obstacle says what of the node as it is known keeps the plan from being carried out, and only the operator can mend.
func (s *Speaker) obstacle() error {
	return errors.Join(s.known.sysctls, foreignError(s.known.foreign, s.desired))
}
