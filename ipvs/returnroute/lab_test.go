package returnroute_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/direct"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/kernel"
	"github.com/ironlb/ironlb/ipvs/nftlb"
	"github.com/ironlb/ironlb/ipvs/returnroute"
	"github.com/ironlb/ironlb/speaker/link"
)

// withIPVS selects IPVS as the data plane; without it, it is nftables.
var withIPVS = os.Getenv("IRONLB_DATAPLANE") == "ipvs"

const (
	numNodes             = 2
	servicePort, podPort = 80, 8080
)

// family contains the addresses of the lab in one family.
type family struct {
	name, vip                        string
	client, clientGateway            string // beyond the router
	admin                            string // on the management network
	neighbor                         string // on the service network
	managementGateway, serviceRouter string
	management, service, pod, at     func(i int) string
	everywhere, forwarding           string
	clientBits, netBits, podBits     int
	pool                             string
}

var ipv4 = family{
	name: "IPv4", vip: "192.0.2.100", pool: "192.0.2.96/28", client: "203.0.113.10", clientGateway: "203.0.113.1",
	admin: "10.0.0.50", neighbor: "192.0.2.50", managementGateway: "10.0.0.254", serviceRouter: "192.0.2.254",
	management: func(i int) string { return fmt.Sprintf("10.0.0.%d", i+1) },
	service:    func(i int) string { return fmt.Sprintf("192.0.2.%d", i+1) },
	pod:        func(i int) string { return fmt.Sprintf("198.51.100.%d", 64*i+2) },
	at:         func(i int) string { return fmt.Sprintf("198.51.100.%d", 64*i+1) },
	everywhere: "0.0.0.0/0", forwarding: "net.ipv4.ip_forward", clientBits: 24, netBits: 24, podBits: 26,
}

var ipv6 = family{
	name: "IPv6", vip: "2001:db8:1::100", pool: "2001:db8:1::100/120", client: "2001:db8:c::10", clientGateway: "2001:db8:c::1",
	admin: "2001:db8:a::50", neighbor: "2001:db8:1::50", managementGateway: "2001:db8:a::fe", serviceRouter: "2001:db8:1::fe",
	management: func(i int) string { return fmt.Sprintf("2001:db8:a::%d", i+1) },
	service:    func(i int) string { return fmt.Sprintf("2001:db8:1::%d", i+1) },
	pod:        func(i int) string { return fmt.Sprintf("2001:db8:2%d::2", i) },
	at:         func(i int) string { return fmt.Sprintf("2001:db8:2%d::1", i) },
	everywhere: "::/0", forwarding: "net.ipv6.conf.all.forwarding", clientBits: 64, netBits: 64, podBits: 64,
}

var families = []family{ipv4, ipv6}

// lab is nodes with two networks. The default route of each node is on the management network; the virtual addresses
// are on the service network. One router joins both with the client's network, and drops packets that come from another
// network than the route to their source.
type lab struct {
	router, client, admin, neighbor *netspace.Space
	nodes, pods                     [numNodes]*netspace.Space
	balancers                       [numNodes]balancer
	tiers                           [numNodes]*direct.Driver
	drivers                         [numNodes]*returnroute.Driver
}

type balancer interface {
	List() (ipvs.Table, error)
	Apply([]ipvs.Op) ([]ipvs.Op, error)
	Close()
}

func addrs(of func(family) (string, int)) (all []string) {
	for _, f := range families {
		addr, bits := of(f)
		all = append(all, fmt.Sprintf("%s/%d", addr, bits))
	}
	return all
}

