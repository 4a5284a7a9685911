package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/ironlb/ironlb/test/lab/host"
)

// Addresses of every lab; see the diagram in doc.go.
var (
	lan        = netip.MustParsePrefix("192.0.2.0/24")
	api        = netip.MustParsePrefix("198.51.100.0/25")
	wan        = netip.MustParsePrefix("198.51.100.128/25")
	podRange   = netip.MustParsePrefix("203.0.113.128/25")
	clusterIPs = netip.MustParsePrefix("203.0.113.0/25")

	apiServer = nth(api, 1)
	router    = nth(lan, 1)
	routerWAN = nth(wan, 1)
	client1   = nth(lan, 100)
	remote    = nth(wan, 72)
)

// FreeRange and FreeRange6 are unused ranges of the LAN, for pools.
var (
	FreeRange  = netip.MustParsePrefix("192.0.2.128/28")
	FreeRange6 = sixes(FreeRange)
)

// PodRanges are the ranges of all Pods of a lab without Kubelets.
var PodRanges = []netip.Prefix{podRange, sixes(podRange)}

// Every address of the LAN, the WAN and the Pods has an IPv6 twin with the same last byte.
var (
	clusterIPs6 = netip.MustParsePrefix("2001:db8:0:4::/112")
	twins       = map[netip.Prefix]netip.Addr{
		lan:      netip.MustParseAddr("2001:db8:0:1::"),
		wan:      netip.MustParseAddr("2001:db8:0:2::"),
		podRange: netip.MustParseAddr("2001:db8:0:3::"),
	}
)

const (
	apiBridge = "api"
	lanBridge = "lan"
	guestLink = "mgmt0" // the guest's link to the API switch if all nodes are in the guest
)

// nth returns the n-th address of an IPv4 prefix.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Masked().Addr().As4()
	b[3] += byte(n)
	return netip.AddrFrom4(b)
}

// six returns the twin of an address, sixes the twin of a range.
func six(a netip.Addr) netip.Addr {
	for prefix, first := range twins {
		if prefix.Contains(a) {
			b := first.As16()
			b[15] = a.As4()[3]
			return netip.AddrFrom16(b)
		}
	}
	panic(fmt.Sprintf("address %v has no twin of IPv6", a)) // a programmer's error
}

func sixes(p netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(six(p.Addr()), 128-(32-p.Bits()))
}

// in6 returns the twin of addr for "ip addr add". All twins of a kind are in one /64. Without duplicate address
// detection it is usable at once.
func in6(addr netip.Addr) string { return six(addr).String() + "/64 nodad" }

// in returns addr with its prefix length, for "ip addr add".
func in(p netip.Prefix, addr netip.Addr) string {
	return netip.PrefixFrom(addr, p.Bits()).String()
}

// mac returns the hardware address of the interface with addr. It stays the same when a machine is rebuilt, as on a
// real machine.
func mac(addr netip.Addr) string {
	b := addr.As4()
	return net.HardwareAddr{0x02, 0x00, b[0], b[1], b[2], b[3]}.String()
}

// ns returns the name of the lab's namespace for a machine.
func (c *Cluster) ns(machine string) string { return c.name + "-" + machine }

// script is a shell script that stops at its first error.
type script struct{ strings.Builder }

func (s *script) line(format string, args ...any) { fmt.Fprintf(s, format+"\n", args...) }

// batch runs the lines in a namespace with one ip process.
func (s *script) batch(ns string, lines ...string) {
	s.line("ip -n %s -batch - <<'END'\n%s\nEND", ns, strings.Join(lines, "\n"))
}

func (s *script) run(ctx context.Context, h host.Host) error {
	_, err := host.Output(ctx, h, host.Cmd{Argv: []string{"sh", "-e"}, Stdin: strings.NewReader(s.String())})
	return err
}

