package bfd

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/ironlb/ironlb/speaker/view"
)

// reports are the loop's pending reports for the reporting goroutine: logs and callers may block.
type reports struct {
	mu    sync.Mutex
	queue []report
	wake  chan struct{}
}

// report is a session's new status, or its removal.
type report struct {
	name   string
	status Status
	gone   bool
}

// maxReports is the number of pending reports beyond which those of a session are merged: only its last one is kept,
// and before that the last one that was not Up, so that no failure of a session is lost. Only a caller that blocks
// causes so many.
const maxReports = 4096

func newReports() reports { return reports{wake: make(chan struct{}, 1)} }

func (r *reports) add(changed map[string]Status) {
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		r.put(report{name: name, status: changed[name]})
	}
}

func (r *reports) gone(name string) { r.put(report{name: name, gone: true}) }

func (r *reports) put(one report) {
	r.mu.Lock()
	if len(r.queue) >= maxReports {
		r.merge(one)
	}
	r.queue = append(r.queue, one)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// merge removes the pending reports of the session that the next one makes superfluous.
func (r *reports) merge(next report) {
	down := -1
	for i, one := range r.queue {
		if one.name == next.name && !one.up() && next.up() {
			down = i
		}
	}
	kept := r.queue[:0]
	for i, one := range r.queue {
		if one.name != next.name || i == down {
			kept = append(kept, one)
		}
	}
	r.queue = kept
}

func (r report) up() bool { return !r.gone && r.status.State == view.BFDUp }

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
		case <-d.reports.wake:
		}
		published := map[string]bool{}
		for _, one := range d.reports.take() {
			if published[one.name] { // both are published, one after the other
				d.publish(all)
				clear(published)
			}
			published[one.name] = true
			was, known := all[one.name]
			d.metrics.status(one, was)
			if one.gone {
				delete(all, one.name)
				continue
			}
			all[one.name] = one.status
			d.log(one.name, was, one.status, known)
		}
		if len(published) > 0 {
			d.publish(all)
		}
	}
}

func (d *Driver) publish(all map[string]Status) {
	if d.options.Changed != nil {
		d.options.Changed(maps.Clone(all))
	}
}

// log logs the changes that concern an operator.
func (d *Driver) log(name string, was, is Status, known bool) {
	l := d.options.Log.With("name", name)
	switch {
	case is.State == view.BFDUp && was.State != view.BFDUp:
		l.Info("BFD session up", "transmit", is.Transmit, "detection", is.Detection, "independent", is.RemoteIndependent)
	case was.State == view.BFDUp && is.State != view.BFDUp:
		switch is.Reason {
		case Expired:
			l.Warn("BFD session down", "reason", is.Reason, "silence", is.Detected)
		case PeerAdminDown:
			l.Info("BFD session down", "reason", is.Reason, "remoteDiagnostic", is.RemoteDiagnostic)
		default:
			l.Warn("BFD session down", "reason", is.Reason, "remoteDiagnostic", is.RemoteDiagnostic)
		}
	case is.State == view.BFDUp && (is.Transmit != was.Transmit || is.Detection != was.Detection):
		l.Info("BFD session timers changed", "transmit", is.Transmit, "detection", is.Detection)
	}
	if is.Problem != was.Problem {
		if is.Problem != "" {
			l.Warn("BFD cannot send or receive", "problem", is.Problem)
		} else if known {
			l.Info("BFD can send and receive again")
		}
	}
}
