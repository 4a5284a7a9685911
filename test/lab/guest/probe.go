package guest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"

	"github.com/moby/ipvs"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Probe returns nil if this machine's kernel can run a lab, else the reason. It creates a virtual server in a new
// network namespace and reads it back, because the netlink library reports success on a kernel without IPVS.
func Probe() error {
	if os.Geteuid() != 0 {
		return errors.New("probe IPVS: it needs root")
	}
	result := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and with it the namespace.
		runtime.LockOSThread()
		result <- probe()
	}()
	return <-result
}

func probe() error {
	ns, err := netns.New()
	if err != nil {
		return fmt.Errorf("probe IPVS: make a network namespace: %w", err)
	}
	defer ns.Close()
	// The library logs missing features; this function returns them as an error.
	logrus.SetOutput(io.Discard)
	defer logrus.SetOutput(os.Stderr)
	h, err := ipvs.New("")
	if err != nil {
		return fmt.Errorf("probe IPVS: open netlink: %w", err)
	}
	defer h.Close()
	want := &ipvs.Service{
		Address: net.IPv4(192, 0, 2, 1).To4(), Port: 80, Protocol: unix.IPPROTO_TCP,
		SchedName: "mh", AddressFamily: unix.AF_INET, Netmask: 0xffffffff,
	}
	if err := h.NewService(want); err != nil {
		return fmt.Errorf("probe IPVS: create a virtual server: %w", err)
	}
	have, err := h.GetServices()
	if err != nil {
		return fmt.Errorf("probe IPVS: read the virtual server back: %w", err)
	}
	if len(have) != 1 || have[0].Port != want.Port || !have[0].Address.Equal(want.Address) {
		return errors.New("probe IPVS: the virtual server that was created is not there: the kernel has no ip_vs")
	}
	return nil
}
