package rig

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
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

// Main is for TestMain: it runs the tests, and on Ctrl-C closes the open rigs. Under -short it runs none of them.
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
	select {
	case code := <-ended:
		os.Exit(code)
	case <-ctx.Done():
		fmt.Fprintln(os.Stderr, "interrupted: removing the control plane")
		standing.Lock()
		var left []*Rig
		for r := range standing.rigs {
			left = append(left, r)
		}
		standing.Unlock()
		for _, r := range left {
			if err := r.Close(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
		os.Exit(130)
	}
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
		if err := r.Err(); err != nil {
			tb.Error(err)
		}
		if dir := os.Getenv("IRONLB_LAB_LOGS"); dir != "" && tb.Failed() {
			dir = filepath.Join(dir, strings.ReplaceAll(tb.Name(), "/", "-"))
			if err := r.saveLogs(dir); err != nil {
				tb.Error(err)
			}
			tb.Logf("the logs are in %s", dir)
		}
		if err := r.Close(); err != nil {
			tb.Error(err)
		}
	})
	return r
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