func newLab(t testing.TB) *lab {
	t.Helper()
	management, service := netspace.NewBridge(t), netspace.NewBridge(t)
	l := &lab{router: netspace.New(t), client: netspace.New(t), admin: netspace.New(t), neighbor: netspace.New(t)}
	clients := netspace.NewBridge(t)
	l.router.Plug(t, "clients", clients, "router", addrs(func(f family) (string, int) { return f.clientGateway, f.clientBits })...)
	l.router.Plug(t, "management", management, "router", addrs(func(f family) (string, int) { return f.managementGateway, f.netBits })...)
	l.router.Plug(t, "service", service, "router", addrs(func(f family) (string, int) { return f.serviceRouter, f.netBits })...)
	l.client.Plug(t, "eth0", clients, "client", addrs(func(f family) (string, int) { return f.client, f.clientBits })...)
	l.admin.Plug(t, "eth0", management, "admin", addrs(func(f family) (string, int) { return f.admin, f.netBits })...)
	l.neighbor.Plug(t, "eth0", service, "neighbor", addrs(func(f family) (string, int) { return f.neighbor, f.netBits })...)
	for _, f := range families {
		l.router.Sysctl(t, f.forwarding, "1")
		l.client.Route(t, f.everywhere, f.clientGateway)
		l.admin.Route(t, f.everywhere, f.managementGateway)
		l.neighbor.Route(t, f.everywhere, f.serviceRouter)
	}
	l.router.Must(t, func() error { return netspace.NFT(routerRules) })
	for i := range l.nodes {
		l.addNode(t, i, management, service)
	}
	l.own(t, 0)
	return l
}

// routerRules drop what comes from another network than the route to its source, as rp_filter=1 does for IPv4 alone,
// and count the answers by the network from which they come.
const routerRules = `
table inet router {
	counter management { }
	counter service { }
	chain prerouting { type filter hook prerouting priority -300;
		th sport { 80, 81 } iifname "management" counter name management
		th sport { 80, 81 } iifname "service" counter name service
		icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
		fib saddr . iif oif missing drop
	}
}`

// labels makes new connections have a label, as ipvs/nft does.
const labels = "table inet labels {\nchain prerouting { type filter hook prerouting priority -150; ct state new ct label set 73; }\n}"

func (l *lab) addNode(t testing.TB, i int, management, service *netspace.Space) {
	t.Helper()
	node, pod := netspace.New(t), netspace.New(t)
	l.nodes[i], l.pods[i] = node, pod
	node.Plug(t, "eth0", management, fmt.Sprintf("node%d", i), addrs(func(f family) (string, int) { return f.management(i), f.netBits })...)
	node.Plug(t, "eth1", service, fmt.Sprintf("node%d", i), addrs(func(f family) (string, int) { return f.service(i), f.netBits })...)
	netspace.Join(t, pod, "eth0", fmt.Sprintf("%s/26", ipv4.pod(i)), node, "pod0", fmt.Sprintf("%s/26", ipv4.at(i)))
	pod.Address(t, "eth0", ipv6.pod(i)+"/64")
	node.Address(t, "pod0", ipv6.at(i)+"/64")
	node.Sysctl(t, "net.ipv4.conf.all.rp_filter", "1")
	node.Sysctl(t, "net.ipv4.conf.all.arp_ignore", "1")
	node.Sysctl(t, "net.ipv4.conf.all.arp_announce", "2")
	for _, f := range families {
		node.Sysctl(t, f.forwarding, "1")
		node.Route(t, f.everywhere, f.managementGateway)
		pod.Route(t, f.everywhere, f.at(i))
		node.Local(t, f.vip)
		pod.ServeTCP(t, at(f.pod(i), podPort), fmt.Sprintf("pod%d", i))
		pod.ServeUDP(t, at(f.pod(i), podPort), fmt.Sprintf("pod%d", i))
	}
	node.Must(t, func() error { return netspace.NFT(labels) })
	node.Must(t, func() (err error) {
		if l.tiers[i], err = direct.New(direct.Config{Port: 7949}); err != nil {
			return err
		}
		t.Cleanup(l.tiers[i].Close)
		if l.drivers[i], err = newDriver(t); err != nil {
			return err
		}
		l.balancers[i], err = openBalancer()
		return err
	})
	t.Cleanup(l.balancers[i].Close)
	l.serve(t, i, func(f family) string { return at(f.pod(i), podPort) })
}

