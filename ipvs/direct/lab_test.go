package direct_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/direct"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

const (
	numNodes = 3
	// tunnelPort is not that of vxlan devices of others.
	tunnelPort           = 7949
	servicePort, podPort = 80, 8080
)

// family contains the addresses of the lab in one family.
type family struct {
	name, nft, vip, client, everywhere, forwarding string
	node, pod, gateway                             func(i int) string
	bits, podBits                                  int
}

var ipv4 = family{
	name: "IPv4", nft: "ip", vip: "192.0.2.100", client: "192.0.2.10", bits: 24, podBits: 26, everywhere: "0.0.0.0/0",
	forwarding: "net.ipv4.ip_forward",
	node:       func(i int) string { return fmt.Sprintf("192.0.2.%d", i+1) },
	pod:        func(i int) string { return fmt.Sprintf("198.51.100.%d", 64*i+2) },
	gateway:    func(i int) string { return fmt.Sprintf("198.51.100.%d", 64*i+1) },
}

var ipv6 = family{
	name: "IPv6", nft: "ip6", vip: "2001:db8:1::100", client: "2001:db8:1::10", bits: 64, podBits: 64, everywhere: "::/0",
	forwarding: "net.ipv6.conf.all.forwarding",
	node:       func(i int) string { return fmt.Sprintf("2001:db8:1::%d", i+1) },
	pod:        func(i int) string { return fmt.Sprintf("2001:db8:2%d::2", i) },
	gateway:    func(i int) string { return fmt.Sprintf("2001:db8:2%d::1", i) },
}

var families = []family{ipv4, ipv6}

// lab is a client and three nodes on a bridge, each with a Pod. Every node serves the virtual addresses of both
// families with its own Pod only. IRONLB_DATAPLANE selects its second tier.
type lab struct {
	outer          family
	bridge, client *netspace.Space
	nodes, pods    [numNodes]*netspace.Space
	drivers        [numNodes]*direct.Driver
	second         [numNodes]secondTier
	want           [numNodes]ipvs.Direct
}

// newLab connects the tunnels by addresses of the outer family.
func newLab(t testing.TB, outer family) *lab {
	t.Helper()
	l := &lab{outer: outer, bridge: netspace.NewBridge(t), client: netspace.New(t)}
	l.client.Plug(t, "eth0", l.bridge, "client", addrs(func(f family) string { return fmt.Sprintf("%s/%d", f.client, f.bits) })...)
	for i := range l.nodes {
		l.addNode(t, i)
	}
	l.own(t, 0)
	return l
}

func addrs(of func(family) string) []string { return []string{of(ipv4), of(ipv6)} }

func (l *lab) addNode(t testing.TB, i int) {
	t.Helper()
	node, pod := netspace.New(t), netspace.New(t)
	l.nodes[i], l.pods[i] = node, pod
	node.Plug(t, "eth0", l.bridge, fmt.Sprintf("node%d", i), addrs(func(f family) string { return fmt.Sprintf("%s/%d", f.node(i), f.bits) })...)
	netspace.Join(t, pod, "eth0", fmt.Sprintf("%s/26", ipv4.pod(i)), node, "pod0", fmt.Sprintf("%s/26", ipv4.gateway(i)))
	pod.Address(t, "eth0", ipv6.pod(i)+"/64")
	node.Address(t, "pod0", ipv6.gateway(i)+"/64")
	for _, f := range families {
		node.Sysctl(t, f.forwarding, "1")
		pod.Route(t, f.everywhere, f.gateway(i))
		node.Local(t, f.vip)
		pod.ServeTCP(t, at(f.pod(i), podPort), podName(i))
		pod.ServeUDP(t, at(f.pod(i), podPort), podName(i))
	}
	node.Must(t, func() (err error) {
		if l.drivers[i], err = direct.New(direct.Config{Port: tunnelPort}); err != nil {
			return err
		}
		t.Cleanup(l.drivers[i].Close)
		l.second[i], err = openSecondTier()
		return err
	})
	t.Cleanup(l.second[i].Close)
	l.serve(t, i, ipvs.Settings{Scheduler: ipvs.RoundRobin}, podAt(i))
}

func podName(i int) string { return fmt.Sprintf("pod%d", i) }

// at returns a port of an address.
func at(addr string, port uint16) string {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port).String()
}

// keys are the virtual servers of all families and protocols.
func keys() (all []ipvs.Key) {
	for _, f := range families {
		for _, p := range []ipvs.Protocol{ipvs.TCP, ipvs.UDP} {
			all = append(all, ipvs.Key{Addr: netip.MustParseAddr(f.vip), Protocol: p, Port: servicePort})
		}
	}
	return all
}

