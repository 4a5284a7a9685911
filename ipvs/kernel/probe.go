package kernel

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"strings"

	mobyipvs "github.com/moby/ipvs"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// probeKey is the throw-away virtual server of Probe, on the network address of a documentation range (RFC 5737): no
// Service can have it. kube-proxy tests with port 20000 of the same address; that one is not ours.
var probeKey = ipvs.Key{Addr: netip.AddrFrom4([4]byte{198, 51, 100, 0}), Protocol: ipvs.TCP, Port: 7473}

// Probe finds out whether this namespace can hold a virtual server with the scheduler, by adding one, reading it back
// and deleting it. Reading back is needed: the library reports success where the kernel has no IPVS (moby/ipvs#27).
//
// The error wraps [ipvs.ErrNoModule], [ipvs.ErrNoScheduler] or [ipvs.ErrPermission] and says how to mend it.
func (k *Kernel) Probe(scheduler string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	settings := ipvs.Settings{Scheduler: scheduler}
	if err := k.apply(ipvs.Op{Action: ipvs.AddVirtual, Virtual: probeKey, Settings: settings}); err != nil {
		return fmt.Errorf("probe IPVS: %w", err)
	}
	listed, err := k.handle.GetService(service(probeKey, settings))
	deleteErr := k.apply(ipvs.Op{Action: ipvs.DeleteVirtual, Virtual: probeKey})
	if err != nil {
		return fmt.Errorf("probe IPVS: read back %v: %w", probeKey, explain(err))
	}
	if key, ok := keyOf(listed); !ok || key != probeKey || listed.SchedName != scheduler {
		return fmt.Errorf("probe IPVS: %w: wrote %v %s, read back %v %s",
			ipvs.ErrNoModule, probeKey, scheduler, key, listed.SchedName)
	}
	if deleteErr != nil {
		return fmt.Errorf("probe IPVS: %w", deleteErr)
	}
	return nil
}

// findFamily makes sure that the kernel has the generic netlink family of IPVS, loading the module if it can.
//
// The library looks it up once per process and never again, so it must not be asked before the family is there.
func findFamily() error {
	_, err := netlink.GenlFamilyGet("IPVS")
	if err == nil {
		return nil
	}
	out, loadErr := exec.Command("modprobe", "ip_vs").CombinedOutput()
	if _, err = netlink.GenlFamilyGet("IPVS"); err == nil {
		return nil
	}
	if !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("look up the netlink family of IPVS: %w", err)
	}
	why := "modprobe found it, yet the family is not there"
	if loadErr != nil {
		why = strings.TrimSpace(loadErr.Error() + ": " + strings.TrimSpace(string(out)))
	}
	return fmt.Errorf("%w: module ip_vs missing: run \"modprobe ip_vs\" on the node, or install the kernel package that has it (%s)",
		ipvs.ErrNoModule, why)
}

// newHandle opens the library's handle and keeps quiet what the library logs about a modprobe that is no longer needed.
func newHandle(path string) (*mobyipvs.Handle, error) {
	logger := logrus.StandardLogger()
	before := logger.Out
	logger.SetOutput(io.Discard)
	defer logger.SetOutput(before)
	return mobyipvs.New(path)
}

// explain gives the kernel's error number the meaning that it has for every request.
func explain(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: give the process CAP_NET_ADMIN in the network namespace: %w", ipvs.ErrPermission, err)
	}
	return err
}

// explainOp gives the error number the meaning that it has for this op (net/netfilter/ipvs/ip_vs_ctl.c).
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
