// Package packets sends real packets through a node's complete data plane: the packet filter and one of the balancers.
// Its cases state what a client observes, so that every balancer must pass the same.
//
// It needs root. A client with two addresses and two Pods, each on its own link, are connected to the node; the Pods'
// only route is through the node.
package packets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nft"
)

// Balancer applies a table of virtual servers to the node that it was opened for. It is called in the node's namespace.
type Balancer func(ipvs.Table) error

// Options configure a run of the cases.
type Options struct {
	// NodeMTU: a process of the node gets EMSGSIZE for a datagram that is larger than the MTU of the Pod's link, as
	// with IPVS, which selects the Pod after the datagram has been routed to the node itself
	// (net/netfilter/ipvs/ip_vs_xmit.c, ensure_mtu_is_adequate).
	NodeMTU bool
	// Open opens the balancer in a node.
	Open func(t testing.TB, node *netspace.Space) Balancer
	// SCTP is set if the kernel has SCTP.
	SCTP bool
}

// family contains the addresses of the lab in one family.
type family struct {
	name              string
	vip               string
	client, other     string    // the client's
	node              string    // the node's on the client's link
	pods, gateways    [2]string // of each Pod, and the node's on its link
	bits, podBits     int
	services, nowhere string // a network of Services, and an address in it on the client's side that no Service has
	far, farRouter    string // a client behind the client, and the client's address on that link
	forwarding        string
	raw               string // network of package net
}

var families = []family{
	{
		name: "IPv4", vip: "203.0.113.4", client: "192.0.2.2", other: "192.0.2.3", node: "192.0.2.1", bits: 24,
		pods: [2]string{"198.51.100.2", "198.51.100.66"}, gateways: [2]string{"198.51.100.1", "198.51.100.65"}, podBits: 26,
		services: "203.0.113.0/24", nowhere: "203.0.113.99", far: "198.18.0.2", farRouter: "198.18.0.1",
		forwarding: "net.ipv4.ip_forward", raw: "ip4",
	},
	{
		name: "IPv6", vip: "2001:db8:4::4", client: "2001:db8:1::2", other: "2001:db8:1::3", node: "2001:db8:1::1", bits: 64,
		pods: [2]string{"2001:db8:20::2", "2001:db8:21::2"}, gateways: [2]string{"2001:db8:20::1", "2001:db8:21::1"}, podBits: 64,
		services: "2001:db8:4::/64", nowhere: "2001:db8:4::99", far: "2001:db8:5::2",
		farRouter: "2001:db8:5::1", forwarding: "net.ipv6.conf.all.forwarding", raw: "ip6",
	},
}

// lab is the namespaces of a case.
type lab struct {
	family
	client, node *netspace.Space
	pods         [2]*netspace.Space
	filter       *nft.Filter
	balance      Balancer
	protocols    []ipvs.Protocol
	nodeMTU      bool
}

func newLab(t *testing.T, f family, o Options) *lab {
	t.Helper()
	l := &lab{family: f, client: netspace.New(t), node: netspace.New(t), protocols: []ipvs.Protocol{ipvs.TCP, ipvs.UDP}}
	l.nodeMTU = o.NodeMTU
	if o.SCTP {
		l.protocols = append(l.protocols, ipvs.SCTP)
	}
	netspace.Join(t, l.client, "eth0", fmt.Sprintf("%s/%d", f.client, f.bits), l.node, "eth0", fmt.Sprintf("%s/%d", f.node, f.bits))
	l.client.Address(t, "eth0", fmt.Sprintf("%s/%d", f.other, f.bits))
	l.client.Route(t, f.services, f.node)
	l.node.Sysctl(t, f.forwarding, "1")
	for i := range l.pods {
		pod := netspace.New(t)
		netspace.Join(t, pod, "eth0", fmt.Sprintf("%s/%d", f.pods[i], f.podBits),
			l.node, fmt.Sprintf("pod%d", i), fmt.Sprintf("%s/%d", f.gateways[i], f.podBits))
		everywhere := "0.0.0.0/0"
		if f.raw == "ip6" {
			everywhere = "::/0"
		}
		pod.Route(t, everywhere, f.gateways[i])
		l.pods[i] = pod
		l.listen(t, pod, f.pods[i], 8080, fmt.Sprintf("pod%d", i))
	}
	l.node.Local(t, f.vip)
	l.node.Must(t, func() (err error) {
		l.filter, err = nft.New()
		return err
	})
	t.Cleanup(l.filter.Close)
	l.balance = o.Open(t, l.node)
	return l
}

// listen serves a port with every protocol.
func (l *lab) listen(t *testing.T, on *netspace.Space, addr string, port uint16, name string) {
	t.Helper()
	at := netip.AddrPortFrom(netip.MustParseAddr(addr), port).String()
	for _, protocol := range l.protocols {
		switch protocol {
		case ipvs.TCP:
			on.ServeTCP(t, at, name)
		case ipvs.UDP:
			on.ServeUDP(t, at, name)
		case ipvs.SCTP:
			on.ServeSCTP(t, at, name)
		}
	}
}

