package lab

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Main is for TestMain: it builds one cluster for all tests of a package, prepares it with use, runs the tests, and
// removes the cluster, also on Ctrl-C. Under -short it runs none of them. After a failure, the logs are saved in the
// folder named by IRONLB_LAB_LOGS, if set.
func Main(m *testing.M, cfg Config, use func(context.Context, *Cluster) error) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("left out: needs root and a lab")
		os.Exit(0)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if cfg.Progress == nil {
		cfg.Progress = os.Stderr
	}
	c, err := New(ctx, cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
	ended := make(chan int, 1)
	go func() {
		if err := use(ctx, c); err != nil {
			fmt.Fprintln(os.Stderr, "prepare the lab:", err)
			ended <- 1
			return
		}
		ended <- m.Run()
	}()
	code := 130
	select {
	case code = <-ended:
	case <-ctx.Done():
		fmt.Fprintln(os.Stderr, "interrupted: removing the lab")
	}
	if code != 0 {
		c.keepLogs()
	}
	if err := errors.Join(c.Err(), c.Close()); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// keepLogs saves the logs in the folder named by IRONLB_LAB_LOGS.
func (c *Cluster) keepLogs() {
	dir := os.Getenv("IRONLB_LAB_LOGS")
	if dir == "" {
		return
	}
	dir = filepath.Join(dir, strings.TrimSuffix(filepath.Base(os.Args[0]), ".test"))
	if err := c.SaveLogs(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	fmt.Fprintln(os.Stderr, "the lab's logs are in", dir)
}

// Need fails a test at its start if a part of the lab has ended by itself.
func (c *Cluster) Need(t testing.TB) {
	t.Helper()
	if err := c.Err(); err != nil {
		t.Fatalf("the lab is broken: %v", err)
	}
}
