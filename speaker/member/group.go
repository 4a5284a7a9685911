package member

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The groups of the speakers: those of link-local scope that RFC 4727 sets aside. A switch that snoops forwards
// 224.0.0.0/24 everywhere, whoever
// has joined (RFC 4541 section 2.1.2), and ff02::/16 as it does for neighbour discovery, by what MLD tells (section 3).
// Other uses of these groups have another port, or no tag of ours.
var (
	group4 = netip.AddrFrom4([4]byte{224, 0, 0, 254})
	group6 = netip.MustParseAddr("ff02::114")
)

// groups are the sockets that have joined the group, one for each interface and family, so that the kernel drops what
// comes by another interface, and a flood on one fills no other's buffer.
type groups struct {
	sockets []*socket
	failed  map[string]string // what was logged, by interface
}

// join brings the memberships to the interfaces. It returns what has begun to fail since the last call, by interface:
// there what others send to the group is not received, and ours goes by broadcast.
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
	failed, news := map[string]string{}, map[string]error{}
	for name, p := range have.byName {
		for _, v6 := range families {
			if g.find(p.index, v6) != nil || !v6 && !p.v4 {
				continue
			}
			s, err := openGroup(port, p.index, v6)
			switch {
			case err == nil:
				g.sockets = append(g.sockets, s)
			case !v6 || !p.v4: // where there is IPv4, IPv6 may be off
				if failed[name] = err.Error(); g.failed[name] != err.Error() {
					news[name] = err
				}
			}
		}
	}
	g.failed = failed
	return news
}

// find returns the socket for the group on an interface, nil for none.
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

// openGroup opens a socket that receives the group on an interface, and sends to it there. One for unicast on the same
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

// to is the group of the socket's family.
func (s *socket) to() netip.Addr {
	if s.v6 {
		return group6
	}
	return group4
}
