// Package leastprivilege tests that every privilege in the manifests of deploy/ is needed. It removes each capability
// and each RBAC rule, one at a time, and expects a check of visible behaviour to fail.
package leastprivilege

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"
)

var (
	labs = flag.Int("labs", 3, "labs that work at the same time")
	only = flag.String("right", "", "remove only the rights whose name contains this text")
	file = flag.String("table", "", "write the table of results to this file, as Markdown")

	root     string
	fixtures []*fixture
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	var err error
	if root, err = filepath.Abs("../../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if testing.Short() {
		fmt.Println("left out: needs root and a lab")
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	fixtures = make([]*fixture, *labs)
	group, gctx := errgroup.WithContext(ctx)
	for i := range fixtures {
		group.Go(func() (err error) {
			fixtures[i], err = newFixture(gctx)
			return err
		})
	}
	code := 1
	if err := group.Wait(); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
	} else {
		ended := make(chan int, 1)
		go func() { ended <- m.Run() }()
		select {
		case code = <-ended:
		case <-ctx.Done():
			fmt.Fprintln(os.Stderr, "interrupted: removing the labs")
		}
	}
	var errs []error
	for _, f := range fixtures {
		if f != nil {
			errs = append(errs, f.close())
		}
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		return max(code, 1)
	}
	return code
}