// makeManagement creates the namespace of the control plane, on this machine.
func (c *Cluster) makeManagement(ctx context.Context) error {
	ns := c.ns("mgmt")
	c.Management = &Machine{Name: "mgmt", Namespace: ns, Addr: apiServer, c: c, host: host.Native{}}
	var s script
	s.line("ip netns add %s", ns)
	s.batch(ns,
		"link set lo up",
		"link add "+apiBridge+" type bridge mcast_snooping 0",
		"addr add "+in(api, apiServer)+" dev "+apiBridge,
		"link set "+apiBridge+" up")
	if err := s.run(ctx, host.Native{}); err != nil {
		return fmt.Errorf("make the management namespace %s: %w", ns, err)
	}
	return nil
}

// makeNetwork creates the switches, the router, the clients and the nodes' namespaces in the lab's kernel.
func (c *Cluster) makeNetwork(ctx context.Context) error {
	var s script
	switches := c.ns("net")
	s.line("ip netns add %s", switches)
	s.batch(switches, "link set lo up",
		"link add "+lanBridge+" type bridge mcast_snooping 0", "link set "+lanBridge+" up",
		"link add "+apiBridge+" type bridge mcast_snooping 0", "link set "+apiBridge+" up")
	if c.Kernel == Guest {
		s.line("ip link set %s netns %s", guestLink, switches)
		s.batch(switches, "link set "+guestLink+" master "+apiBridge+" up")
	} else {
		s.batch(c.ns("mgmt"),
			"link add labs type veth peer name mgmt netns "+switches,
			"link set labs master "+apiBridge+" up")
		s.batch(switches, "link set mgmt master "+apiBridge+" up")
	}

	c.Router = c.machine("router", router)
	c.Client = c.machine("client", client1)
	c.Remote = c.machine("remote", remote)
	c.onLAN(&s, c.Router)
	c.onLAN(&s, c.Client)
	s.batch(c.Client.Namespace, "route add default via "+router.String(), "route add default via "+six(router).String())
	s.line("ip netns add %s", c.Remote.Namespace)
	s.batch(c.Router.Namespace,
		"link add wan0 type veth peer name eth0 netns "+c.Remote.Namespace,
		"addr add "+in(wan, routerWAN)+" dev wan0", "addr add "+in6(routerWAN)+" dev wan0", "link set wan0 up")
	s.batch(c.Remote.Namespace, "link set lo up",
		"addr add "+in(wan, remote)+" dev eth0", "addr add "+in6(remote)+" dev eth0", "link set eth0 up",
		"route add default via "+routerWAN.String(), "route add default via "+six(routerWAN).String())
	s.line("ip netns exec %s sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1", c.Router.Namespace)

	for i := range c.cfg.Nodes {
		n := c.newNode(i)
		c.Nodes = append(c.Nodes, n)
	}
	for _, n := range c.Nodes[c.cfg.VirtualMachines:] {
		n.make(&s)
	}
	if c.cfg.Kubelets != nil {
		c.routePods(&s)
	}
	c.printf("making the network of %d nodes", c.cfg.Nodes)
	if err := s.run(ctx, c.kernel); err != nil {
		return fmt.Errorf("make the network: %w", err)
	}
	for _, n := range c.Nodes[:c.cfg.VirtualMachines] {
		if err := n.bootVM(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) machine(name string, addr netip.Addr) *Machine {
	return &Machine{Name: name, Namespace: c.ns(name), Addr: addr, Addr6: six(addr), c: c, host: c.kernel}
}

// onLAN creates a machine's namespace with its link to the LAN.
func (c *Cluster) onLAN(s *script, m *Machine) {
	s.line("ip netns add %s", m.Namespace)
	s.batch(c.ns("net"),
		"link add "+m.port(lanBridge)+" type veth peer name eth0 address "+mac(m.Addr)+" netns "+m.Namespace,
		"link set "+m.port(lanBridge)+" master "+lanBridge+" up")
	m.joinLAN(s)
}

// joinLAN sets up the machine's end of that link.
func (m *Machine) joinLAN(s *script) {
	s.batch(m.Namespace, "link set lo up",
		"addr add "+in(lan, m.Addr)+" dev eth0", "addr add "+in6(m.Addr)+" dev eth0", "link set eth0 up")
}
