// Package netspace creates network namespaces for the tests of the drivers: a client, a node and a Pod on one machine.
//
// It needs root. Everything is removed when the test ends, and when the test process dies.
package netspace

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Space is a network namespace.
type Space struct {
	NS     netns.NsHandle
	Handle *netlink.Handle
}

// New creates a namespace with its loopback interface up. It skips the test in short mode.
func New(t testing.TB) *Space {
	t.Helper()
	if testing.Short() {
		t.Skip("capability: root, to make network namespaces (left out in short mode)")
	}
	s := &Space{NS: newNamespace(t)}
	handle, err := netlink.NewHandleAt(s.NS, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(handle.Close)
	s.Handle = handle
	// Link-local addresses are usable at once, not after two seconds: without one a router resolves no neighbors.
	s.Sysctl(t, "net/ipv6/conf/default/accept_dad", "0")
	s.up(t, "lo")
	return s
}

func newNamespace(t testing.TB) netns.NsHandle {
	t.Helper()
	var ns netns.NsHandle
	err := onThread(func() (err error) {
		ns, err = netns.New()
		return err
	})
	if err != nil {
		t.Fatalf("make a network namespace (root?): %v", err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// errLeft is the error of an f that did not return: it called the test's Fatal.
var errLeft = errors.New("the test was ended in the namespace")

// onThread runs f on a separate thread that ends with it, so that f may change namespaces.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := errLeft
		defer func() { result <- err }()
		err = f()
	}()
	return <-result
}

// Do runs f in the namespace and returns its error. Sockets and processes that f creates belong to the namespace; f
// must not start goroutines that create any. The test's Fatal ends only f; Must then ends the test.
func (s *Space) Do(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(s.NS); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return f()
	})
}

// Must is Do, and ends the test on an error.
func (s *Space) Must(t testing.TB, f func() error) {
	t.Helper()
	if err := s.Do(f); err != nil {
		t.Fatal(err)
	}
}

// Join connects two namespaces by a veth pair; each end is up and has its address ("192.0.2.1/24").
func Join(t testing.TB, a *Space, aName, aAddr string, b *Space, bName, bAddr string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = aName
	attrs.Namespace = netlink.NsFd(int(a.NS))
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: bName, PeerNamespace: netlink.NsFd(int(b.NS))}
	if err := a.Handle.LinkAdd(pair); err != nil {
		t.Fatalf("add veth %s to %s: %v", aName, bName, err)
	}
	a.Address(t, aName, aAddr)
	b.Address(t, bName, bAddr)
	a.up(t, aName)
	b.up(t, bName)
	a.waitCarrier(t, aName)
	b.waitCarrier(t, bName)
}

// carrierPatience is the timeout of the wait for a carrier, also in a guest that gets little time.
const carrierPatience = time.Minute

// waitCarrier waits until the kernel has detected the carrier, which is asynchronous: earlier packets are lost.
func (s *Space) waitCarrier(t testing.TB, name string) {
	t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for deadline := time.After(carrierPatience); s.link(t, name).Attrs().OperState != netlink.OperUp; {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("%s has no carrier", name)
		}
	}
}

// Address adds an address to an interface.
func (s *Space) Address(t testing.TB, name, addr string) {
	t.Helper()
	parsed, err := netlink.ParseAddr(addr)
	if err != nil {
		t.Fatal(err)
	}
	if parsed.IP.To4() == nil {
		parsed.Flags = unix.IFA_F_NODAD // usable at once, not after a second
	}
	link := s.link(t, name)
	if err := s.Handle.AddrAdd(link, parsed); err != nil {
		t.Fatalf("add %s to %s: %v", addr, name, err)
	}
	if parsed.IP.To4() == nil && link.Attrs().Flags&net.FlagUp != 0 {
		s.waitLocal(t, parsed.IP)
	}
}

// waitLocal waits until an IPv6 address is in use: the kernel makes it local asynchronously.
func (s *Space) waitLocal(t testing.TB, addr net.IP) {
	t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for deadline := time.After(patience); ; {
		routes, err := s.Handle.RouteGetWithOptions(addr, &netlink.RouteGetOptions{FIBMatch: true})
		if err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL && routes[0].Protocol == unix.RTPROT_KERNEL {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("%v is not local: %v, %v", addr, routes, err)
		}
	}
}

// Route adds a route to dst ("0.0.0.0/0", "::/0") through a gateway.
func (s *Space) Route(t testing.TB, dst, via string) {
	t.Helper()
	_, ipnet, err := net.ParseCIDR(dst)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Handle.RouteAdd(&netlink.Route{Dst: ipnet, Gw: net.ParseIP(via)}); err != nil {
		t.Fatalf("add route %s via %s: %v", dst, via, err)
	}
}

// MTU limits the size of packets sent to an address over one of its interfaces: larger IPv4 packets with DF and IPv6
// packets cause an ICMP error (RFC 1191, RFC 8201).
func (s *Space) MTU(t testing.TB, to, name string, octets int) {
	t.Helper()
	addr := netip.MustParseAddr(to)
	host := &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
	route := &netlink.Route{Dst: host, LinkIndex: s.link(t, name).Attrs().Index, MTU: octets}
	if err := s.Handle.RouteAdd(route); err != nil {
		t.Fatalf("add route %s dev %s mtu %d: %v", host, name, octets, err)
	}
}

// Sysctl sets a kernel parameter of the namespace.
func (s *Space) Sysctl(t testing.TB, key, value string) {
	t.Helper()
	s.Must(t, func() error {
		return os.WriteFile(filepath.Join("/proc/sys", strings.ReplaceAll(key, ".", "/")), []byte(value), 0o644)
	})
}

// MAC returns the hardware address of an interface.
func (s *Space) MAC(t testing.TB, name string) net.HardwareAddr {
	t.Helper()
	return s.link(t, name).Attrs().HardwareAddr
}

func (s *Space) link(t testing.TB, name string) netlink.Link {
	t.Helper()
	link, err := s.Handle.LinkByName(name)
	if err != nil {
		t.Fatalf("find interface %s: %v", name, err)
	}
	return link
}

func (s *Space) up(t testing.TB, name string) {
	t.Helper()
	if err := s.Handle.LinkSetUp(s.link(t, name)); err != nil {
		t.Fatalf("set %s up: %v", name, err)
	}
}

// Local makes an address local to the namespace, as the speaker does with a virtual one.
func (s *Space) Local(t testing.TB, addr string) {
	t.Helper()
	parsed := netip.MustParseAddr(addr)
	err := s.Handle.RouteAdd(&netlink.Route{
		LinkIndex: s.link(t, "lo").Attrs().Index, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL,
		Scope: netlink.SCOPE_HOST, Protocol: 73,
		Dst: &net.IPNet{IP: parsed.AsSlice(), Mask: net.CIDRMask(parsed.BitLen(), parsed.BitLen())},
	})
	if err != nil {
		t.Fatalf("add local route %s: %v", addr, err)
	}
}
