package l2

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// perSocket is how many groups one socket joins: with the default net.core.optmem_max of 20,480 bytes the kernel
// rejects the 366th.
const perSocket = 300

// groups are the solicited-node groups that an interface has joined. The kernel programs the network card for them and
// reports them to switches with MLD snooping, even without a link-local address; it repeats both when the interface
// comes up again.
type groups struct {
	link    link
	sockets []*groupSocket
	joined  map[netip.Addr]*groupSocket
}

// groupSocket never receives anything: it is bound to no port.
type groupSocket struct {
	fd     int
	joined int
}

// set joins and leaves groups to match the addresses. After an error some may be missing.
func (g *groups) set(addrs addrSet) error {
	want := map[netip.Addr]struct{}{}
	for a := range addrs {
		want[solicitedNode(a)] = struct{}{}
	}
	for group, on := range g.joined {
		if _, still := want[group]; !still {
			_ = unix.SetsockoptIPv6Mreq(on.fd, unix.IPPROTO_IPV6, unix.IPV6_LEAVE_GROUP, g.request(group))
			on.joined--
			delete(g.joined, group)
		}
	}
	for group := range want {
		if g.joined[group] != nil {
			continue
		}
		on, err := g.join(group)
		if err != nil {
			return fmt.Errorf("join the solicited-node group %v on %s: %w", group, g.link.name, err)
		}
		if g.joined == nil {
			g.joined = map[netip.Addr]*groupSocket{}
		}
		g.joined[group] = on
		on.joined++
	}
	return nil
}

// join uses the first socket with room, or opens another one.
func (g *groups) join(group netip.Addr) (*groupSocket, error) {
	for _, s := range g.sockets {
		if s.joined >= perSocket {
			continue
		}
		err := unix.SetsockoptIPv6Mreq(s.fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, g.request(group))
		if !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.ENOBUFS) {
			return s, err
		}
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket: %w", err)
	}
	s := &groupSocket{fd: fd}
	if err := unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, g.request(group)); err != nil {
		unix.Close(fd)
		return nil, err
	}
	g.sockets = append(g.sockets, s)
	return s, nil
}

func (g *groups) request(group netip.Addr) *unix.IPv6Mreq {
	return &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(g.link.index)}
}

// close leaves all groups.
func (g *groups) close() {
	for _, s := range g.sockets {
		unix.Close(s.fd)
	}
	g.sockets, g.joined = nil, nil
}
