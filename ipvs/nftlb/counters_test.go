package nftlb_test

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nftlb"
)

func openCounted(t testing.TB, space *netspace.Space) driver {
	t.Helper()
	d := open(t, space, nftlb.AllTraffic)
	d.CountTraffic()
	return d
}

// TestContractCounted checks the contract of all drivers while traffic is counted.
func TestContractCounted(t *testing.T) {
	ipvstest.Contract(t, func(t *testing.T) ipvstest.Driver { return openCounted(t, netspace.New(t)) })
}

// TestCounters: each connection and each packet is counted once, in its direction, wherever its client is. Changes of
// the real servers keep the counters.
func TestCounters(t *testing.T) {
	each(t, nftlb.AllTraffic, func(t *testing.T, l *lab) {
		l.driver = openCounted(t, l.node)
		stats := func(protocol ipvs.Protocol) (s ipvs.Stats) {
			t.Helper()
			l.node.Must(t, func() error {
				all, err := l.VirtualStats()
				s = all[l.key(protocol)]
				return err
			})
			return s
		}
		expect := func(when string, protocol ipvs.Protocol, want ipvs.Stats) {
			t.Helper()
			got := stats(protocol)
			headers := uint64(map[bool]int{true: 28, false: 48}[l.addresses == ipv4])
			switch {
			case got.Connections != want.Connections:
				t.Errorf("%s: %v %+v, want %d connections", when, protocol, got, want.Connections)
			case protocol == ipvs.UDP && (got.PacketsIn != want.PacketsIn || got.PacketsOut != want.PacketsOut):
				t.Errorf("%s: %v %+v, want %+v", when, protocol, got, want)
			case got.PacketsIn < want.PacketsIn || got.PacketsOut < want.PacketsOut || got.BytesIn < headers*got.PacketsIn || got.BytesOut < headers*got.PacketsOut:
				t.Errorf("%s: %v %+v, want at least %+v", when, protocol, got, want)
			}
		}
		l.have(t, rr, 1, 1)
		expect("before any connection", ipvs.TCP, ipvs.Stats{})
		l.count(t, 20, l.client, "tcp", "")
		l.count(t, 5, l.client, "udp", "")
		// At least the two packets from each side that open a connection and carry the answer.
		expect("a client", ipvs.TCP, ipvs.Stats{Connections: 20, PacketsIn: 40, PacketsOut: 40})
		expect("a client", ipvs.UDP, ipvs.Stats{Connections: 5, PacketsIn: 5, PacketsOut: 5})
		l.count(t, 3, l.node, "tcp", "")
		l.count(t, 2, l.node, "udp", "")
		expect("the node itself", ipvs.TCP, ipvs.Stats{Connections: 23, PacketsIn: 46, PacketsOut: 46})
		expect("the node itself", ipvs.UDP, ipvs.Stats{Connections: 7, PacketsIn: 7, PacketsOut: 7})

		l.have(t, wrr, 1, 1, 1)
		l.have(t, sticky, 1)
		l.count(t, 4, l.client, "tcp", l.client1)
		expect("other real servers and affinity", ipvs.TCP, ipvs.Stats{Connections: 27, PacketsIn: 54, PacketsOut: 54})
		l.have(t, rr)
		if _, err := l.client.Ask("tcp", l.at()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("without real servers: %v", err)
		}
		expect("a refused connection", ipvs.TCP, ipvs.Stats{Connections: 27})

		family := map[bool]string{true: "ip", false: "ip6"}[l.addresses == ipv4]
		command(t, l.node, "nft", "flush", "set", family, "ironlb-lb", "connections")
		l.have(t, rr, 1)
		l.count(t, 2, l.client, "tcp", "")
		expect("counters that another program deleted", ipvs.TCP, ipvs.Stats{Connections: 2})
		if _, err := l.Apply([]ipvs.Op{{Action: ipvs.DeleteVirtual, Virtual: l.key(ipvs.TCP)}}); err != nil {
			t.Fatal(err)
		}
		expect("a deleted virtual server", ipvs.TCP, ipvs.Stats{})
	})
}

// TestCountersOff: the ruleset of a balancer that does not count is the same after one that did, and has no counter.
func TestCountersOff(t *testing.T) {
	key := ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.TCP, Port: 80}
	table := ipvs.Table{key: {Settings: rr, RealServers: map[netip.AddrPort]ipvs.RealServer{netip.MustParseAddrPort("192.0.2.1:80"): {Weight: 1}}}}
	var rulesets []string
	for _, before := range []bool{false, true} {
		space := netspace.New(t)
		if before {
			if _, err := openCounted(t, space).Apply(ipvs.Diff(nil, table)); err != nil {
				t.Fatal(err)
			}
			if text := command(t, space, "nft", "list", "ruleset"); strings.Count(text, "counter packets 0 bytes 0") != 3 {
				t.Errorf("counted:\n%s", text)
			}
		}
		d := open(t, space, nftlb.AllTraffic)
		have, err := d.List()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Apply(ipvs.Diff(have, table)); err != nil {
			t.Fatal(err)
		}
		rulesets = append(rulesets, command(t, space, "nft", "list", "ruleset"))
	}
	if rulesets[0] != rulesets[1] || strings.Contains(rulesets[0], "count") {
		t.Errorf("without counters:\n%s\nafter a balancer that counted:\n%s", rulesets[0], rulesets[1])
	}
}
