package direct_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/direct"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// encapsulated returns a packet in a frame for a tunnel (RFC 7348 section 5). The payload has a header with a checksum
// at an offset (RFC 791, RFC 8200).
func encapsulated(vni int, mac net.HardwareAddr, protocol byte, from, to netip.Addr, payload []byte, checksum int) []byte {
	b := binary.BigEndian.AppendUint32(nil, 0x08000000)
	b = binary.BigEndian.AppendUint32(b, uint32(vni)<<8)
	b = append(append(b, mac...), 0x02, 0, 0, 0, 0, 1)
	addrs := append(from.AsSlice(), to.AsSlice()...)
	pseudo := binary.BigEndian.AppendUint32(addrs[:len(addrs):len(addrs)], uint32(len(payload)))
	pseudo = append(append(pseudo, 0, 0, 0, protocol), payload...)
	binary.BigEndian.PutUint16(payload[checksum:], internetChecksum(pseudo))
	if from.Is4() {
		header := binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(20+len(payload)))
		header = append(append(header, 0, 0, 0, 0, 255, protocol, 0, 0), addrs...)
		binary.BigEndian.PutUint16(header[10:], internetChecksum(header))
		return append(append(append(b, 0x08, 0), header...), payload...)
	}
	header := binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(payload)))
	return append(append(append(append(b, 0x86, 0xdd), header...), append([]byte{protocol, 255}, addrs...)...), payload...)
}

// internetChecksum is that of RFC 1071.
func internetChecksum(of []byte) uint16 {
	var sum uint32
	for i, octet := range of {
		sum += uint32(octet) << (8 * uint(1-i%2))
	}
	return ^uint16(sum + sum>>16)
}

// datagram returns a datagram of UDP in a frame for a tunnel.
func datagram(vni int, mac net.HardwareAddr, from, to string, port uint16) []byte {
	const text = "who are you\n"
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, 40000), port)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(text)))
	return encapsulated(vni, mac, byte(ipvs.UDP), netip.MustParseAddr(from), netip.MustParseAddr(to), append(append(b, 0, 0), text...), 6)
}

// send sends a forged frame to the tunnels of a node.
func (l *lab) send(t testing.TB, from *netspace.Space, to netip.AddrPort, frame []byte) {
	t.Helper()
	l.sendAs(t, from, "", to, frame)
}

// sendAs is send with a source address, unless that is empty.
func (l *lab) sendAs(t testing.TB, from *netspace.Space, source string, to netip.AddrPort, frame []byte) {
	t.Helper()
	conn, err := from.Dial("udp", source, to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(frame); err != nil {
		t.Fatal(err)
	}
}

// tunnelsOf returns where the tunnels of a node end, and their hardware address.
func (l *lab) tunnelsOf(t testing.TB, i int) (netip.AddrPort, net.HardwareAddr) {
	t.Helper()
	return netip.MustParseAddrPort(at(l.outer.node(i), tunnelPort)), direct.HardwareAddr(l.addresses()[i])
}

// watched counts what reaches a node and its Pod through a tunnel.
type watched struct{ node, pod *netspace.Space }

const undirectedPort = 8081

func (l *lab) watch(t *testing.T, i int) watched {
	t.Helper()
	w := watched{l.nodes[i], l.pods[i]}
	counters(t, w.pod, "prerouting", map[string]string{"pod": "udp dport 8080", "undirected": "udp dport 8081"})
	counters(t, w.node, "input", map[string]string{"node": "udp dport 9999"})
	return w
}

func (w watched) want(t *testing.T, counter string, n int, what string) {
	t.Helper()
	got := counted(t, w.node)
	for name, n := range counted(t, w.pod) {
		got[name] = n
	}
	if got[counter] != n {
		t.Errorf("%s: counted %v, want %s=%d", what, got, counter, n)
	}
}

// A packet in a tunnel is accepted only from a node, and only for a directed virtual server.
func TestForgedPackets(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		l.direct(t, ipvs.Directed{Slots: spreadOver(0)})
		l.nodes[0].ServeUDP(t, "0.0.0.0:9999", "node")
		w := l.watch(t, 0)
		tunnels, mac := l.tunnelsOf(t, 0)
		send := func(from *netspace.Space, vni int, to string, port uint16) {
			t.Helper()
			l.send(t, from, tunnels, datagram(vni, mac, ipv4.client, to, port))
		}
		for vni := 1; vni <= 2; vni++ {
			send(l.nodes[1], vni, ipv4.vip, servicePort)
			w.want(t, "pod", vni, "from a node")
		}
		for vni := 1; vni <= 2; vni++ {
			send(l.client, vni, ipv4.vip, servicePort)
			w.want(t, "pod", 2, "from another host")
			send(l.nodes[1], vni, ipv4.vip, 9999)
			send(l.nodes[1], vni, ipv4.node(0), 9999)
			w.want(t, "node", 0, "to a port of the node")
			send(l.nodes[1], vni, ipv4.pod(0), undirectedPort)
			w.want(t, "undirected", 0, "to a Pod")
		}
		conn, err := l.nodes[1].Dial("udp", "", at(ipv4.node(0), 9999)) // the counter counts
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		again(t, conn, "node "+ipv4.node(1), "outside of the tunnel")
		w.want(t, "node", 1, "outside of the tunnel")
	})
}

