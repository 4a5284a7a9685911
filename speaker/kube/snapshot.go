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
	// snapshotAfter is how long the first lists are waited for before the snapshot stands in for them: as long as a speaker that has just
	// started may observe the others and claims nothing anyway (docs/design/failover.md), and longer than 5,000 Services take to list.
	snapshotAfter = 3 * time.Second
	// snapshotEvery is from a change to its snapshot, and the least from one snapshot to the next (wire.md 1.3).
	snapshotEvery = 5 * time.Second
	// snapshotShare bounds the cost where it is large: one that took d is not repeated for snapshotShare times d.
	snapshotShare = 100
	// snapshotAgain is when one that failed is tried again.
	snapshotAgain = time.Minute
)

// snapshot is the record of what the API server told last, for a process that is started while it is away. All but its file belongs to
// the Source.
type snapshot struct {
	path string
	// head is that of the next one, but for its time.
	head    func() snapshotHead
	watches []watch
	log     *slog.Logger
	// changed has an element while the file is older than what is known.
	changed chan struct{}
	written atomic.Int64 // when the file was, in nanoseconds
	failed  string
	// over is called when the View is no longer from the snapshot. It must not block.
	over func()

	// stale is when the snapshot was made that the last plan is from, nil for none. The other fields are under the Source's lock.
	stale atomic.Pointer[time.Time]
	// restored is what was read, by kind, and at when it was made; old what of it the lists have not replaced yet. A kind that is in old keeps its
	// changes back.
	restored, old map[string]map[ref]any
	at            time.Time
}

// snapshotTo makes the Source keep a snapshot of what it watches in a file, but for Secrets. It must be called before Run.
func (s *Source) snapshotTo(path string, head func() snapshotHead, watches []watch, log *slog.Logger) {
	s.snapshot = &snapshot{path: path, head: head, log: log, changed: make(chan struct{}, 1), over: func() {}}
	for _, w := range watches {
		if _, secret := w.object.(*corev1.Secret); w.convert != nil && !secret {
			s.snapshot.watches = append(s.snapshot.watches, w)
		}
	}
}

// Stale tells whether what was planned last is from a snapshot, for the API server has not given every list yet, and when that was made.
func (s *Source) Stale() (at time.Time, stale bool) {
	if s.snapshot == nil {
		return time.Time{}, false
	}
	if t := s.snapshot.stale.Load(); t != nil {
		return *t, true
	}
	return time.Time{}, false
}

// Snapshot tells when the snapshot was written last, the zero time if never by this process.
func (s *Source) Snapshot() time.Time {
	if s.snapshot == nil || s.snapshot.written.Load() == 0 {
		return time.Time{}
	}
	return time.Unix(0, s.snapshot.written.Load())
}

// listed tells whether the API server has given every list that is needed, for the first View also those that it may refuse.
func (s *Source) listed(secrets secretsState) bool {
	for _, synced := range s.synced {
		if !synced() {
			return false
		}
	}
	return s.begun && !s.view.Stale || s.settled(secrets)
}

// take returns what is to be put into the View now; ok is false while there is nothing to make one of. The caller has the lock.
//
// From a snapshot the View is as that says, and what the lists bring is kept back until all have come: some new and some old would be a
// state that the cluster never was in. Then only what differs is put into the View.
func (s *Source) take(secrets secretsState) (out map[ref]any, ok bool) {
	listed := s.listed(secrets)
	if snap := s.snapshot; snap != nil && !s.view.Stale && snap.stale.Swap(nil) != nil {
		snap.over() // what the lists brought was planned and reported since the last call
	}
	if snap := s.snapshot; snap != nil && snap.old == nil && snap.restored != nil {
		if !listed {
			snap.old = snap.restored
			snap.stale.Store(&snap.at)
			s.view.Stale = true
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

// release lets go of what is kept back of the kinds that were listed, once all are that are needed: nil takes the place of what is gone, and what is the same
// is no news.
func (s *Source) release(listed bool) {
	if !listed {
		return
	}
	s.view.Stale = false
	for kind, parts := range s.snapshot.old {
		if synced := s.each[kind]; len(parts) > 0 && !synced() {
			continue // one that the API server refuses
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

// noteChange asks for a new snapshot if a kind that is watched changed.
func (s *Source) noteChange(kind string) {
	if s.snapshot == nil || s.each[kind] == nil {
		return
	}
	select {
	case s.snapshot.changed <- struct{}{}:
	default:
	}
}

// keepSnapshot reads the snapshot if it is needed, and writes it until the context ends.
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
		case <-ctx.Done(): // the next process is to find what this one knew
			s.save()
			return
		case <-time.After(wait):
		}
		select {
		case <-s.snapshot.changed: // what is written now
		default:
		}
		wait = s.save()
	}
}

// restore reads the snapshot and tells whether it is used.
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
	snap.log.Warn("the API server has not given every list yet: the snapshot of an earlier time stands in for it", "file", snap.path,
		"at", head.At.UTC().Format(time.RFC3339), "services", len(parts[kindService]), "virtualips", len(parts[kindVIP]))
	for _, value := range parts[kindBGPPeer] {
		if value.(peerObject).secret != "" {
			s.secrets.need()
		}
	}
	s.mu.Lock()
	snap.restored, snap.at = parts, head.At
	s.mu.Unlock()
	s.kick()
	return true
}

// save writes the snapshot and returns how long to wait until the next.
func (s *Source) save() time.Duration {
	snap := s.snapshot
	s.mu.Lock()
	back := len(snap.old) > 0
	s.mu.Unlock()
	if back { // a list is lacking that the file has
		s.noteChange(kindService)
		return snapshotAgain
	}
	start := time.Now()
	err := writeSnapshot(snap.path, s.encode)
	if err != nil {
		if text := err.Error(); text != snap.failed {
			snap.log.Error("cannot write the snapshot for a start without the API server; trying again (stateDir)", "file", snap.path, "error", err)
			snap.failed = text
		}
		s.noteChange(kindService)
		return snapshotAgain
	}
	if snap.failed != "" {
		snap.log.Info("the snapshot is written again", "file", snap.path)
		snap.failed = ""
	}
	snap.written.Store(start.UnixNano())
	return max(snapshotEvery, snapshotShare*time.Since(start))
}

// encode writes what the informers hold.
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

// clusterOf returns what tells a cluster from others without asking it: a digest of its certificate authority, or where none is given of
// the API server's address.
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
