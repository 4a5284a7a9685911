package routewatch

import (
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// A change of a subscribed group is reported once, to the caller whose interface it is; what was discarded is not.
func TestChanged(t *testing.T) {
	inSpace(t, func(w *Watch, lo netlink.Link) error {
		changed := func(index int) bool {
			t.Helper()
			is, err := w.Changed(func(m syscall.NetlinkMessage) bool {
				at, ok := Interface(m)
				return ok && at == index
			})
			if err != nil {
				t.Fatal(err)
			}
			return is
		}
		index := lo.Attrs().Index
		if changed(index) {
			t.Error("a change is reported, want none")
		}
		if err := netlink.LinkSetDown(lo); err != nil {
			return err
		}
		if !changed(index) {
			t.Error("no change is reported, want that of lo")
		}
		if changed(index) {
			t.Error("the change is reported twice")
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		if changed(index + 1) {
			t.Error("the change of lo is reported for another interface")
		}
		if err := netlink.LinkSetDown(lo); err != nil {
			return err
		}
		if err := w.Discard(); err != nil {
			return err
		}
		if changed(index) {
			t.Error("a discarded change is reported")
		}
		return nil
	})
}

// Lost notifications count as a change.
func TestLost(t *testing.T) {
	inSpace(t, func(w *Watch, lo netlink.Link) error {
		if err := unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil { // the least that the kernel has
			return err
		}
		for range 20 {
			if err := netlink.LinkSetDown(lo); err != nil {
				return err
			}
			if err := netlink.LinkSetUp(lo); err != nil {
				return err
			}
		}
		changed, err := w.Changed(func(syscall.NetlinkMessage) bool { return false })
		if err == nil && !changed {
			t.Error("no change is reported")
		}
		return err
	})
}

// inSpace calls f in a network namespace of its own, with a watch of its interfaces and the one that is up.
func inSpace(t *testing.T, f func(*Watch, netlink.Link) error) {
	t.Helper()
	s := netspace.New(t)
	s.Must(t, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		w, err := Open(unix.RTNLGRP_LINK)
		if err != nil {
			return err
		}
		defer w.Close()
		return f(w, lo)
	})
}
