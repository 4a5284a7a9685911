package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"reflect"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

const (
	// snapshotAfter is how long the first lists are awaited before the snapshot is used instead. For that long a newly
	// started speaker may observe the others and claims nothing anyway (docs/design/failover.md). Listing 5,000
	// Services takes less.
	snapshotAfter = 3 * time.Second
	// snapshotEvery is the delay from a change to its snapshot, and the minimum interval between snapshots.
	snapshotEvery = 5 * time.Second
	// snapshotShare bounds the cost of large snapshots: one that took d is not repeated for snapshotShare times d.
	snapshotShare = 100
	// snapshotAgain is the delay before a failed one is retried.
	snapshotAgain = time.Minute
)

// snapshot is the on-disk copy of the cluster state, for a process that starts while the API server is unavailable. All
// but its file belongs to the Source.
type snapshot struct {
	path string
	// head returns the head of the next snapshot, without its time.
	head    func() snapshotHead
	watches []watch
	log     *slog.Logger
	// changed has an element while the file is older than the known state.
	changed chan struct{}
	written atomic.Int64 // when the file was written, in nanoseconds
	failed  string
	// over is called when the View is no longer from the snapshot. It must not block.
	over func()

	// fromSnapshot is the creation time of the snapshot behind the last plan, nil for none. The other fields are
	// protected by the Source's lock.
	fromSnapshot atomic.Pointer[time.Time]
	// restored is the content by kind, and at its creation time. old is the part that the lists have not replaced yet:
	// changes of a kind in old are held back.
	restored, old map[string]map[ref]any
	at            time.Time
}

// snapshotTo makes the Source keep a snapshot of its watches in a file, except for Secrets. It must be called before
// Run.
func (s *Source) snapshotTo(path string, head func() snapshotHead, watches []watch, log *slog.Logger) {
	s.snapshot = &snapshot{path: path, head: head, log: log, changed: make(chan struct{}, 1), over: func() {}}
	for _, w := range watches {
		if _, secret := w.object.(*corev1.Secret); w.convert != nil && !secret {
			s.snapshot.watches = append(s.snapshot.watches, w)
		}
	}
}

// FromSnapshot reports whether the last plan is from a snapshot because the API server has not returned every list yet,
// and when the snapshot was made.
func (s *Source) FromSnapshot() (at time.Time, fromSnapshot bool) {
	if s.snapshot == nil {
		return time.Time{}, false
	}
	if t := s.snapshot.fromSnapshot.Load(); t != nil {
		return *t, true
	}
	return time.Time{}, false
}

// Snapshot returns when the snapshot was last written, the zero time if never by this process.
func (s *Source) Snapshot() time.Time {
	if s.snapshot == nil || s.snapshot.written.Load() == 0 {
		return time.Time{}
	}
	return time.Unix(0, s.snapshot.written.Load())
}

// listed reports whether the API server has returned every required list. For the first View it also waits for the
// kinds that may be refused.
func (s *Source) listed(secrets secretsState) bool {
	for _, synced := range s.synced {
		if !synced() {
			return false
		}
	}
	return s.begun && !s.view.FromSnapshot || s.settled(secrets)
}

// take returns the pending changes of the View; ok is false while no View can be built. The caller holds the lock.
//
// From a snapshot the View equals that state, and the contents of the lists are held back until all have come: a
// mixture of new and old would be a state that the cluster never was in. Then only the differences are put into the
// View.
func (s *Source) take(secrets secretsState) (out map[ref]any, ok bool) {
	listed := s.listed(secrets)
	if snap := s.snapshot; snap != nil && !s.view.FromSnapshot && snap.fromSnapshot.Swap(nil) != nil {
		snap.over() // the lists' contents were planned and reported since the last call
	}
	if snap := s.snapshot; snap != nil && snap.old == nil && snap.restored != nil {
		if !listed {
			snap.old = snap.restored
			snap.fromSnapshot.Store(&snap.at)
			s.view.FromSnapshot = true
			out = map[ref]any{}
			for _, parts := range snap.old {
				for r, value := range parts {
					out[r] = value
				}
			}
		}
		snap.restored = nil
	}
	if s.snapshot == nil || s.snapshot.old == nil {
		out = s.pending
		if !listed {
			return nil, false
		}
		s.pending = map[ref]any{}
		return out, true
	}
	if out == nil {
		out = map[ref]any{}
	}
	s.release(listed)
	for r, value := range s.pending {
		if _, back := s.snapshot.old[r.kind]; !back {
			out[r] = value
			delete(s.pending, r)
		}
	}
	if len(s.snapshot.old) == 0 {
		s.snapshot.old = nil
	}
	return out, true
}

