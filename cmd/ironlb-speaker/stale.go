package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/kube"
)

// Prefixes of the files in stateDir; the suffix is the name of the node. The files are the on-disk copy of the cluster
// state, and the record of unreachable nodes (speaker/reach).
const (
	snapshotPrefix    = "snapshot-"
	unreachablePrefix = "unreachable-"
)

// stateFile returns a file in stateDir, empty for none.
func (o options) stateFile(prefix string) string {
	if o.config.StateDir == "" {
		return ""
	}
	return filepath.Join(o.config.StateDir, prefix+filepath.Base(o.nodeName))
}

// stale reports whether the plan is from a snapshot, and when that was made.
type stale interface{ FromSnapshot() (time.Time, bool) }

// staleMetrics registers the metrics about the snapshot and its use.
func staleMetrics(reg prometheus.Registerer, source *kube.Source) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "ironlb", Name: "api_stale",
		Help: "1 while the cluster state comes from the on-disk snapshot, because the initial lists from the API server are not complete."}, func() float64 {
		if _, is := source.FromSnapshot(); is {
			return 1
		}
		return 0
	}), prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "ironlb", Name: "snapshot_timestamp_seconds",
		Help: "When this process wrote the snapshot last, in seconds since 1970; 0 for never."}, func() float64 {
		if at := source.Snapshot(); !at.IsZero() {
			return float64(at.UnixNano()) / 1e9
		}
		return 0
	}))
}

// staleReadyz adds to the response of ready that a snapshot is in use. It does not change the status: the node serves.
func staleReadyz(source stale, ready http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ready(w, r)
		if at, is := source.FromSnapshot(); is {
			fmt.Fprintf(w, "from snapshot: the API server has not returned every list since the start; its state of %s is in use\n", at.UTC().Format(time.RFC3339))
		}
	}
}

// removeState removes the speakers' files from a directory, and nothing else.
func removeState(dir string, log *slog.Logger) error {
	if dir == "" {
		return nil
	}
	var errs []error
	for prefix, what := range map[string]string{
		snapshotPrefix: "delete snapshot", calicoPrefix: "delete file", unreachablePrefix: "delete file",
	} {
		files, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
		errs = append(errs, err)
		for _, file := range files {
			if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
				continue
			}
			log.Info(what, "file", file, "reason", "Cleanup")
		}
	}
	return errors.Join(errs...)
}
