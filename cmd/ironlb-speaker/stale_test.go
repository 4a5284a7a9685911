package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

type staleSince time.Time

func (s staleSince) FromSnapshot() (time.Time, bool) { return time.Time(s), !time.Time(s).IsZero() }

// A snapshot in use is reported on /readyz, whose status stays.
func TestSnapshotAge(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, since := range []staleSince{staleSince(at), {}} {
		_, is := since.FromSnapshot()
		for _, status := range []int{http.StatusOK, http.StatusServiceUnavailable} {
			w := httptest.NewRecorder()
			staleReadyz(since, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status); fmt.Fprintln(w, "why") })(w, nil)
			if text := w.Body.String(); w.Code != status || !strings.HasPrefix(text, "why\n") || is != strings.Contains(text, "from snapshot") || is != strings.Contains(text, "2026-01-02T03:04:05Z") {
				t.Errorf("stale %v: %d %s", is, w.Code, text)
			}
		}
	}
}

// Each node of a machine has its own file, and cleanup removes those and unfinished ones.
func TestSnapshotFiles(t *testing.T) {
	dir := t.TempDir()
	o := options{nodeName: "a"}
	if path := o.stateFile(snapshotPrefix); path != "" {
		t.Errorf("without a directory %s", path)
	}
	if err := removeState("", nil); err != nil {
		t.Error(err)
	}
	o.config.StateDir = dir
	for _, name := range []string{"a", "b.example"} {
		o.nodeName = name
		snapshot, record := o.stateFile(snapshotPrefix), o.stateFile(unreachablePrefix)
		for _, file := range []string{snapshot, snapshot + ".new", record, record + ".next", filepath.Join(dir, "other")} {
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	log := &bytes.Buffer{}
	if err := removeState(dir, slog.New(slog.NewTextHandler(log, nil))); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "other" || strings.Count(log.String(), "delete snapshot") != 4 {
		t.Errorf("left are %v, %v; log:\n%s", left, err, log)
	}
}