// release ends the hold-back of the listed kinds, once all required kinds are listed. A deleted object becomes nil, and
// an unchanged one is dropped.
func (s *Source) release(listed bool) {
	if !listed {
		return
	}
	s.view.FromSnapshot = false
	for kind, parts := range s.snapshot.old {
		if synced := s.each[kind]; len(parts) > 0 && !synced() {
			continue // a kind that the API server refuses
		}
		for r, before := range parts {
			now, there := s.pending[r]
			switch {
			case !there:
				s.pending[r] = nil
			case reflect.DeepEqual(before, now):
				delete(s.pending, r)
			}
		}
		delete(s.snapshot.old, kind)
	}
}

// recordChange requests a new snapshot if a watched kind changed.
func (s *Source) recordChange(kind string) {
	if s.snapshot == nil || s.each[kind] == nil {
		return
	}
	select {
	case s.snapshot.changed <- struct{}{}:
	default:
	}
}

// keepSnapshot reads the snapshot if needed, and writes it until the context ends.
func (s *Source) keepSnapshot(ctx context.Context) {
	patience, stop := context.WithTimeout(ctx, snapshotAfter)
	listed := cache.WaitForCacheSync(patience.Done(), s.synced...)
	stop()
	if !listed && ctx.Err() == nil {
		restored := s.restore()
		if !cache.WaitForCacheSync(ctx.Done(), s.synced...) {
			return
		}
		if restored {
			s.snapshot.log.Info("every list has come from the API server; the snapshot is not needed any more")
		}
	}
	wait := snapshotEvery
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.snapshot.changed:
		}
		select {
		case <-ctx.Done(): // for the next process
			s.save()
			return
		case <-time.After(wait):
		}
		select {
		case <-s.snapshot.changed: // covered by this write
		default:
		}
		wait = s.save()
	}
}

// restore reads the snapshot and reports whether it is used.
func (s *Source) restore() bool {
	snap := s.snapshot
	head, parts, err := readSnapshot(snap.path, snap.head(), snap.watches)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		snap.log.Warn("the API server has not given every list yet, and there is no snapshot of an earlier time", "file", snap.path)
		return false
	case err != nil:
		snap.log.Error("the API server has not given every list yet, and the snapshot of an earlier time cannot be used", "file", snap.path, "error", err)
		return false
	}
	snap.log.Warn("initial lists from the API server not complete, using the on-disk snapshot", "file", snap.path,
		"at", head.At.UTC().Format(time.RFC3339), "services", len(parts[kindService]), "virtualips", len(parts[kindVIP]))
	for _, value := range parts[kindBGPPeer] {
		if value.(peerObject).secret != "" {
			s.secrets.need()
		}
	}
	s.mu.Lock()
	snap.restored, snap.at = parts, head.At
	s.mu.Unlock()
	s.trigger()
	return true
}

// save writes the snapshot and returns the delay before the next one.
func (s *Source) save() time.Duration {
	snap := s.snapshot
	s.mu.Lock()
	back := len(snap.old) > 0
	s.mu.Unlock()
	if back { // the file has a kind whose list is still missing
		s.recordChange(kindService)
		return snapshotAgain
	}
	start := time.Now()
	err := writeSnapshot(snap.path, s.encode)
	if err != nil {
		if text := err.Error(); text != snap.failed {
			snap.log.Error("cannot write the snapshot for a start without the API server; trying again (stateDir)", "file", snap.path, "error", err)
			snap.failed = text
		}
		s.recordChange(kindService)
		return snapshotAgain
	}
	if snap.failed != "" {
		snap.log.Info("the snapshot is written again", "file", snap.path)
		snap.failed = ""
	}
	snap.written.Store(start.UnixNano())
	return max(snapshotEvery, snapshotShare*time.Since(start))
}

// encode writes the objects of the informers.
func (s *Source) encode(to io.Writer) error {
	head := s.snapshot.head()
	head.At = time.Now()
	objects := map[string][]any{}
	var kinds []string
	for _, w := range s.snapshot.watches {
		kinds = append(kinds, w.kind)
		objects[w.kind] = s.informers[w.kind].GetStore().List()
	}
	return encodeSnapshot(to, head, kinds, objects)
}

// clusterOf returns an identity of the cluster without a request: a digest of its certificate authority, or, if there
// is none, of the API server's address.
func clusterOf(config *rest.Config) (string, error) {
	tls := rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: config.CAData, CAFile: config.CAFile}}
	if err := rest.LoadTLSFiles(&tls); err != nil {
		return "", fmt.Errorf("read the API server's certificate authority: %w", err)
	}
	from := tls.CAData
	if len(from) == 0 {
		from = []byte(config.Host)
	}
	sum := sha256.Sum256(from)
	return hex.EncodeToString(sum[:16]), nil
}
