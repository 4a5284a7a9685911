package routewatch

import (
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A change of a subscribed group is reported once, to the caller whose interface it is; what was discarded is not.
func TestChanged(t *testing.T) {
	runtime.LockOSThread() // and not unlocked, so the thread ends with its network namespace
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	w, err := Open(unix.RTNLGRP_LINK)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
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
	set := func(change func(netlink.Link) error) {
		t.Helper()
		if err := change(lo); err != nil {
			t.Fatal(err)
		}
	}
	index := lo.Attrs().Index
	if changed(index) {
		t.Error("a change is reported, want none")
	}
	set(netlink.LinkSetUp)
	if !changed(index) {
		t.Error("no change is reported, want that of lo")
	}
	if changed(index) {
		t.Error("the change is reported twice")
	}
	set(netlink.LinkSetDown)
	if changed(index + 1) {
		t.Error("the change of lo is reported for another interface")
	}
	set(netlink.LinkSetUp)
	if err := w.Discard(); err != nil {
		t.Fatal(err)
	}
	if changed(index) {
		t.Error("a discarded change is reported")
	}
}

// Lost notifications count as a change.
func TestLost(t *testing.T) {
	runtime.LockOSThread()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	w, err := Open(unix.RTNLGRP_LINK)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil { // the least that the kernel has
		t.Fatal(err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := netlink.LinkSetUp(lo); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetDown(lo); err != nil {
			t.Fatal(err)
		}
	}
	changed, err := w.Changed(func(syscall.NetlinkMessage) bool { return false })
	if err != nil || !changed {
		t.Errorf("changed %v, %v, want true", changed, err)
	}
}
