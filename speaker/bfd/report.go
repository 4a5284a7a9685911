package bfd

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/ironlb/ironlb/speaker/plan"
)

// reports are the loop's pending reports for the reporting goroutine: logs and callers may block.
type reports struct {
	mu    sync.Mutex
	queue []report
	kick  chan struct{}
}

// report is a session's new status, or its removal.
type report struct {
	name   string
	status Status
	gone   bool
}

// most is the maximum number of pending reports; beyond it, only the last one of a session is kept. Only a caller that
// blocks causes so many.
const most = 4096

func newReports() reports { return reports{kick: make(chan struct{}, 1)} }

func (r *reports) add(changed map[string]Status) {
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		r.put(report{name: name, status: changed[name]})
	}
}

func (r *reports) gone(name string) { r.put(report{name: name, gone: true}) }

func (r *reports) put(one report) {
	r.mu.Lock()
	if len(r.queue) >= most {
		r.queue = slices.DeleteFunc(r.queue, func(other report) bool { return other.name == one.name })
	}
	r.queue = append(r.queue, one)
	r.mu.Unlock()
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

func (r *reports) take() []report {
	r.mu.Lock()
	defer r.mu.Unlock()
	queue := r.queue
	r.queue = nil
	return queue
}

// report logs and publishes the loop's reports until ctx ends.
func (d *Driver) report(ctx context.Context) {
	all := map[string]Status{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.reports.kick:
		}
		said := map[string]bool{}
		for _, one := range d.reports.take() {
			if said[one.name] { // both are published, one after the other
				d.tell(all)
				clear(said)
			}
			said[one.name] = true
			was, known := all[one.name]
			d.metrics.status(one, was)
			if one.gone {
				delete(all, one.name)
				continue
			}
			all[one.name] = one.status
			d.log(one.name, was, one.status, known)
		}
		if len(said) > 0 {
			d.tell(all)
		}
	}
}

func (d *Driver) tell(all map[string]Status) {
	if d.options.Changed != nil {
		d.options.Changed(maps.Clone(all))
	}
}

// log logs the changes that concern an operator.
func (d *Driver) log(name string, was, is Status, known bool) {
	l := d.options.Log.With("name", name)
	switch {
	case is.State == plan.BFDUp && was.State != plan.BFDUp:
		l.Info("the BFD session is up", "transmit", is.Transmit, "detection", is.Detection, "independent", is.RemoteIndependent)
	case was.State == plan.BFDUp && is.State != plan.BFDUp:
		switch is.Reason {
		case Expired:
			l.Warn("the BFD session is down", "reason", is.Reason, "silence", is.Detected)
		case PeerAdminDown:
			l.Info("the BFD session is down", "reason", is.Reason, "peer says", is.RemoteDiagnostic)
		default:
			l.Warn("the BFD session is down", "reason", is.Reason, "peer says", is.RemoteDiagnostic)
		}
	case is.State == plan.BFDUp && (is.Transmit != was.Transmit || is.Detection != was.Detection):
		l.Info("the BFD session has other timers", "transmit", is.Transmit, "detection", is.Detection)
	}
	if is.Problem != was.Problem {
		if is.Problem != "" {
			l.Warn("BFD cannot send or receive", "problem", is.Problem)
		} else if known {
			l.Info("BFD can send and receive again")
		}
	}
}
