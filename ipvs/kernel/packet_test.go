package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/kernel"
	"github.com/ironlb/ironlb/ipvs/nft"
	"github.com/ironlb/ironlb/speaker/link"
)

const vip = "203.0.113.4"

// lab is a client, a node with the whole data plane, and two Pods, each on a node of its own: they have a route to the
// node, and one to the client only after routeBack.
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
	l.client.Route(t, "203.0.113.0/24", "192.0.2.1")
	for i := range l.pods {
		l.pods[i] = netspace.New(t)
		netspace.Join(t, l.pods[i], "eth0", fmt.Sprintf("198.51.100.%d/26", 64*i+2),
			l.node, fmt.Sprintf("pod%d", i), fmt.Sprintf("198.51.100.%d/26", 64*i+1))
		l.pods[i].ServeTCP(t, "0.0.0.0:8080", fmt.Sprintf("pod%d", i))
		l.pods[i].ServeUDP(t, "0.0.0.0:5353", fmt.Sprintf("pod%d", i))
	}
	l.node.Must(t, func() (err error) {
		if l.filter, err = nft.New(); err != nil {
			return err
		}
		sysctls, err := link.Wanted()
		if err != nil {
			return err
		}
		if _, err := link.SetSysctls(sysctls); err != nil {
			return err
		}
		local, err := link.Open()
		if err != nil {
			return err
		}
		defer local.Close()
		_, err = local.Add(netip.MustParseAddr(vip))
		return err
	})
	return l
}

func (l *lab) routeBack(t *testing.T) {
	for i, pod := range l.pods {
		pod.Route(t, "192.0.2.0/24", fmt.Sprintf("198.51.100.%d", 64*i+1))
	}
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

// apply makes the node hold the table, with its firewall before.
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

// wantAnswers asks four times and wants each of the two answers twice: round robin.
func (l *lab) wantAnswers(t *testing.T, from *netspace.Space, network, to string, want ...string) {
	t.Helper()
	got := make(map[string]int)
	for range 2 * len(want) {
		answer, err := from.Ask(network, to)
		if err != nil {
			t.Fatalf("%s %s: %v", network, to, err)
		}
		got[answer]++
	}
	for _, answer := range want {
		if got[answer] != 2 {
			t.Errorf("%s %s: answers %v, want %q twice each", network, to, got, want)
			return
		}
	}
}

func rr(reals map[netip.AddrPort]ipvs.RealServer) ipvs.VirtualServer {
	return ipvs.VirtualServer{Settings: ipvs.Settings{Scheduler: ipvs.RoundRobin}, RealServers: reals}
}

// TestPackets sends real packets over the virtual address: masqueraded to Pods that know only the node, with the
// client's own address to Pods that know the way back, from the node itself, to ports without a virtual server and to a
// virtual server without real servers.
func TestPackets(t *testing.T) {
	l := newLab(t)
	table := ipvs.Table{web: rr(webReals), dns: rr(dnsReals)}
	l.apply(t, table, web, dns)
	l.wantAnswers(t, l.client, "tcp", vip+":80", "pod0 198.51.100.1", "pod1 198.51.100.65")
	l.wantAnswers(t, l.client, "udp", vip+":53", "pod0 198.51.100.1", "pod1 198.51.100.65")

	l.routeBack(t)
	l.apply(t, table)
	l.wantAnswers(t, l.client, "tcp", vip+":80", "pod0 192.0.2.2", "pod1 192.0.2.2")
	l.wantAnswers(t, l.client, "udp", vip+":53", "pod0 192.0.2.2", "pod1 192.0.2.2")
	l.wantAnswers(t, l.node, "tcp", vip+":80", "pod0 198.51.100.1", "pod1 198.51.100.65")

	l.node.ServeTCP(t, "0.0.0.0:22", "sshd")
	table[web] = rr(nil)
	l.apply(t, table)
	for _, to := range []string{vip + ":22", vip + ":80"} {
		if answer, err := l.client.Ask("tcp", to); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: answer %q, error %v; want it refused", to, answer, err)
		}
	}
	if err := l.client.Ping(vip); err != nil {
		t.Errorf("ping %s: %v", vip, err)
	}
}

// TestConnectionsStay holds a connection to each Pod through every kind of edit, a new firewall and a restart.
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
