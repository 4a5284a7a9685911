package link_test

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/link"
	"github.com/ironlb/ironlb/test/eventually"
)

// reaches reports whether a host resolves and reaches an address.
func reaches(t *testing.T, host *netspace.Space, addr netip.Addr) bool {
	t.Helper()
	found := false
	host.Must(t, func() error {
		_ = exec.Command("ip", "neigh", "flush", "all").Run()
		found = exec.Command("ping", "-c", "1", "-W", "2", addr.String()).Run() == nil
		return nil
	})
	return found
}

// retain calls Retain on a thread in the node's network namespace, for its sysctls.
func retain(t *testing.T, node *netspace.Space, l *link.Link, lifetime time.Duration, addr netip.Addr, interfaces ...string) (err error) {
	t.Helper()
	node.Must(t, func() error {
		err = l.Retain(map[netip.Addr][]string{addr: interfaces}, lifetime)
		return nil
	})
	return err
}

// The kernel answers for a retained address until its release or the end of its lifetime, and the local route stays.
func TestRetain(t *testing.T) {
	node, host := netspace.New(t), netspace.New(t)
	netspace.Join(t, node, "eth0", "203.0.113.1/24", host, "eth0", "203.0.113.2/24")
	node.Address(t, "eth0", "2001:db8::1/64")
	host.Address(t, "eth0", "2001:db8::2/64")
	ip(t, node, "link", "set", "lo", "up")
	node.Sysctl(t, "net/ipv4/conf/all/arp_ignore", "1")
	l := open(t, node)
	for _, addr := range []netip.Addr{vip, vip6} {
		wantChange(t, l.Add, addr, true)
		if reaches(t, host, addr) {
			t.Errorf("%v is answered for before", addr)
		}
		if err := retain(t, node, l, 30*time.Second, addr, "eth0"); err != nil {
			t.Fatal(err)
		}
	}
	again := open(t, node) // the next process
	retained, err := again.Retained()
	if err != nil || len(retained) != 2 {
		t.Errorf("retained %v, %v", retained, err)
	}
	if ours, others, err := again.List(); err != nil || len(ours) != 2 || has(others, vip) || has(others, vip6) {
		t.Errorf("ours %v, others %v, %v", ours, others, err)
	}
	if host, err := again.HostAddresses(); err != nil || len(host) != 2 {
		t.Errorf("addresses of the node: %v, %v", host, err)
	}
	for _, addr := range []netip.Addr{vip, vip6} {
		if !reaches(t, host, addr) {
			t.Errorf("%v is not answered for", addr)
		}
		if err := again.Release(map[netip.Addr]struct{}{addr: {}}); err != nil {
			t.Fatal(err)
		}
		if reaches(t, host, addr) {
			t.Errorf("%v is answered for after its release", addr)
		}
		if err := again.Release(map[netip.Addr]struct{}{addr: {}}); err != nil {
			t.Errorf("released twice: %v", err)
		}
	}
	wantList(t, l, vip, vip6)
	// It expires.
	if err := retain(t, node, l, time.Second, vip, "eth0"); err != nil {
		t.Fatal(err)
	}
	eventually.Nil(t, 20*time.Second, "the end of the retained address", func(context.Context) error {
		retained, err := l.Retained()
		if err != nil {
			t.Fatal(err)
		}
		return eventually.Unless(len(retained) == 0, "%v are retained", retained)
	})
	wantList(t, l, vip, vip6)
	// All or nothing.
	if err := retain(t, node, l, 30*time.Second, vip, "eth0", "eth9"); err == nil {
		t.Error("no error for an interface that is not there")
	}
	if retained, err := l.Retained(); err != nil || len(retained) != 0 {
		t.Errorf("retained %v, %v", retained, err)
	}
}

// Another program's address stays untouched, and an interface whose kernel would not answer is reported.
func TestRetainRefuses(t *testing.T) {
	node := netspace.New(t)
	ip(t, node, "link", "add", "eth0", "type", "veth", "peer", "name", "peer0")
	l := open(t, node)
	wantChange(t, l.Add, vip, true)
	ip(t, node, "address", "add", vip.String()+"/32", "dev", "eth0")
	if err := retain(t, node, l, 30*time.Second, vip, "eth0"); !errors.Is(err, link.ErrForeign) {
		t.Errorf("error %v", err)
	}
	if out := ip(t, node, "-o", "address", "show", "to", vip.String()); !strings.Contains(out, "valid_lft forever") {
		t.Errorf("it has now %s", out)
	}
	ip(t, node, "address", "del", vip.String()+"/32", "dev", "eth0")
	node.Sysctl(t, "net/ipv4/conf/eth0/arp_ignore", "2")
	if err := retain(t, node, l, 30*time.Second, vip, "eth0"); err == nil || !strings.Contains(err.Error(), "arp_ignore of eth0 is 2: set it to 0 or 1") {
		t.Errorf("error %v", err)
	}
	node.Sysctl(t, "net/ipv4/conf/eth0/arp_ignore", "0")
	node.Sysctl(t, "net/ipv4/conf/all/arp_ignore", "2") // the greater value applies
	err := retain(t, node, l, 30*time.Second, vip, "eth0")
	if err == nil || !strings.Contains(err.Error(), "arp_ignore of all is 2: set it to 0 or 1") {
		t.Errorf("error %v, want one that names arp_ignore of all", err)
	}
	node.Sysctl(t, "net/ipv4/conf/all/arp_ignore", "1")
	for range 2 { // the second call prolongs it
		if err := retain(t, node, l, 30*time.Second, vip, "eth0"); err != nil {
			t.Error(err)
		}
	}
	if err := l.ReleaseAll(); err != nil {
		t.Error(err)
	}
	if retained, err := l.Retained(); err != nil || len(retained) != 0 {
		t.Errorf("retained %v, %v", retained, err)
	}
}

// The node's own address with a lifetime, as from DHCP, is not retained.
func TestRetainedIsNotTheNodes(t *testing.T) {
	node := netspace.New(t)
	ip(t, node, "link", "add", "eth0", "type", "veth", "peer", "name", "peer0")
	ip(t, node, "address", "add", "203.0.113.7/32", "dev", "eth0", "valid_lft", "60", "preferred_lft", "0")
	l := open(t, node)
	addr := netip.MustParseAddr("203.0.113.7")
	if retained, err := l.Retained(); err != nil || len(retained) != 0 {
		t.Errorf("retained %v, %v", retained, err)
	}
	if _, others, err := l.List(); err != nil || !has(others, addr) {
		t.Errorf("others %v, %v", others, err)
	}
}

func has[K comparable, V any](m map[K]V, key K) bool { _, ok := m[key]; return ok }