// podAt returns the endpoint in a Pod.
func podAt(i int) func(family) string { return func(f family) string { return at(f.pod(i), podPort) } }

// serve makes the second tier of a node forward to these endpoints.
func (l *lab) serve(t testing.TB, i int, settings ipvs.Settings, endpoints ...func(family) string) {
	t.Helper()
	want := make(ipvs.Table)
	for _, key := range keys() {
		vs := ipvs.VirtualServer{Settings: settings, RealServers: map[netip.AddrPort]ipvs.RealServer{}}
		for _, endpoint := range endpoints {
			vs.RealServers[netip.MustParseAddrPort(endpoint(familyOf(key.Addr)))] = ipvs.RealServer{Weight: 1}
		}
		want[key] = vs
	}
	l.nodes[i].Must(t, func() error {
		have, err := l.second[i].List()
		if err != nil {
			return err
		}
		_, err = l.second[i].Apply(ipvs.Diff(have, want))
		return err
	})
}

func familyOf(addr netip.Addr) family {
	if addr.Is6() {
		return ipv6
	}
	return ipv4
}

// own makes a node the owner of the virtual addresses, for the client.
func (l *lab) own(t testing.TB, i int) {
	t.Helper()
	for _, f := range families {
		l.client.Neighbor(t, "eth0", f.vip, l.nodes[i].MAC(t, "eth0"))
	}
}

// addresses are the nodes' addresses in the tunnels.
func (l *lab) addresses() (all []netip.Addr) {
	for i := range l.nodes {
		all = append(all, netip.MustParseAddr(l.outer.node(i)))
	}
	return all
}

// direct applies the same slots to all virtual servers of all nodes.
func (l *lab) direct(t testing.TB, d ipvs.Directed) {
	t.Helper()
	for i := range l.nodes {
		l.directNode(t, i, d)
	}
}

// directNode applies the slots to one node.
func (l *lab) directNode(t testing.TB, i int, d ipvs.Directed) {
	t.Helper()
	want := l.wantOn(i, d)
	l.apply(t, i, want, slices.Collect(maps.Keys(want.Virtuals)))
}

// wantOn returns what directs all virtual servers on a node.
func (l *lab) wantOn(i int, d ipvs.Directed) ipvs.Direct {
	want := ipvs.Direct{Self: l.addresses()[i], Nodes: l.addresses(), Virtuals: make(map[ipvs.Key]ipvs.Directed)}
	for _, key := range keys() {
		want.Virtuals[key] = d
	}
	return want
}

// sysctl returns a kernel parameter of a node.
func (l *lab) sysctl(t testing.TB, i int, key string) (value string) {
	t.Helper()
	l.nodes[i].Must(t, func() error {
		text, err := run("sysctl -n " + key)
		value = strings.TrimSpace(text)
		return err
	})
	return value
}

func (l *lab) apply(t testing.TB, i int, want ipvs.Direct, changed []ipvs.Key) {
	t.Helper()
	l.want[i] = want
	l.nodes[i].Must(t, func() error { return l.drivers[i].Apply(context.Background(), want, changed) })
}

// spreadOver gives the slots to these nodes in rotation.
func spreadOver(nodes ...uint16) *ipvs.Slots {
	var s ipvs.Slots
	for i := range s {
		s[i] = nodes[i%len(nodes)]
	}
	return &s
}

// ask sends a request over a new connection of the client.
func (l *lab) ask(network string, f family) (string, error) {
	return l.client.Ask(network, at(f.vip, servicePort))
}

// again sends a request over an open connection.
func again(t testing.TB, conn net.Conn, want, when string) {
	t.Helper()
	if got, err := netspace.AskOn(conn); err != nil || got != want {
		t.Errorf("%s: answer %q, error %v; want %q", when, got, err, want)
	}
}

// flushConntrack deletes all conntrack entries in the namespace of the calling thread.
func flushConntrack() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }

// run returns the output of a command in the namespace of the calling thread.
func run(command string) (string, error) {
	words := strings.Fields(command)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", command, err, out)
	}
	return string(out), nil
}

// difference returns the lines that only one of two texts has.
func difference(want, got string) (text string) {
	count := make(map[string]int)
	for line := range strings.Lines(got) {
		count[line]++
	}
	for line := range strings.Lines(want) {
		count[line]--
	}
	for _, line := range slices.Sorted(maps.Keys(count)) {
		if n := count[line]; n != 0 {
			text += fmt.Sprintf("%+d %s", n, line)
		}
	}
	return text
}
