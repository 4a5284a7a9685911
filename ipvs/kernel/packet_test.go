package kernel_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/ipvstest/packets"
	"github.com/ironlb/ironlb/ipvs/kernel"
	"github.com/ironlb/ironlb/ipvs/nft"
	"github.com/ironlb/ironlb/speaker/link"
)

const vip, vip6 = "203.0.113.4", "2001:db8:4::4"

// lab is a client, a node with the complete data plane, and two Pods, each on its own node: their only route is to the
// node.
type lab struct {
	client, node *netspace.Space
	pods         [2]*netspace.Space
	kernel       *kernel.Kernel
	filter       *nft.Filter
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{client: netspace.New(t)}
	l.kernel, l.node = openNew(t)
	netspace.Join(t, l.client, "eth0", "192.0.2.2/24", l.node, "eth0", "192.0.2.1/24")
	l.client.Address(t, "eth0", "2001:db8:1::2/64")
	l.node.Address(t, "eth0", "2001:db8:1::1/64")
	l.client.Route(t, "203.0.113.0/24", "192.0.2.1")
	l.client.Route(t, "2001:db8:4::/64", "2001:db8:1::1")
	l.node.Sysctl(t, "net.ipv6.conf.all.forwarding", "1")
	for i := range l.pods {
		l.pods[i] = netspace.New(t)
		netspace.Join(t, l.pods[i], "eth0", fmt.Sprintf("198.51.100.%d/26", 64*i+2),
			l.node, fmt.Sprintf("pod%d", i), fmt.Sprintf("198.51.100.%d/26", 64*i+1))
		l.pods[i].Address(t, "eth0", fmt.Sprintf("2001:db8:2%d::2/64", i))
		l.node.Address(t, fmt.Sprintf("pod%d", i), fmt.Sprintf("2001:db8:2%d::1/64", i))
		l.pods[i].ServeTCP(t, "[::]:8080", fmt.Sprintf("pod%d", i))
		l.pods[i].ServeTCP(t, "0.0.0.0:8080", fmt.Sprintf("pod%d", i))
		l.pods[i].ServeUDP(t, "0.0.0.0:5353", fmt.Sprintf("pod%d", i))
	}
	l.node.Must(t, func() (err error) {
		if l.filter, err = nft.New(); err != nil {
			return err
		}
		if err := setSysctls(); err != nil {
			return err
		}
		local, err := link.Open()
		if err != nil {
			return err
		}
		defer local.Close()
		for _, addr := range []string{vip, vip6} {
			if _, err := local.Add(netip.MustParseAddr(addr)); err != nil {
				return err
			}
		}
		return nil
	})
	return l
}

// setSysctls configures the namespace of the calling thread as a node.
func setSysctls() error {
	sysctls, err := link.Wanted(link.Needs{IPVS: true})
	if err != nil {
		return err
	}
	_, err = link.SetSysctls(sysctls)
	return err
}

var (
	webReals = map[netip.AddrPort]ipvs.RealServer{
		netip.MustParseAddrPort("198.51.100.2:8080"):  {Weight: 1},
		netip.MustParseAddrPort("198.51.100.66:8080"): {Weight: 1},
	}
	dns      = ipvs.Key{Addr: web.Addr, Protocol: ipvs.UDP, Port: 53}
	dnsReals = map[netip.AddrPort]ipvs.RealServer{
		netip.MustParseAddrPort("198.51.100.2:5353"):  {Weight: 1},
		netip.MustParseAddrPort("198.51.100.66:5353"): {Weight: 1},
	}
)

// apply applies the table to the node, and its firewall before.
func (l *lab) apply(t *testing.T, table ipvs.Table, masquerade ...ipvs.Key) {
	t.Helper()
	filter := make(ipvs.Filter)
	for key := range table {
		filter[ipvs.Element{Set: ipvs.Addresses, Key: ipvs.Key{Addr: key.Addr}}] = struct{}{}
		filter[ipvs.Element{Set: ipvs.Served, Key: key}] = struct{}{}
	}
	for _, key := range masquerade {
		filter[ipvs.Element{Set: ipvs.Masqueraded, Key: key}] = struct{}{}
	}
	l.node.Must(t, func() error {
		_, err := l.filter.Build(context.Background(), filter)
		return err
	})
	have, err := l.kernel.List()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.kernel.Apply(ipvs.Diff(have, table)); err != nil {
		t.Fatal(err)
	}
}

func rr(reals map[netip.AddrPort]ipvs.RealServer) ipvs.VirtualServer {
	return ipvs.VirtualServer{Settings: ipvs.Settings{Scheduler: ipvs.RoundRobin}, RealServers: reals}
}

// TestPackets runs the common cases of all balancers with IPVS.
func TestPackets(t *testing.T) {
	packets.Run(t, packets.Options{SCTP: true, NodeMTU: true, Open: func(t testing.TB, node *netspace.Space) packets.Balancer {
		k, err := kernel.OpenAt(node.NS)
		if err != nil {
			t.Fatalf("this test needs a kernel with IPVS, \"make test-kernel\" boots one: %v", err)
		}
		t.Cleanup(k.Close)
		node.Must(t, setSysctls)
		return func(want ipvs.Table) error {
			have, err := k.List()
			if err != nil {
				return err
			}
			_, err = k.Apply(ipvs.Diff(have, want))
			return err
		}
	}})
}

// TestConnectionsStay keeps a connection to each Pod through every kind of edit, a new firewall and a restart.
func TestConnectionsStay(t *testing.T) {
	l := newLab(t)
	l.apply(t, ipvs.Table{web: rr(webReals)}, web)
	conns := [2]net.Conn{}
	before := [2]string{}
	for i := range conns {
		conn, err := l.client.Dial("tcp", "", vip+":80")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns[i] = conn
		if before[i], err = netspace.AskOn(conn); err != nil {
			t.Fatal(err)
		}
	}
	stay := func(after string) {
		t.Helper()
		for i, conn := range conns {
			if answer, err := netspace.AskOn(conn); err != nil || answer != before[i] {
				t.Errorf("after %s: answer %q, error %v; want %q", after, answer, err, before[i])
			}
		}
	}
	sticky := ipvs.Table{web: {
		Settings:    ipvs.Settings{Scheduler: "wrr", Flags: ipvs.Persistent, Timeout: 600},
		RealServers: map[netip.AddrPort]ipvs.RealServer{},
	}}
	for addr := range webReals {
		sticky[web].RealServers[addr] = ipvs.RealServer{Weight: 0}
	}
	l.apply(t, sticky, web)
	stay("persistence, another scheduler and weight 0")
	l.apply(t, ipvs.Table{web: rr(webReals), dns: rr(dnsReals)}, web, dns)
	stay("the way back and another virtual server")

	l.node.Must(t, func() (err error) {
		l.filter, err = nft.New()
		return err
	})
	again, err := kernel.OpenAt(l.node.NS)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	l.kernel = again
	l.apply(t, ipvs.Table{web: rr(webReals)}, web)
	stay("a restart")
}
