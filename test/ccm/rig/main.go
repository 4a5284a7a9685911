package rig

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// standing are the open rigs.
var standing = struct {
	sync.Mutex
	rigs map[*Rig]bool
}{rigs: map[*Rig]bool{}}

func setUp(r *Rig) {
	standing.Lock()
	defer standing.Unlock()
	standing.rigs[r] = true
}

func gone(r *Rig) {
	standing.Lock()
	defer standing.Unlock()
	delete(standing.rigs, r)
}

// closeAll closes the open rigs.
func closeAll() error {
	standing.Lock()
	left := slices.Collect(maps.Keys(standing.rigs))
	standing.Unlock()
	var errs []error
	for _, r := range left {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// Main is for TestMain: it runs the tests, and at the end or on Ctrl-C closes the open rigs. Under -short it runs none
// of them.
func Main(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("left out: needs root and a control plane")
		os.Exit(0)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ended := make(chan int, 1)
	go func() { ended <- m.Run() }()
	code := 130
	select {
	case code = <-ended:
	case <-ctx.Done():
		fmt.Fprintln(os.Stderr, "interrupted: removing the control plane")
	}
	if err := closeAll(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// Start returns a rig that ends with the test. After a failure, the logs are saved in the folder named by
// IRONLB_LAB_LOGS, if set.
func Start(tb testing.TB, cfg Config) *Rig {
	tb.Helper()
	r, err := New(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		r.check(tb)
		if err := r.Close(); err != nil {
			tb.Error(err)
		}
	})
	return r
}

// shared is the rig of Use: free, or in use by a test.
var shared = make(chan *Rig, 1)

func init() { shared <- nil }

// Use returns the rig that the tests of the package share, one after the other. At the end of the test it is Reset: its
// CCMs end, and the cluster is again as after the start. If that fails, the test fails, and the next test gets a new
// rig. Logs are saved as by Start.
func Use(tb testing.TB) *Rig {
	tb.Helper()
	var r *Rig
	select {
	case r = <-shared:
	default:
		tb.Fatal("another test uses the rig")
	}
	if r == nil {
		var err error
		if r, err = New(context.WithoutCancel(tb.Context()), Config{}); err != nil {
			shared <- nil
			tb.Fatal(err)
		}
	}
	tb.Cleanup(func() {
		ok := r.check(tb)
		if ok {
			if err := r.Reset(context.WithoutCancel(tb.Context())); err != nil {
				tb.Error(err)
				ok = false
			}
		}
		if !ok {
			if err := r.Close(); err != nil {
				tb.Error(err)
			}
			r = nil
		}
		shared <- r
	})
	return r
}

// check fails the test if the control plane has failed, and saves the logs of a failed test.
func (r *Rig) check(tb testing.TB) (ok bool) {
	tb.Helper()
	err := r.Err()
	if err != nil {
		tb.Error(err)
	}
	if dir := os.Getenv("IRONLB_LAB_LOGS"); dir != "" && tb.Failed() {
		dir = filepath.Join(dir, strings.ReplaceAll(tb.Name(), "/", "-"))
		if err := r.saveLogs(dir); err != nil {
			tb.Error(err)
		}
		tb.Logf("the logs are in %s", dir)
	}
	return err == nil
}

func (r *Rig) saveLogs(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("save the logs: %w", err)
	}
	for _, pattern := range []string{"*.log", "controlplane/*.log"} {
		logs, err := filepath.Glob(filepath.Join(r.Dir, pattern))
		if err != nil {
			return err
		}
		for _, log := range logs {
			data, err := os.ReadFile(log)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, filepath.Base(log)), data, 0o644)
			}
			if err != nil {
				return fmt.Errorf("save the logs: %w", err)
			}
		}
	}
	return nil
}
