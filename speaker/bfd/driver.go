package bfd

import (
	"context"
	"encoding/binary"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
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