// masquerade gives what the Pod of a node sends to other nodes the node's address, as many CNIs do.
func (l *lab) masquerade(t *testing.T, i int) {
	t.Helper()
	l.nodes[i].Must(t, func() error {
		return netspace.NFT(fmt.Sprintf(`table %[1]s test-masquerade {
			chain postrouting { type nat hook postrouting priority 100; oifname "eth0" %[1]s saddr %[2]s masquerade; }
		}`, l.outer.nft, l.outer.pod(i)))
	})
}

// forward makes the second tier of a node forward datagrams.
func (l *lab) forward(t *testing.T, i int, from, to netip.AddrPort) {
	t.Helper()
	key := ipvs.Key{Addr: from.Addr(), Protocol: ipvs.UDP, Port: from.Port()}
	l.nodes[i].Must(t, func() error {
		_, err := l.second[i].Apply(ipvs.Diff(nil, ipvs.Table{key: {
			Settings: ipvs.Settings{Scheduler: ipvs.RoundRobin}, RealServers: map[netip.AddrPort]ipvs.RealServer{to: {Weight: 1}},
		}}))
		return err
	})
}

// A Pod whose packets to nodes get the address of its node reaches nothing through a tunnel: neither directly, nor
// through a Service with the tunnel as its endpoint.
func TestForgedByPod(t *testing.T) {
	const serviceHere, serviceThere = 30001, 30002
	each(t, func(t *testing.T, l *lab) {
		l.direct(t, ipvs.Directed{Slots: spreadOver(1)})
		w := l.watch(t, 1)
		tunnels, mac := l.tunnelsOf(t, 1)
		l.masquerade(t, 0)
		for i, port := range []uint16{serviceHere, serviceThere} {
			l.forward(t, i, netip.MustParseAddrPort(at(l.outer.node(i), port)), tunnels)
		}
		l.nodes[1].ServeUDP(t, at(l.outer.node(1), 9999), "node")
		if got, err := l.pods[0].Ask("udp", at(l.outer.node(1), 9999)); err != nil || got != "node "+l.outer.node(0) {
			t.Fatalf("the CNI does not masquerade: answer %q, error %v", got, err)
		}
		for what, to := range map[string]netip.AddrPort{
			"directly":                       tunnels,
			"by a Service of its node":       netip.MustParseAddrPort(at(l.outer.node(0), serviceHere)),
			"by a Service of the other node": netip.MustParseAddrPort(at(l.outer.node(1), serviceThere)),
		} {
			for vni := 1; vni <= 2; vni++ {
				l.send(t, l.pods[0], to, datagram(vni, mac, ipv4.client, ipv4.vip, servicePort))
				w.want(t, "pod", 0, what)
			}
		}
		spoofed := l.addresses()[2]
		l.pods[0].Address(t, "eth0", netip.PrefixFrom(spoofed, spoofed.BitLen()).String())
		l.sendAs(t, l.pods[0], spoofed.String(), tunnels, datagram(1, mac, ipv4.client, ipv4.vip, servicePort))
		w.want(t, "pod", 0, "with the address of a third node")
		l.send(t, l.nodes[0], tunnels, datagram(1, mac, ipv4.client, ipv4.vip, servicePort)) // the counter counts
		w.want(t, "pod", 1, "from the node")
	})
}

