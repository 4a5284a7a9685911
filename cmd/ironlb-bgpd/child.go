package main

import (
	"context"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/ironlb/ironlb/speaker/bgp"
	"github.com/ironlb/ironlb/speaker/bgp/gobgp"
	"github.com/ironlb/ironlb/speaker/routes"
)

// runChild runs the child. Its parent ends it: signals to the process group are handled by the parent.
func runChild(ctx context.Context, log *slog.Logger) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	return bgp.ServeFile(ctx, bgp.ChildFile, log, func(report func(routes.Session)) bgp.Driver {
		return gobgp.New(gobgp.Options{Log: log, Report: report})
	})
}
