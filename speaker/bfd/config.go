package bfd

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// Config configures a session. It is comparable with ==.
type Config struct {
	// Peer is the remote address. A link-local address has a zone.
	Peer netip.Addr
	// Local is the source address; with the zero Addr, the kernel chooses.
	Local netip.Addr
	// MultiHop is a session over several hops (RFC 5883): another port, and Timers.MinimumTTL instead of 255. A
	// MinimumTTL of 0 means 254.
	MultiHop bool
	Timers   view.BFD
}

// Of returns the configuration for a BGP peer. It is multihop if a minimum TTL is set.
func Of(p routes.Peer) Config {
	return Config{Peer: p.Address, Local: p.Source, MultiHop: p.BFD.MinimumTTL > 0, Timers: p.BFD}
}

// Check returns an error if the configuration is invalid.
func (c Config) Check() error {
	t := c.Timers
	switch {
	case !c.Peer.IsValid() || c.Peer.IsUnspecified() || c.Peer.IsMulticast() || c.Peer.Is4In6():
		return fmt.Errorf("BFD session: the peer's address %v is not a unicast address: give one IPv4 or IPv6 address", c.Peer)
	case c.Peer.Is6() && c.Peer.IsLinkLocalUnicast() && c.Peer.Zone() == "":
		return fmt.Errorf("BFD session with %v: a link-local address needs its interface: write %v%%INTERFACE", c.Peer, c.Peer)
	case c.MultiHop && c.Peer.Zone() != "":
		return fmt.Errorf("BFD session with %v: a link-local address is not routed: configure a single-hop session", c.Peer)
	case c.Local.IsValid() && c.Local.Is4() != c.Peer.Is4():
		return fmt.Errorf("BFD session with %v: the local address %v is of the other family: give one of the peer's family", c.Peer, c.Local)
	case c.Local.IsUnspecified() || c.Local.IsMulticast():
		return fmt.Errorf("BFD session with %v: the local address %v is not a unicast address: give one, or none for the kernel's choice", c.Peer, c.Local)
	case t.Multiplier == 0:
		return fmt.Errorf("BFD session with %v: the multiplier is 0: give 1 to 255", c.Peer)
	}
	return errors.Join(within(c.Peer, "receive", t.Receive), within(c.Peer, "transmit", t.Transmit))
}

func within(peer netip.Addr, field string, d time.Duration) error {
	if d < time.Millisecond || d > maxInterval {
		return fmt.Errorf("BFD session with %v: the %s interval %v is not from 1ms to %v", peer, field, d, maxInterval)
	}
	return nil
}

// Key identifies a session.
type Key struct {
	// Peer has no zone; Interface is its zone.
	Peer      netip.Addr
	Interface string
	// Local is the zero Addr if the kernel chooses.
	Local    netip.Addr
	MultiHop bool
}

func (c Config) key() Key {
	return Key{c.Peer.WithZone(""), c.Peer.Zone(), c.Local.WithZone(""), c.MultiHop}
}

// path is the part of the key that distinguishes sessions at the remote system until it has received a discriminator.
func (k Key) path() Key {
	k.Local = netip.Addr{}
	return k
}

// minimumTTL is the least TTL of an accepted packet.
func (c Config) minimumTTL() int {
	switch {
	case !c.MultiHop:
		return 255 // RFC 5881, 5
	case c.Timers.MinimumTTL == 0:
		return 254
	}
	return int(c.Timers.MinimumTTL)
}

func compareKeys(a, b Key) int {
	multi := 0
	if a.MultiHop != b.MultiHop {
		multi = 1
		if b.MultiHop {
			multi = -1
		}
	}
	return cmp.Or(a.Peer.Compare(b.Peer), strings.Compare(a.Interface, b.Interface), a.Local.Compare(b.Local), multi)
}

// rebind is the minimum interval between lookups of a single-hop peer's interface.
const rebind = time.Second

// routed returns the index of the peer's interface: that of its zone, or else by the kernel's routes; 0 if there is
// none or the kernel reports none. Another host on another interface, such as a Pod of this node with CAP_NET_RAW, may
// also send with the peer's address and a TTL of 255.
func (k Key) routed() int {
	if k.Interface != "" {
		return indexOf(k.Interface)
	}
	o := &netlink.RouteGetOptions{}
	if k.Local.IsValid() {
		o.SrcAddr = k.Local.AsSlice()
	}
	routes, err := netlink.RouteGetWithOptions(k.Peer.AsSlice(), o)
	if err != nil || len(routes) == 0 {
		return 0
	}
	return routes[0].LinkIndex
}

// indexOf returns the index of an interface, 0 if it does not exist (netdevice(7)): netlink would list its full state.
func indexOf(name string) int {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return 0
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request); err != nil {
		return 0
	}
	return int(request.Uint32())
}

// getsockopt reads an option into b and returns its length.
func getsockopt(fd, level, name int, b []byte) (int, error) {
	length := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(length), nil
}
