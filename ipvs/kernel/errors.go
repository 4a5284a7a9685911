package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// explain maps the kernel's error number to its general meaning.
func explain(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: give the process CAP_NET_ADMIN in the network namespace: %w", ipvs.ErrPermission, err)
	}
	return err
}

// explainOp maps the error number to its meaning for this op (net/netfilter/ipvs/ip_vs_ctl.c).
func explainOp(op ipvs.Op, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%w: %w", ipvs.ErrNoVirtual, err)
	case errors.Is(err, unix.ENOENT) && op.Real.IsValid():
		return fmt.Errorf("%w: %w", ipvs.ErrNoReal, err)
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: module ip_vs_%s missing: run \"modprobe ip_vs_%[2]s\" on the node: %w",
			ipvs.ErrNoScheduler, op.Settings.Scheduler, err)
	}
	return explain(err)
}
