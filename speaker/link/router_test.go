package link_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/link"
	"github.com/ironlb/ironlb/test/eventually"
)

// TestRouterAdvertisementsKept: a node with a default route from router advertisements keeps it when IPv6 forwarding is
// enabled, and would lose it if only forwarding were set.
func TestRouterAdvertisementsKept(t *testing.T) {
	node, router := netspace.New(t), netspace.New(t)
	netspace.Join(t, router, "eth0", "2001:db8:1::1/64", node, "eth0", "2001:db8:1::2/64")
	routes := func() string { return ip(t, node, "-6", "route", "show", "default") }
	advertise := func() {
		t.Helper()
		fd := icmp6(t, router)
		// RFC 4861, section 4.2: hop limit 64, a default router for half an hour.
		message := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0}
		all := [16]byte{0xff, 0x02, 15: 1}
		eventually.Nil(t, 10*time.Second, "the node's default route from a router", func(context.Context) error {
			have := routes()
			if strings.Contains(have, "proto ra") {
				return nil
			}
			_ = unix.Sendto(fd, message, 0, &unix.SockaddrInet6{Addr: all}) // repeated: a new interface is not ready at once
			return fmt.Errorf("it has %q", have)
		})
	}
	set := func(want []link.Sysctl) (changes []link.Change) {
		t.Helper()
		node.Must(t, func() (err error) {
			changes, err = link.SetSysctls(want)
			return err
		})
		return changes
	}
	wanted := func() (sysctls []link.Sysctl) {
		t.Helper()
		node.Must(t, func() (err error) {
			sysctls, err = link.Wanted(link.Needs{IPv6: true})
			return err
		})
		return sysctls
	}

	advertise()
	set([]link.Sysctl{{Key: "net.ipv6.conf.all.forwarding", Value: "1"}})
	if got := routes(); got != "" {
		t.Errorf("with forwarding alone the default route is still there: this test proves nothing: %q", got)
	}
	set([]link.Sysctl{{Key: "net.ipv6.conf.all.forwarding", Value: "0"}})

	advertise()
	set(wanted())
	if got := routes(); !strings.Contains(got, "proto ra") {
		t.Errorf("the default route is gone: %q", got)
	}
	node.Must(t, func() error {
		value, err := os.ReadFile("/proc/sys/net/ipv6/conf/eth0/accept_ra")
		if string(value) != "2\n" {
			t.Errorf("accept_ra is %q", value)
		}
		return err
	})
	if changes := set(wanted()); len(changes) != 0 {
		t.Errorf("second time changes %v", changes)
	}
}

// TestInterfaceWithDots: sysctl(8) writes a dot in a name as a slash.
func TestInterfaceWithDots(t *testing.T) {
	node := netspace.New(t)
	netspace.Join(t, netspace.New(t), "eth0", "192.0.2.2/24", node, "eth0.7", "192.0.2.1/24")
	node.Must(t, func() error {
		changes, err := link.SetSysctls([]link.Sysctl{{Key: "net.ipv6.conf.eth0/7.accept_ra", Value: "2"}})
		if len(changes) != 1 {
			t.Errorf("changes %v, want one", changes)
		}
		return err
	})
}
