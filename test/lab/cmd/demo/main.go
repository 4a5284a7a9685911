// demo builds the lab's programs, which takes minutes the first time, and then runs one of them: lab.
//
//	demo ARGUMENT...    lab ARGUMENT...
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/ironlb/ironlb/test/lab/tools"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	build, err := tools.New(ctx, os.Stdout)
	if err != nil {
		return err
	}
	pinned := slices.Concat([]string{"kubectl"}, tools.ControlPlane)
	own := slices.Concat([]string{"test/lab/cmd/lab"}, tools.LabPrograms, tools.ProductPrograms)
	if err := build.Programs(ctx, pinned, own); err != nil {
		return err
	}
	lab := build.Path("lab")
	return syscall.Exec(lab, slices.Concat([]string{lab}, os.Args[1:]), os.Environ())
}