// Where only one family is directed, the tunnels deliver nothing of the other, and no router advertisement.
func TestForgedOfOtherFamily(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		for i, directed := range families {
			other := families[1-i]
			want := ipvs.Direct{Self: l.addresses()[0], Nodes: l.addresses(), Virtuals: make(map[ipvs.Key]ipvs.Directed)}
			for _, key := range keys() {
				if familyOf(key.Addr).name == directed.name {
					want.Virtuals[key] = ipvs.Directed{Slots: spreadOver(0)}
				}
			}
			l.apply(t, 0, want, keys())
			for _, device := range []string{direct.Device1, direct.Device2} {
				for _, name := range []string{"accept_ra", "autoconf"} {
					if got := l.sysctl(t, 0, "net.ipv6.conf."+device+"."+name); got != "0" {
						t.Errorf("%s of %s is %s", name, device, got)
					}
				}
			}
			if i == 0 {
				l.nodes[0].ServeUDP(t, "0.0.0.0:9999", "node")
				l.nodes[0].ServeUDP(t, "[::]:9999", "node")
				l.watch(t, 0)
			}
			w := watched{l.nodes[0], l.pods[0]}
			tunnels, mac := l.tunnelsOf(t, 0)
			for vni := 1; vni <= 2; vni++ {
				what := fmt.Sprintf("%s of tunnel %d, only %s is directed", other.name, vni, directed.name)
				l.send(t, l.nodes[1], tunnels, datagram(vni, mac, other.client, other.pod(0), undirectedPort))
				w.want(t, "undirected", 0, what+", to a Pod")
				l.send(t, l.nodes[1], tunnels, datagram(vni, mac, other.client, other.vip, servicePort))
				w.want(t, "pod", 0, what+", to a virtual server")
				l.send(t, l.nodes[1], tunnels, datagram(vni, mac, other.client, other.node(0), 9999))
				w.want(t, "node", 0, what+", to a node")
				// RFC 4861 section 4.2: a router for half an hour, for a host.
				l.nodes[0].Sysctl(t, fmt.Sprintf("net.ipv6.conf.ironlb-t%d.forwarding", vni), "0")
				l.send(t, l.nodes[1], tunnels, encapsulated(vni, mac, unix.IPPROTO_ICMPV6, netip.MustParseAddr("fe80::bad"),
					netip.MustParseAddr("ff02::1"), []byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}, 2))
			}
			l.nodes[0].Must(t, func() error {
				routes, err := run("ip -6 route show table all")
				if strings.Contains(routes, "default") {
					t.Errorf("only %s is directed: an advertisement adds a route: %s", directed.name, routes)
				}
				return err
			})
		}
	})
}

// flood sends frames from a host until stop, as fast as it can.
func (l *lab) flood(t *testing.T, from *netspace.Space, to netip.AddrPort, frames ...[]byte) (stop func()) {
	t.Helper()
	conn, err := from.Dial("udp", "", to.String())
	if err != nil {
		t.Fatal(err)
	}
	done, sent := make(chan struct{}), 0
	var running sync.WaitGroup
	running.Go(func() {
		for {
			for _, frame := range frames {
				select {
				case <-done:
					return
				default:
				}
				if _, err := conn.Write(frame); err == nil { // or the last one was refused
					sent++
				}
			}
		}
	})
	return func() {
		close(done)
		running.Wait()
		conn.Close()
		if sent < 100 {
			t.Errorf("sent %d frames", sent)
		}
	}
}

