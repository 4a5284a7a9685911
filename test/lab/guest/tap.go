package guest

import (
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Link is a network card of the guest, on a network of this machine.
type Link struct {
	Name      string   // in the guest
	MAC       string   // empty: any
	NetNS     string   // name of the network namespace; empty: the caller's
	Bridge    string   // bridge there
	Tap       string   // name of the guest's port on it; at most 15 characters
	Addresses []string // the guest's own, in CIDR form
}

// openTap creates the guest's port and returns its file. The kernel removes the port with its last open file, so a
// killed guest leaves nothing behind.
func openTap(l Link) (*os.File, error) {
	type result struct {
		f   *os.File
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, because it is in another namespace
		f, err := openTapHere(l)
		done <- result{f, err}
	}()
	r := <-done
	if r.err != nil {
		return nil, fmt.Errorf("join the guest to bridge %s in namespace %q: %w", l.Bridge, l.NetNS, r.err)
	}
	return r.f, nil
}

func openTapHere(l Link) (*os.File, error) {
	if l.NetNS != "" {
		ns, err := netns.GetFromName(l.NetNS)
		if err != nil {
			return nil, err
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			return nil, err
		}
	}
	bridge, err := netlink.LinkByName(l.Bridge)
	if err != nil {
		return nil, err
	}
	tap := &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: l.Tap}, Mode: netlink.TUNTAP_MODE_TAP,
		Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR, NonPersist: true, Queues: 1,
	}
	if err := netlink.LinkAdd(tap); err != nil {
		return nil, fmt.Errorf("make tap %s (is /dev/net/tun there?): %w", l.Tap, err)
	}
	f := tap.Fds[0]
	if err := netlink.LinkSetMaster(tap, bridge); err != nil {
		f.Close()
		return nil, err
	}
	if err := netlink.LinkSetUp(tap); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
