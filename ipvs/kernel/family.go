package kernel

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

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

// within runs f in the namespace, on a thread that ends with it.
func within(ns netns.NsHandle, f func() error) error {
	if !ns.IsOpen() {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := netns.Set(ns)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}
