package nft_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nft"
)

const (
	vip  = "203.0.113.4"
	vip6 = "2001:db8:4::4"
)

func key(protocol ipvs.Protocol, addr string, port uint16) ipvs.Key {
	return ipvs.Key{Addr: netip.MustParseAddr(addr), Protocol: protocol, Port: port}
}

func of(set ipvs.Set, key ipvs.Key) ipvs.Element { return ipvs.Element{Set: set, Key: key} }

func addr(set ipvs.Set, addr string) ipvs.Element {
	return ipvs.Element{Set: set, Key: ipvs.Key{Addr: netip.MustParseAddr(addr)}}
}

func from(set ipvs.Set, key ipvs.Key, prefix string) ipvs.Element {
	return ipvs.Element{Set: set, Key: key}.From(netip.MustParsePrefix(prefix))
}

func filter(elements ...ipvs.Element) ipvs.Filter {
	f := make(ipvs.Filter)
	for _, e := range elements {
		f[e] = struct{}{}
	}
	return f
}

// plus returns the filter with more elements.
func plus(f ipvs.Filter, elements ...ipvs.Element) ipvs.Filter {
	f = maps.Clone(f)
	maps.Copy(f, filter(elements...))
	return f
}

// web is a Service with one TCP port, policy Cluster, at the virtual addresses of both families.
func web() ipvs.Filter {
	return plus(web4(), addr(ipvs.Addresses, vip6), of(ipvs.Served, key(ipvs.TCP, vip6, 80)), of(ipvs.Masqueraded, key(ipvs.TCP, vip6, 80)))
}

// web4 is the same with only the IPv4 address.
func web4() ipvs.Filter {
	return filter(addr(ipvs.Addresses, vip), of(ipvs.Served, key(ipvs.TCP, vip, 80)), of(ipvs.Masqueraded, key(ipvs.TCP, vip, 80)))
}

// everything has an element of every set in both families.
func everything() ipvs.Filter {
	f := web()
	for _, at := range []struct{ vip, pod, any, pods string }{
		{vip, "198.51.100.2", "0.0.0.0/0", "198.51.100.0/25"}, {vip6, "2001:db8:2::2", "::/0", "2001:db8:2::/48"},
	} {
		f = plus(f, addr(ipvs.Hairpin, at.pod), addr(ipvs.Endpoints, at.pod),
			ipvs.Element{Set: ipvs.Pods}.From(netip.MustParsePrefix(at.pods)),
			ipvs.Element{Set: ipvs.ServiceNetworks}.From(netip.MustParsePrefix(at.any)))
		for _, protocol := range []ipvs.Protocol{ipvs.TCP, ipvs.UDP, ipvs.SCTP} {
			k := key(protocol, at.vip, 53)
			f = plus(f, of(ipvs.Served, k), of(ipvs.Masqueraded, k), of(ipvs.MasqueradedUnlessPod, k), of(ipvs.Restricted, k),
				of(ipvs.Dropped, k), from(ipvs.Allowed, k, at.pods), from(ipvs.Allowed, key(protocol, at.vip, 54), at.any))
		}
	}
	return f
}

// node is a namespace with the filter in it; every call is made inside.
type node struct {
	*netspace.Space
	filter *nft.Filter
	have   *ipvs.Filter // what was applied last, nil if nothing since open
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{Space: netspace.New(t)}
	n.open(t)
	return n
}

// open creates a new filter, as a restart does.
func (n *node) open(t testing.TB) {
	t.Helper()
	n.have = nil
	n.Must(t, func() (err error) {
		n.filter, err = nft.New()
		return err
	})
	t.Cleanup(n.filter.Close)
}

// apply builds the tables if they differ from what was applied last, else it updates them, as the loop does. It returns
// the number of elements written.
func (n *node) apply(t testing.TB, want ipvs.Filter) int {
	t.Helper()
	written := 0
	n.Must(t, func() error {
		intact, err := n.filter.Check(context.Background())
		if err != nil {
			return err
		}
		if intact && n.have != nil {
			written, err = n.filter.Update(context.Background(), ipvs.DiffFilter(*n.have, want))
		} else {
			written, err = n.filter.Build(context.Background(), want)
		}
		return err
	})
	want = maps.Clone(want)
	n.have = &want
	return written
}

func (n *node) wantWritten(t *testing.T, want ipvs.Filter, written int) {
	t.Helper()
	if got := n.apply(t, want); got != written {
		t.Errorf("%d elements were written, want %d", got, written)
	}
}

func (n *node) wantIntact(t *testing.T, want bool) {
	t.Helper()
	n.Must(t, func() error {
		intact, err := n.filter.Check(context.Background())
		if err == nil && intact != want {
			err = fmt.Errorf("Check = %v, want %v", intact, want)
		}
		return err
	})
}

func (n *node) wantListed(t *testing.T, want ipvs.Filter) {
	t.Helper()
	n.Must(t, func() error {
		got, err := n.filter.List(context.Background())
		if changes := ipvs.DiffFilter(got, want); err == nil && len(changes) != 0 {
			err = fmt.Errorf("List lacks or has too much: %v", changes)
		}
		return err
	})
}

// nft runs the program nft as an operator does.
func (n *node) nft(t testing.TB, args ...string) string { return n.run(t, "nft", args...) }

func (n *node) run(t testing.TB, name string, args ...string) string {
	t.Helper()
	var out []byte
	n.Must(t, func() (err error) {
		if out, err = exec.Command(name, args...).CombinedOutput(); err != nil {
			err = fmt.Errorf("%s %v: %w: %s", name, args, err, out)
		}
		return err
	})
	return string(out)
}

// link makes a program of PATH the only one of its name in dir.
func link(t *testing.T, program, dir string) {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, filepath.Join(dir, program)); err != nil {
		t.Fatal(err)
	}
}
