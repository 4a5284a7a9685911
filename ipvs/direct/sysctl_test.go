package direct_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/direct"
)

// readOnly calls f on a thread for which /proc/sys is read-only, as in a container without privileges.
func (n *node) readOnly(f func() error) error {
	return n.Do(func() error { // on a thread of its own, which ends afterwards
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			return err
		}
		for _, m := range []struct {
			source, target string
			flags          uintptr
		}{
			{"", "/", unix.MS_REC | unix.MS_PRIVATE},
			{"/proc/sys", "/proc/sys", unix.MS_BIND},
			{"", "/proc/sys", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY},
		} {
			if err := unix.Mount(m.source, m.target, "", m.flags, ""); err != nil {
				return fmt.Errorf("mount %s: %w", m.target, err)
			}
		}
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); !errors.Is(err, unix.EROFS) {
			return fmt.Errorf("write a sysctl: %v, want %v", err, unix.EROFS)
		}
		return f()
	})
}

func TestReadOnlySysctls(t *testing.T) {
	n := newNode(t, 1)
	slots := spreadOver(0, 1)
	n.want.Virtuals[keys()[0]] = ipvs.Directed{Slots: slots, Before: slots}
	n.Sysctl(t, "net.ipv4.conf.default.rp_filter", "1")
	n.Sysctl(t, "net.ipv4.conf.default.forwarding", "0")
	if err := n.readOnly(func() error { return n.driver.Apply(context.Background(), n.want, nil) }); err != nil {
		t.Fatal(err)
	}
	if !n.check(t) {
		t.Error("not intact")
	}
}

// A node whose new interfaces have no IPv6, and that cannot change that, directs IPv4 only, until they have.
func TestIPv4Only(t *testing.T) {
	n := newNode(t, 1)
	n.Sysctl(t, "net.ipv6.conf.default.disable_ipv6", "1")
	four, six := virtual(0), virtual(1)
	n.want.Virtuals[four] = ipvs.Directed{Slots: spreadOver(0, 1)}
	probe := func() error { return n.driver.Probe(context.Background(), n.want) }
	apply := func() error { return n.driver.Apply(context.Background(), n.want, nil) }
	wantIPv4 := func(what string, err error) {
		t.Helper()
		var problem *direct.Problem
		if !errors.As(err, &problem) || problem.Reason != direct.NoIPv6 || !errors.Is(err, ipvs.ErrNoTunnelIPv6) || errors.Is(err, ipvs.ErrNoTunnel) {
			t.Errorf("%s: error %v, want reason %s", what, err, direct.NoIPv6)
		}
	}
	for _, what := range []string{"probe", "another probe"} {
		wantIPv4(what, n.readOnly(probe))
	}
	if err := n.readOnly(apply); err != nil {
		t.Errorf("IPv4: %v", err)
	}
	intact := func() (is bool) {
		t.Helper()
		if err := n.readOnly(func() (err error) { is, err = n.driver.Check(context.Background()); return err }); err != nil {
			t.Fatal(err)
		}
		return is
	}
	if !intact() {
		t.Error("not intact")
	}
	n.wantPeers(t)
	wantIPv4("probe with tunnels", n.readOnly(probe))
	n.want.Virtuals[six] = ipvs.Directed{Slots: spreadOver(1, 0)}
	wantIPv4("IPv6", n.readOnly(func() error { return n.driver.Apply(context.Background(), n.want, []ipvs.Key{six}) }))
	delete(n.want.Virtuals, six)
	n.wantPeers(t) // that of IPv4 is directed

	n.Sysctl(t, "net.ipv6.conf.default.disable_ipv6", "0")
	if intact() {
		t.Error("intact although the tunnels can have IPv6")
	}
	if err := n.readOnly(probe); err != nil {
		t.Errorf("probe: %v", err)
	}
	n.want.Virtuals[six] = ipvs.Directed{Slots: spreadOver(1, 0)}
	if err := n.readOnly(apply); err != nil || !intact() {
		t.Errorf("IPv6: %v, intact %v", err, intact())
	}
	n.wantPeers(t)
}
