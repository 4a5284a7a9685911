// Package bfd monitors the paths to BGP peers by Bidirectional Forwarding Detection: asynchronous mode (RFC 5880) over
// one hop (RFC 5881) and over several (RFC 5883), without echo, demand mode of its own, or authentication.
//
// The Core is pure: configurations, packets and times are its input; packets, state changes and the time of the next
// tick are its output. The Driver provides sockets and a thread with priority over others. All that may block (the log,
// the caller's function) runs outside that thread.
//
// Nothing is sent when the process ends: the remote system detects that by itself, unless the next process takes over
// before. A session that is removed sends AdminDown, so that the remote system does not consider the path dead.
package bfd

import (
	"context"
	"encoding/binary"
	"log/slog"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/priority"
	"github.com/ironlb/ironlb/speaker/view"
)

// Options configure a Driver.
type Options struct {
	Log *slog.Logger
	// Changed is called with the status of all sessions, by name, whenever one has changed. Calls are made one after
	// another from a separate goroutine. A change of state is not skipped for a later one of the same session, unless
	// the queue of reports is full.
	Changed func(map[string]Status)
	// Independent sets the C bit (RFC 5880, 4.1): this process outlives the control plane.
	Independent bool
	// Metrics may be nil.
	Metrics prometheus.Registerer
}

// Driver runs the sessions.
type Driver struct {
	options Options
	metrics *metrics

	mu sync.Mutex
	// wanted are the sessions that pass Check, wrong the errors of the others.
	wanted map[string]Config
	wrong  map[string]error
	fresh  bool
	// wake is an eventfd that ends the loop's wait, -1 while no loop runs.
	wake int

	reports reports
}

// New returns a Driver without sessions. It does nothing before Run.
func New(o Options) *Driver {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Driver{options: o, metrics: newMetrics(o.Metrics), wake: -1, reports: newReports()}
}

// Set sets all sessions; the set is complete each time. It does not block. Unchanged sessions are not touched; changed
// timers are negotiated with the remote system (6.8.3); changed addresses make another session. A removed session sends
// AdminDown, unless the process ends before.
func (d *Driver) Set(configs map[string]Config) {
	wanted, wrong := map[string]Config{}, map[string]error{}
	for name, c := range configs {
		if err := c.Check(); err != nil {
			wrong[name] = err
		} else {
			wanted[name] = c
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.logChanges(wanted, wrong)
	d.wanted, d.wrong, d.fresh = wanted, wrong, true
	d.wakeLoop()
}

// logChanges logs the changes.
func (d *Driver) logChanges(wanted map[string]Config, wrong map[string]error) {
	for _, name := range slices.Sorted(maps.Keys(d.wanted)) {
		if _, stays := wanted[name]; !stays {
			d.options.Log.Info("BFD session removed", "name", name, "peer", d.wanted[name].Peer)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		c := wanted[name]
		attrs := []any{"name", name, "peer", c.Peer, "multihop", c.MultiHop, "receive", c.Timers.Receive, "transmit", c.Timers.Transmit, "multiplier", c.Timers.Multiplier}
		if was, known := d.wanted[name]; !known {
			d.options.Log.Info("BFD session added", attrs...)
		} else if was != c {
			d.options.Log.Info("BFD session reconfigured", attrs...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		if was := d.wrong[name]; was == nil || was.Error() != wrong[name].Error() {
			d.options.Log.Error("invalid BFD session", "name", name, "error", wrong[name])
		}
	}
}

// wakeLoop ends the loop's wait. d.mu must be held.
func (d *Driver) wakeLoop() {
	if d.wake >= 0 {
		_, _ = unix.Write(d.wake, binary.NativeEndian.AppendUint64(nil, 1))
	}
}

// Run runs the sessions until ctx ends, in the network namespace of the calling thread. Nothing is sent at the end.
func (d *Driver) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l, err := d.open()
	if err != nil {
		return err
	}
	defer l.close()

	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.report(ctx)
	}()
	defer func() { cancel(); <-done }()
	stop := context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.wakeLoop()
	})
	defer stop()

	defer raisePriority(d.options.Log)()
	for ctx.Err() == nil {
		if err := l.iterate(); err != nil {
			return err
		}
	}
	return nil
}

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

// The share of a core that the loop may use before all other threads. A tick takes some tens of microseconds.
const (
	share   = 2500 * time.Microsecond
	shareOf = 10 * time.Millisecond
)

// raisePriority gives the loop priority over others until lower, or logs the consequence if that fails
// (docs/development/performance.md has figures).
func raisePriority(log *slog.Logger) (lower func()) {
	class, lower, err := priority.Raise(share, shareOf)
	switch class {
	case priority.Nice:
		log.Warn("BFD runs with a nice value of -20 in place of a share of its own: let the container run on every core, or detection below 300 ms may fail on a busy node", "error", err)
	case priority.Normal:
		log.Warn("BFD runs with the priority of all others: give the container CAP_SYS_NICE, or detection may fail on a busy node", "error", err)
	}
	return lower
}

// CollectRarely is for the process that runs a Driver: garbage is collected only when that much memory is in use. The
// limit should be several times what the process needs.
//
// While the collector scans the stack of the loop's goroutine, the loop waits for it and uses up its share (see
// priority.Raise), and may continue only in the next period. docs/development/performance.md has figures.
func CollectRarely(limit int64) {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(limit)
}
