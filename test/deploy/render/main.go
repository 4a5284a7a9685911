// Command render writes the files generated from the Helm chart: the plain manifests in deploy/, and the chart's
// README.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/ironlb/ironlb/test/deploy/chart"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	c, err := chart.Open(ctx, os.Stderr)
	if err != nil {
		return err
	}
	files, err := c.Generated(ctx)
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(c.Root, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write what is generated from the chart: %w", err)
		}
	}
	return nil
}