// Nothing forged passes while tunnels begin and end: by a probe, by Apply, by a new process, and while nothing is
// directed any more.
func TestForgedMeanwhile(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		want := l.wantOn(0, ipvs.Directed{Slots: spreadOver(0)})
		w := l.watch(t, 0)
		tunnels, mac := l.tunnelsOf(t, 0)
		ctx := context.Background()
		probeMAC := direct.HardwareAddr(direct.ProbeSelf)
		stop := l.flood(t, l.client, tunnels, datagram(1, mac, ipv4.client, ipv4.pod(0), undirectedPort),
			datagram(2, mac, ipv6.client, ipv6.pod(0), undirectedPort), datagram(1, probeMAC, ipv4.client, ipv4.pod(0), undirectedPort))
		for _, c := range []struct {
			what string
			do   func(*direct.Driver) error
		}{
			{"a probe without nodes", func(d *direct.Driver) error { return d.Probe(ctx, ipvs.Direct{}) }},
			{"a probe", func(d *direct.Driver) error { return d.Probe(ctx, want) }},
			{"the first Apply", func(d *direct.Driver) error { return d.Apply(ctx, want, nil) }},
			{"the last Apply", func(d *direct.Driver) error { return d.Apply(ctx, ipvs.Direct{}, nil) }},
			{"Apply", func(d *direct.Driver) error { return d.Apply(ctx, want, nil) }},
			{"the first Apply of another process that directs nothing", func(*direct.Driver) error {
				d, err := direct.New(direct.Config{Port: tunnelPort})
				if err != nil {
					return err
				}
				defer d.Close()
				return d.Apply(ctx, ipvs.Direct{}, nil)
			}},
		} {
			l.nodes[0].Must(t, func() error { return c.do(l.drivers[0]) })
			w.want(t, "undirected", 0, c.what)
		}
		stop()
		w.want(t, "undirected", 0, "then")
	})
}

// After another program has deleted all rules, nothing forged passes, from other hosts and from Pods, until they are
// repaired.
func TestForgedAfterFlush(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		l.direct(t, ipvs.Directed{Slots: spreadOver(1)})
		tunnels, mac := l.tunnelsOf(t, 1)
		flush := func(i int) {
			t.Helper()
			l.nodes[i].Must(t, func() error { return netspace.NFT("flush ruleset") })
		}
		flush(1)
		w := l.watch(t, 1)
		for vni := 1; vni <= 2; vni++ {
			for _, from := range []*netspace.Space{l.client, l.nodes[0]} {
				l.send(t, from, tunnels, datagram(vni, mac, ipv4.client, ipv4.pod(1), undirectedPort))
				l.send(t, from, tunnels, datagram(vni, mac, ipv6.client, ipv6.pod(1), undirectedPort))
				w.want(t, "undirected", 0, "the rules of the node are flushed")
			}
		}
		l.serve(t, 1, ipvs.Settings{Scheduler: ipvs.RoundRobin}, podAt(1))
		l.nodes[1].Must(t, func() error {
			if intact, err := l.drivers[1].Check(context.Background()); intact || err != nil {
				t.Errorf("intact %v, error %v", intact, err)
			}
			return l.drivers[1].Apply(context.Background(), l.want[1], nil)
		})
		flush(0)
		l.masquerade(t, 0)
		l.send(t, l.pods[0], tunnels, datagram(1, mac, ipv4.client, ipv4.vip, servicePort))
		w.want(t, "pod", 0, "the rules of the Pod's node are flushed")
		l.send(t, l.nodes[2], tunnels, datagram(1, mac, ipv4.client, ipv4.vip, servicePort)) // the counter counts
		w.want(t, "pod", 1, "from another node")
	})
}
