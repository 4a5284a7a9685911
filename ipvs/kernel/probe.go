package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// probeKey is the temporary virtual server of Probe, on the network address of a documentation range (RFC 5737): no
// Service can have it. kube-proxy tests with port 20000 of the same address; that one is not IronLB's.
var probeKey = ipvs.Key{Addr: netip.AddrFrom4([4]byte{198, 51, 100, 0}), Protocol: ipvs.TCP, Port: 7473}

// Probe checks whether this namespace supports a virtual server with the scheduler, by adding one, reading it back and
// deleting it. Reading back shows that the kernel has really accepted it (ipvs.md 1.5.2).
//
// The error wraps [ipvs.ErrNoModule], [ipvs.ErrNoScheduler] or [ipvs.ErrPermission] and includes the remediation.
func (k *Kernel) Probe(scheduler string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	settings := ipvs.Settings{Scheduler: scheduler}
	if err := k.one(ipvs.Op{Action: ipvs.AddVirtual, Virtual: probeKey, Settings: settings}); err != nil {
		return fmt.Errorf("probe IPVS: %w", err)
	}
	listed, err := k.get(probeKey)
	deleteErr := k.one(ipvs.Op{Action: ipvs.DeleteVirtual, Virtual: probeKey})
	if err != nil {
		return fmt.Errorf("probe IPVS: read back %v: %w", probeKey, err)
	}
	if listed.Scheduler != scheduler {
		return fmt.Errorf("probe IPVS: %w: wrote %v %s, read back %v", ipvs.ErrNoModule, probeKey, scheduler, listed)
	}
	if deleteErr != nil && !errors.Is(deleteErr, ipvs.ErrNoVirtual) {
		return fmt.Errorf("probe IPVS: %w", deleteErr)
	}
	return nil
}

// findFamily returns the number of the generic netlink family of IPVS, and loads the module if possible.
func findFamily() (uint16, error) {
	family, err := netlink.GenlFamilyGet("IPVS")
	if err == nil {
		return family.ID, nil
	}
	out, loadErr := exec.Command("modprobe", "ip_vs").CombinedOutput()
	if family, err = netlink.GenlFamilyGet("IPVS"); err == nil {
		return family.ID, nil
	}
	if !errors.Is(err, unix.ENOENT) {
		return 0, fmt.Errorf("get the netlink family of IPVS: %w", err)
	}
	why := "modprobe found it, yet the family is not there"
	if loadErr != nil {
		why = strings.TrimSpace(loadErr.Error() + ": " + strings.TrimSpace(string(out)))
	}
	return 0, fmt.Errorf("%w: module ip_vs missing: run \"modprobe ip_vs\" on the node, or install the kernel package that has it (%s)",
		ipvs.ErrNoModule, why)
}

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