// networks maps protocols to the names of package netspace.
var networks = map[ipvs.Protocol]string{ipvs.TCP: "tcp", ipvs.UDP: "udp", ipvs.SCTP: "sctp"}

// state is the wanted state of the node.
type state struct {
	table    ipvs.Table
	elements ipvs.Filter
}

// service returns port 80 of every protocol at an address, with one real server, and the elements of the given sets for
// each.
func (l *lab) service(addr, real string, sets ...ipvs.Set) state {
	s := state{make(ipvs.Table), make(ipvs.Filter)}
	if addr == l.vip {
		s.add(ipvs.Element{Set: ipvs.Addresses, Key: ipvs.Key{Addr: netip.MustParseAddr(addr)}})
	}
	for _, protocol := range l.protocols {
		key := ipvs.Key{Addr: netip.MustParseAddr(addr), Protocol: protocol, Port: 80}
		s.table[key] = ipvs.VirtualServer{
			Settings:    ipvs.Settings{Scheduler: ipvs.RoundRobin},
			RealServers: map[netip.AddrPort]ipvs.RealServer{netip.AddrPortFrom(netip.MustParseAddr(real), 8080): {Weight: 1}},
		}
		s.add(ipvs.Element{Set: ipvs.Served, Key: key})
		for _, set := range sets {
			s.add(ipvs.Element{Set: set, Key: key})
		}
	}
	for _, pod := range l.family.pods { // so that no answer of a valid connection counts as invalid
		s.add(ipvs.Element{Set: ipvs.Endpoints, Key: ipvs.Key{Addr: netip.MustParseAddr(pod)}})
	}
	return s
}

func (s state) add(e ipvs.Element) { s.elements[e] = struct{}{} }

// allow allows clients of a prefix to connect to every key of the table.
func (s state) allow(prefix string) {
	for key := range s.table {
		s.add(ipvs.Element{Set: ipvs.Allowed, Key: key}.From(netip.MustParsePrefix(prefix)))
	}
}

func (s state) and(other state) state {
	maps.Copy(s.table, other.table)
	maps.Copy(s.elements, other.elements)
	return s
}

// apply applies the state to the node: the filter first, as the loop does.
func (l *lab) apply(t *testing.T, s state) {
	t.Helper()
	l.node.Must(t, func() error {
		if _, err := l.filter.Build(context.Background(), s.elements); err != nil {
			return err
		}
		return l.balance(s.table)
	})
}

// at returns a port of an address.
func at(addr string, port uint16) string {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port).String()
}

// answers sends a request with every protocol; the answer contains the server and one of the client addresses in seen.
func (l *lab) answers(t *testing.T, from *netspace.Space, source, to, server string, seen ...string) {
	t.Helper()
	for _, protocol := range l.protocols {
		got, err := l.ask(from, networks[protocol], source, to, 0)
		ok := false
		for _, addr := range seen {
			ok = ok || got == server+" "+addr
		}
		if err != nil || !ok {
			t.Errorf("%v %s: answer %q, error %v; want one of %s that sees %v", protocol, to, got, err, server, seen)
		}
	}
}

// silence is how long a test waits for an answer that must not come. A successful request precedes or follows each
// wait.
const silence = 700 * time.Millisecond

// silent sends requests with all protocols concurrently and expects neither an answer nor an error message.
func (l *lab) silent(t *testing.T, from *netspace.Space, source, to string) {
	t.Helper()
	var all sync.WaitGroup
	for _, protocol := range l.protocols {
		all.Go(func() {
			got, err := l.ask(from, networks[protocol], source, to, silence)
			var timeout net.Error
			switch {
			case errors.As(err, &timeout) && timeout.Timeout():
			case errors.Is(err, syscall.EINPROGRESS): // SCTP: no connection in time
			default:
				t.Errorf("%v %s: answer %q, error %v; want silence", protocol, to, got, err)
			}
		})
	}
	all.Wait()
}

// refused sends requests over TCP and UDP and expects an error message. SCTP has its own kind, ABORT, which no packet
// filter sends, and Linux treats an ICMP error as transient (sctp_v4_err in net/sctp/input.c).
func (l *lab) refused(t *testing.T, from *netspace.Space, to string) {
	t.Helper()
	for _, protocol := range []ipvs.Protocol{ipvs.TCP, ipvs.UDP} {
		got, err := l.ask(from, networks[protocol], "", to, 0)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%v %s: answer %q, error %v; want it refused", protocol, to, got, err)
		}
	}
}

// ask sends one line over a new connection and returns the answer. The client's default source is its first address.
// Zero patience is the usual timeout.
func (l *lab) ask(from *netspace.Space, network, source, to string, patience time.Duration) (string, error) {
	if source == "" && from == l.client {
		source = l.family.client
	}
	conn, err := from.DialWithin(patience, network, source, to)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return netspace.AskOnWithin(patience, conn)
}

// again sends a request over an open connection.
func again(t *testing.T, conn net.Conn, want, when string) {
	t.Helper()
	if got, err := netspace.AskOn(conn); err != nil || got != want {
		t.Errorf("%s: answer %q, error %v; want %q", when, got, err, want)
	}
}
