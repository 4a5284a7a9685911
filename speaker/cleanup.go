package speaker

import (
	"context"
	"errors"
	"log/slog"

	"github.com/ironlb/ironlb/speaker/advertise"
	"github.com/ironlb/ironlb/speaker/dataplane"
)

// Cleanup removes IronLB's state, and nothing else, from a node on which no speaker runs any more: retained addresses,
// blackhole routes, and the state of its data plane. Sysctls stay as they are.
//
// It continues after an error. A second call completes what failed in the first one.
func Cleanup(ctx context.Context, node Node, log *slog.Logger) error {
	errs := []error{releaseRetained(node.Retainer, log), advertise.CleanupBlackholes(node.Blackholes, log)}
	errs = append(errs, dataplane.Cleanup(ctx, node.Drivers, log))
	return errors.Join(errs...)
}

// releaseRetained releases the addresses for which the kernel answers on behalf of a replaced speaker.
func releaseRetained(r Retainer, log *slog.Logger) error {
	if r == nil {
		return nil
	}
	retained, err := r.Retained()
	if err != nil {
		return err
	}
	if err := r.Release(retained); err != nil {
		return err
	}
	for _, addr := range sorted(retained) {
		log.Info("release", "address", addr, "reason", "Cleanup")
	}
	return nil
}
