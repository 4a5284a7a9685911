package netspace

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bridgeName is the name of a namespace's bridge.
const bridgeName = "br0"

// NewBridge creates a namespace with a bridge, to which other namespaces can be connected by Plug.
func NewBridge(t testing.TB) *Space {
	t.Helper()
	s := New(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridgeName
	if err := s.Handle.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		t.Fatalf("add a bridge: %v", err)
	}
	s.up(t, bridgeName)
	return s
}

// Plug connects an interface of a new name to the bridge of NewBridge, and gives it addresses ("192.0.2.1/24").
func (s *Space) Plug(t testing.TB, name string, bridge *Space, port string, addrs ...string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	attrs.Namespace = netlink.NsFd(int(s.NS))
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: port, PeerNamespace: netlink.NsFd(int(bridge.NS))}
	if err := s.Handle.LinkAdd(pair); err != nil {
		t.Fatalf("add veth %s to %s: %v", name, port, err)
	}
	if err := bridge.Handle.LinkSetMaster(bridge.link(t, port), bridge.link(t, bridgeName)); err != nil {
		t.Fatalf("add %s to the bridge: %v", port, err)
	}
	for _, addr := range addrs {
		s.Address(t, name, addr)
	}
	bridge.up(t, port)
	s.up(t, name)
	s.waitCarrier(t, name)
	for _, addr := range addrs {
		if prefix := netip.MustParsePrefix(addr); prefix.Addr().Is6() {
			s.waitLocal(t, prefix.Addr().AsSlice())
		}
	}
}

// Neighbor sets the hardware address of a neighbor, for good.
func (s *Space) Neighbor(t testing.TB, name, addr string, mac net.HardwareAddr) {
	t.Helper()
	err := s.Handle.NeighSet(&netlink.Neigh{
		LinkIndex: s.link(t, name).Attrs().Index, State: unix.NUD_PERMANENT, IP: net.ParseIP(addr), HardwareAddr: mac,
	})
	if err != nil {
		t.Fatalf("set neighbor %s: %v", addr, err)
	}
}
