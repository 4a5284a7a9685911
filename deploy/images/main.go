// Command images builds OCI images from specs, without a daemon and without an image registry, and releases with them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

var errUsage = errors.New(`use:
  images build [flags] SPEC...            build images into a folder
  images check [-cold] [flags] SPEC...    build twice and compare; flags are those of build
  images push -registry REGISTRY [NAME...]
  images release -tag VERSION [flags] SPEC...
                                          write everything that is published into a folder
  images dockerfile SPEC...               print a Dockerfile
  images doc [flags] SPEC...              print packages and sizes as Markdown
"images build -h", "images push -h" and "images release -h" list the flags`)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "images:", err)
		stop()
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	log := &progress{w: os.Stderr}
	switch args[0] {
	case "build":
		return build(ctx, args[1:], log)
	case "check":
		return check(ctx, args[1:], log)
	case "push":
		return push(ctx, args[1:], log)
	case "release":
		return release(ctx, args[1:], os.Getenv("COSIGN_PASSWORD"), log)
	case "dockerfile":
		specs, err := readSpecs(args[1:])
		if err != nil {
			return err
		}
		text, err := dockerfile(".", specs)
		if err != nil {
			return err
		}
		_, err = os.Stdout.WriteString(text)
		return err
	case "doc":
		return doc(args[1:])
	}
	return errUsage
}
