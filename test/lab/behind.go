package lab

import (
	"context"
	"fmt"
	"net/netip"
)

// behind is a part of the WAN's range that the router does not use.
var behind = netip.MustParsePrefix("198.51.100.232/30")

// Behind creates a client behind a machine of the LAN, as Remote is behind the router. The machine forwards the
// client's packets only if its forwarding is on, and the nodes route their replies to the machine. A lab has one, and a
// rebuilt node has no route to it.
func (c *Cluster) Behind(ctx context.Context, m *Machine) (*Machine, error) {
	gateway, client := nth(behind, 1), c.machine("behind", nth(behind, 2))
	var s script
	s.line("ip netns add %s", client.Namespace)
	s.batch(m.Namespace,
		"link add behind0 type veth peer name eth0 netns "+client.Namespace,
		"addr add "+in(behind, gateway)+" dev behind0", "addr add "+in(sixes(behind), six(gateway))+" dev behind0 nodad", "link set behind0 up")
	s.batch(client.Namespace, "link set lo up",
		"addr add "+in(behind, client.Addr)+" dev eth0", "addr add "+in(sixes(behind), client.Addr6)+" dev eth0 nodad", "link set eth0 up",
		"route add default via "+gateway.String(), "route add default via "+six(gateway).String())
	for _, n := range c.Nodes {
		s.batch(n.Namespace, "route add "+behind.String()+" via "+m.Addr.String(), "route add "+sixes(behind).String()+" via "+m.Addr6.String())
	}
	if err := s.run(ctx, c.kernel); err != nil {
		return nil, fmt.Errorf("make the client behind %s: %w", m.Name, err)
	}
	return client, nil
}