// newDriver opens the namespace of the calling thread.
func newDriver(t testing.TB) (*returnroute.Driver, error) {
	d, err := returnroute.New(direct.Device1, direct.Device2)
	if err == nil {
		t.Cleanup(d.Close)
	}
	return d, err
}

func openBalancer() (balancer, error) {
	if !withIPVS {
		return nftlb.New(nftlb.AllTraffic)
	}
	k, err := kernel.Open()
	if err != nil {
		return nil, err
	}
	sysctls, err := link.Wanted(link.Needs{IPVS: true})
	if err == nil {
		_, err = link.SetSysctls(sysctls)
	}
	if err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

func at(addr string, port uint16) string {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port).String()
}

func keys() (all []ipvs.Key) {
	for _, f := range families {
		for _, p := range []ipvs.Protocol{ipvs.TCP, ipvs.UDP} {
			all = append(all, ipvs.Key{Addr: netip.MustParseAddr(f.vip), Protocol: p, Port: servicePort})
		}
	}
	return all
}

// serve makes a node forward to one endpoint.
func (l *lab) serve(t testing.TB, i int, endpoint func(family) string) {
	t.Helper()
	want := make(ipvs.Table)
	for _, key := range keys() {
		f := ipv4
		if key.Addr.Is6() {
			f = ipv6
		}
		want[key] = ipvs.VirtualServer{
			Settings:    ipvs.Settings{Scheduler: ipvs.RoundRobin},
			RealServers: map[netip.AddrPort]ipvs.RealServer{netip.MustParseAddrPort(endpoint(f)): {Weight: 1}},
		}
	}
	l.nodes[i].Must(t, func() error {
		have, err := l.balancers[i].List()
		if err != nil {
			return err
		}
		_, err = l.balancers[i].Apply(ipvs.Diff(have, want))
		return err
	})
}

// own makes a node the owner of the virtual addresses, for the hosts on the service network.
func (l *lab) own(t testing.TB, i int) {
	t.Helper()
	mac := l.nodes[i].MAC(t, "eth1")
	for _, f := range families {
		l.router.Neighbor(t, "service", f.vip, mac)
		l.neighbor.Neighbor(t, "eth0", f.vip, mac)
	}
}

// direct makes all slots lead to one node, through tunnels on the management network.
func (l *lab) direct(t testing.TB, to uint16) {
	t.Helper()
	var slots ipvs.Slots
	for i := range slots {
		slots[i] = to
	}
	nodes := []netip.Addr{netip.MustParseAddr(ipv4.management(0)), netip.MustParseAddr(ipv4.management(1))}
	for i, node := range l.nodes {
		want := ipvs.Direct{Self: nodes[i], Nodes: nodes, Virtuals: make(map[ipvs.Key]ipvs.Directed)}
		for _, key := range keys() {
			want.Virtuals[key] = ipvs.Directed{Slots: &slots}
		}
		node.Must(t, func() error { return l.tiers[i].Apply(context.Background(), want, keys()) })
	}
}

// wanted returns the return routes of a pool with the addresses of both families.
func wanted() (all []ipvs.ReturnRoute) {
	for _, f := range families {
		subnet := netip.PrefixFrom(netip.MustParseAddr(f.service(0)), f.netBits).Masked()
		all = append(all, ipvs.ReturnRoute{
			Gateway: netip.MustParseAddr(f.serviceRouter), Interface: "eth1",
			Subnets: []netip.Prefix{subnet}, Prefixes: []netip.Prefix{netip.MustParsePrefix(f.pool)},
		})
	}
	return all
}

// apply gives all nodes the return routes.
func (l *lab) apply(t testing.TB, want []ipvs.ReturnRoute) {
	t.Helper()
	for i, node := range l.nodes {
		node.Must(t, func() error {
			done, err := l.drivers[i].Apply(context.Background(), want)
			if err == nil && len(done) != len(want) {
				t.Errorf("node %d has %v, want %v", i, done, want)
			}
			return err
		})
	}
}
