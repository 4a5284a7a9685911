package member

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The speakers' groups are of link-local scope and reserved by RFC 4727. A switch with snooping forwards 224.0.0.0/24
// to all ports regardless of membership (RFC 4541 section 2.1.2), and ff02::/16 as it does for neighbor discovery, by
// MLD reports (section 3). Other users of these groups have another port, or no valid tag.
var (
	group4 = netip.AddrFrom4([4]byte{224, 0, 0, 254})
	group6 = netip.MustParseAddr("ff02::114")
)

// groups are the sockets that have joined the group, one per interface and family. The kernel drops datagrams that
// arrive by another interface, and a flood on one interface fills no other's buffer.
type groups struct {
	sockets []*socket
	failed  map[string]string // last logged errors, by interface
}

// join updates the memberships to the interfaces. It returns the failures that are new since the last call, by
// interface: there datagrams to the group are not received, and this node sends by broadcast.
func (g *groups) join(port uint16, families []bool, have ports) map[string]error {
	kept := g.sockets[:0]
	for _, s := range g.sockets {
		if p, still := have.byName[have.byIndex[s.index]]; still && (s.v6 || p.v4) {
			kept = append(kept, s)
		} else {
			s.close()
		}
	}
	clear(g.sockets[len(kept):])
	g.sockets = kept
	failed, added := map[string]string{}, map[string]error{}
	for name, p := range have.byName {
		for _, v6 := range families {
			if g.find(p.index, v6) != nil || !v6 && !p.v4 {
				continue
			}
			s, err := openGroup(port, p.index, v6)
			switch {
			case err == nil:
				g.sockets = append(g.sockets, s)
			case !v6 || !p.v4: // with IPv4 present, IPv6 may be disabled
				if failed[name] = err.Error(); g.failed[name] != err.Error() {
					added[name] = err
				}
			}
		}
	}
	g.failed = failed
	return added
}

// find returns the group socket of an interface, nil if there is none.
func (g *groups) find(index int, v6 bool) *socket {
	for _, s := range g.sockets {
		if s.index == index && s.v6 == v6 {
			return s
		}
	}
	return nil
}

func (g *groups) close() {
	for _, s := range g.sockets {
		s.close()
	}
}

// openGroup opens a socket that receives the group on an interface and sends to it there. A unicast socket on the same
// port must be open.
func openGroup(port uint16, index int, v6 bool) (*socket, error) {
	return open(&socket{v6: v6, port: port, index: index}, func(s *socket) error {
		shared, bound := option{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1}, option{unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, index}
		if err := s.set(shared, bound); err != nil {
			return err
		}
		if err := unix.Bind(s.fd, s.address(s.to())); err != nil {
			return fmt.Errorf("bind to %v, UDP port %d: %w", s.to(), port, err)
		}
		if v6 {
			membership := &unix.IPv6Mreq{Multiaddr: group6.As16(), Interface: uint32(index)}
			if err := unix.SetsockoptIPv6Mreq(s.fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, membership); err != nil {
				return fmt.Errorf("join %v: %w", group6, err)
			}
			return nil
		}
		membership := &unix.IPMreqn{Multiaddr: group4.As4(), Ifindex: int32(index)}
		if err := unix.SetsockoptIPMreqn(s.fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, membership); err != nil {
			return fmt.Errorf("join %v: %w", group4, err)
		}
		loop := option{unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP, 0}
		return s.set(option{unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, hopLimit}, loop)
	})
}

// to returns the group of the socket's family.
func (s *socket) to() netip.Addr {
	if s.v6 {
		return group6
	}
	return group4
}
