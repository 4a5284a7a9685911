package packets

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"syscall"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nft"
)

// Run runs every case in both families.
func Run(t *testing.T, o Options) {
	for _, f := range families {
		for _, c := range []struct {
			name string
			run  func(*testing.T, *lab)
		}{
			{"unlisted ports", unlistedPorts},
			{"policy Cluster", policyCluster},
			{"policy Local", policyLocal},
			{"ClusterIP", clusterIP},
			{"ClusterIP by interface", clusterIPInterface},
			{"NodePort", nodePort},
			{"hairpin", hairpin},
			{"endpoint on the node", endpointOnNode},
			{"no endpoint", noEndpoint},
			{"no local endpoint", noLocalEndpoint},
			{"gone, policy Cluster", gone("1", ipvs.Masqueraded)},
			{"gone, policy Local", gone("1")},
			{"gone, source ranges", gone("1", ipvs.Masqueraded, ipvs.Restricted)},
			{"gone, not loose, policy Cluster", gone("0", ipvs.Masqueraded, ipvs.Restricted)},
			{"gone, not loose, policy Local", gone("0")},
			{"gone, ClusterIP", gone("1", ipvs.MasqueradedUnlessPod)},
			{"gone, NodePort", goneNodePort},
			{"gone, none local", goneLocal},
			{"gone, short circuit", goneClusterInternal},
			{"gone, UDP", goneUDP},
			{"handshake, weight 0", handshake(0, ipvs.Masqueraded)},
			{"handshake, ClusterIP", handshake(0, ipvs.MasqueradedUnlessPod)},
			{"handshake, gone", handshake(-1)},
			{"short circuit", shortCircuit},
			{"short circuit by interface", shortCircuitInterface},
			{"source ranges", sourceRanges},
			{"policies of iptables-nft", policiesOf("nft")},
			{"policies of iptables-legacy", policiesOf("legacy")},
			{"hostPort", hostPort},
			{"unallocated", unallocated},
			{"invalid", invalid},
			{"invalid, dropped", invalidDropped},
			{"fragments", fragments},
			{"small MTU, policy Cluster", smallMTU(ipvs.Masqueraded)},
			{"small MTU, policy Local", smallMTU()},
		} {
			t.Run(f.name+"/"+c.name, func(t *testing.T) {
				t.Parallel() // most of the time is spent waiting for silence
				c.run(t, newLab(t, f, o))
			})
		}
	}
}

// [T7] Ports without a virtual server are refused, also where the node listens on every address. A ping is answered.
func unlistedPorts(t *testing.T, l *lab) {
	any := netip.IPv4Unspecified()
	if l.raw == "ip6" {
		any = netip.IPv6Unspecified()
	}
	l.listen(t, l.node, any.String(), 22, "sshd")
	if got, err := l.ask(l.client, "tcp", "", at(l.vip, 22), 0); err != nil || got != "sshd "+l.family.client {
		t.Errorf("without the filter: answer %q, error %v; want sshd's", got, err)
	}
	l.apply(t, l.service(l.vip, l.family.pods[0], ipvs.Masqueraded))
	l.answers(t, l.client, "", at(l.vip, 80), "pod0", l.gateways[0])
	for _, from := range []*netspace.Space{l.client, l.pods[1], l.node} {
		l.refused(t, from, at(l.vip, 22))
		l.refused(t, from, at(l.vip, 1))
	}
	if got, err := l.client.Ask(l.raw+":132", l.vip); !errors.Is(err, syscall.ECONNREFUSED) { // SCTP, with or without support in the kernel
		t.Errorf("SCTP: answer %q, error %v; want it refused", got, err)
	}
	l.answers(t, l.client, "", at(l.family.node, 22), "sshd", l.family.client)
	for _, from := range []*netspace.Space{l.client, l.node} {
		if err := from.Ping(l.vip); err != nil {
			t.Errorf("ping %s: %v", l.vip, err)
		}
	}
	l.filter.DropPing = true
	l.apply(t, l.service(l.vip, l.family.pods[0], ipvs.Masqueraded))
	if err := l.client.PingWithin(silence, l.vip); err == nil {
		t.Errorf("%s answers a ping", l.vip)
	}
	if err := l.client.Ping(l.family.node); err != nil {
		t.Errorf("ping %s: %v", l.family.node, err)
	}
}

// nodes are the addresses that the node may select.
func (l *lab) nodes() []string { return []string{l.family.node, l.gateways[0], l.gateways[1]} }

// [T8, T10, T18] All clients are masqueraded.
func policyCluster(t *testing.T, l *lab) {
	l.apply(t, l.service(l.vip, l.family.pods[0], ipvs.Masqueraded))
	for _, from := range []*netspace.Space{l.client, l.pods[1], l.node} {
		l.answers(t, from, "", at(l.vip, 80), "pod0", l.gateways[0])
	}
	l.answers(t, l.node, l.family.node, at(l.vip, 80), "pod0", l.gateways[0])
}

// [T8, T10, T18] No client is masqueraded, except the node if it would use the virtual address as its own.
func policyLocal(t *testing.T, l *lab) {
	l.apply(t, l.service(l.vip, l.family.pods[0]))
	l.answers(t, l.client, "", at(l.vip, 80), "pod0", l.family.client)
	l.answers(t, l.pods[1], "", at(l.vip, 80), "pod0", l.family.pods[1])
	l.answers(t, l.node, "", at(l.vip, 80), "pod0", l.nodes()...)
	l.answers(t, l.node, l.family.node, at(l.vip, 80), "pod0", l.family.node)
}

// All clients except Pods are masqueraded.
func clusterIP(t *testing.T, l *lab) {
	l.apply(t, l.clusterIP())
	l.answers(t, l.client, "", at(l.vip, 80), "pod0", l.gateways[0])
	l.answers(t, l.pods[1], "", at(l.vip, 80), "pod0", l.family.pods[1])
	l.answers(t, l.node, "", at(l.vip, 80), "pod0", l.gateways[0])
}

// clusterIP returns a Service at the virtual address, with the networks of the Pods.
func (l *lab) clusterIP() state {
	s := l.service(l.vip, l.family.pods[0], ipvs.MasqueradedUnlessPod)
	for _, pod := range l.family.pods {
		s.add(ipvs.Element{Set: ipvs.Pods}.From(netip.PrefixFrom(netip.MustParseAddr(pod), l.podBits).Masked()))
	}
	return s
}

// Pods are identified by the interface on which their packets arrive, a bridge or a prefix of names, whatever their
// addresses.
func clusterIPInterface(t *testing.T, l *lab) {
	for _, c := range []struct {
		pattern, seen string
	}{
		{"pod1", l.family.pods[1]}, {"pod*", l.family.pods[1]}, {"p*", l.family.pods[1]},
		{"pod0", l.gateways[0]}, {"od*", l.gateways[0]},
	} {
		s := l.service(l.vip, l.family.pods[0], ipvs.MasqueradedUnlessPod)
		s.add(ipvs.Element{Set: ipvs.PodInterfaces}.From(everything(l.vip)).On(c.pattern))
		l.apply(t, s)
		l.answers(t, l.client, "", at(l.vip, 80), "pod0", l.gateways[0])
		l.answers(t, l.pods[1], "", at(l.vip, 80), "pod0", c.seen)
		l.answers(t, l.node, "", at(l.vip, 80), "pod0", l.gateways[0])
		if t.Failed() {
			t.Fatalf("with %s", c.pattern)
		}
	}
}

// everything is the prefix of all addresses of the family.
func everything(addr string) netip.Prefix {
	p, err := netip.MustParseAddr(addr).Prefix(0)
	if err != nil {
		panic(err)
	}
	return p
}

// A virtual server at the node's own address. Its other ports are not affected.
func nodePort(t *testing.T, l *lab) {
	l.listen(t, l.node, l.family.node, 22, "sshd")
	l.apply(t, l.service(l.family.node, l.family.pods[0], ipvs.Masqueraded))
	for _, from := range []*netspace.Space{l.client, l.pods[1], l.node} {
		l.answers(t, from, "", at(l.family.node, 80), "pod0", l.gateways[0])
	}
	l.answers(t, l.client, "", at(l.family.node, 22), "sshd", l.family.client)
}

// [T9] A Pod reaches itself.
func hairpin(t *testing.T, l *lab) {
	s := l.service(l.vip, l.family.pods[0])
	l.apply(t, s)
	l.silent(t, l.pods[0], "", at(l.vip, 80)) // it accepts no packet from its own address
	s.add(ipvs.Element{Set: ipvs.Hairpin, Key: ipvs.Key{Addr: netip.MustParseAddr(l.family.pods[0])}})
	l.apply(t, s)
	l.answers(t, l.pods[0], "", at(l.vip, 80), "pod0", l.gateways[0])
	l.answers(t, l.pods[1], "", at(l.vip, 80), "pod0", l.family.pods[1])
}

// An endpoint in the node's own network. Packets of others reach it without passing the hook that masquerades.
func endpointOnNode(t *testing.T, l *lab) {
	l.listen(t, l.node, l.family.node, 8080, "host")
	for _, sets := range [][]ipvs.Set{nil, {ipvs.Masqueraded}} {
		l.apply(t, l.service(l.vip, l.family.node, sets...))
		l.answers(t, l.client, "", at(l.vip, 80), "host", l.family.client)
		l.answers(t, l.pods[1], "", at(l.vip, 80), "host", l.family.pods[1])
		l.answers(t, l.node, "", at(l.vip, 80), "host", append(l.nodes(), l.vip)...)
	}
}

// without removes the real servers.
func (s state) without() state {
	for key, virtual := range s.table {
		virtual.RealServers = nil
		s.table[key] = virtual
	}
	return s
}

// Without an endpoint: refused.
func noEndpoint(t *testing.T, l *lab) {
	l.apply(t, l.service(l.vip, l.family.pods[0], ipvs.Masqueraded).without())
	for _, from := range []*netspace.Space{l.client, l.pods[1], l.node} {
		l.refused(t, from, at(l.vip, 80))
	}
}

// [T11, T12] Policy Local and no endpoint here: dropped. A connection to the last, draining endpoint continues.
func noLocalEndpoint(t *testing.T, l *lab) {
	s := l.service(l.vip, l.family.pods[0])
	l.apply(t, s)
	conn, err := l.client.Dial("tcp", l.family.client, at(l.vip, 80))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer := "pod0 " + l.family.client
	again(t, conn, answer, "before")
	for key, virtual := range s.table {
		for real := range virtual.RealServers {
			virtual.RealServers[real] = ipvs.RealServer{Weight: 0}
		}
		s.add(ipvs.Element{Set: ipvs.Dropped, Key: key})
	}
	l.apply(t, s)
	again(t, conn, answer, "while it drains")
	for _, from := range []*netspace.Space{l.client, l.pods[1], l.node} {
		l.silent(t, from, "", at(l.vip, 80))
	}
	l.apply(t, s.without())
	for _, from := range []*netspace.Space{l.client, l.pods[1], l.node} {
		l.silent(t, from, "", at(l.vip, 80))
	}
}

// [T24] Only the source ranges may connect: one address of the client, one of the Pods, and the node if the virtual
// address and its own are allowed.
func sourceRanges(t *testing.T, l *lab) {
	host := func(addr string) string {
		parsed := netip.MustParseAddr(addr)
		return netip.PrefixFrom(parsed, parsed.BitLen()).String()
	}
	s := l.service(l.vip, l.family.pods[0], ipvs.Masqueraded, ipvs.Restricted)
	l.apply(t, s)
	l.silent(t, l.client, "", at(l.vip, 80)) // no client is allowed
	s.allow(host(l.family.client))
	s.allow(host(l.family.pods[1]))
	l.apply(t, s)
	l.answers(t, l.client, l.family.client, at(l.vip, 80), "pod0", l.gateways[0])
	l.answers(t, l.pods[1], "", at(l.vip, 80), "pod0", l.gateways[0])
	l.silent(t, l.client, l.other, at(l.vip, 80))
	l.silent(t, l.pods[0], "", at(l.vip, 80))
	l.silent(t, l.node, "", at(l.vip, 80))
	s.allow(host(l.vip))
	s.allow(netip.PrefixFrom(netip.MustParseAddr(l.family.node), l.bits).Masked().String()) // which contains an existing one
	l.apply(t, s)
	l.answers(t, l.node, "", at(l.vip, 80), "pod0", l.gateways[0])
	l.answers(t, l.client, l.other, at(l.vip, 80), "pod0", l.gateways[0])
}

// [T23] INPUT, FORWARD and OUTPUT drop by policy.
func policiesOf(variant string) func(t *testing.T, l *lab) {
	return func(t *testing.T, l *lab) {
		program, icmp := "iptables-"+variant, "icmp"
		if l.raw == "ip6" {
			program, icmp = "ip6tables-"+variant, "ipv6-icmp" // neighbor discovery uses it
		}
		s := l.service(l.vip, l.family.pods[0]).and(l.service(l.family.node, l.family.pods[0]))
		check := ipvs.Key{Addr: netip.MustParseAddr(l.family.node), Protocol: ipvs.TCP, Port: 31000} // a healthCheckNodePort
		s.add(ipvs.Element{Set: ipvs.Served, Key: check})
		l.node.ServeTCP(t, at(l.family.node, 31000), "health")
		l.apply(t, s)
		for _, chain := range []string{"INPUT", "FORWARD", "OUTPUT"} {
			for _, args := range [][]string{{"-w", "-P", chain, "DROP"}, {"-w", "-A", chain, "-p", icmp, "-j", "ACCEPT"}} {
				l.node.Must(t, func() error { return exec.Command(program, args...).Run() })
			}
		}
		l.silent(t, l.client, "", at(l.vip, 80))
		l.node.Must(t, func() error {
			changed, problems, err := nft.Policies{}.Apply(context.Background())
			if len(changed) != 3 || len(problems) != 0 {
				t.Errorf("changed %v, problems %v; want a rule in each of three chains", changed, problems)
			}
			return err
		})
		l.answers(t, l.client, "", at(l.vip, 80), "pod0", l.family.client)
		l.answers(t, l.client, "", at(l.family.node, 80), "pod0", l.family.client)
		l.answers(t, l.pods[1], "", at(l.vip, 80), "pod0", l.family.pods[1])
		l.answers(t, l.node, "", at(l.vip, 80), "pod0", l.nodes()...)
		if got, err := l.ask(l.client, "tcp", "", at(l.family.node, 31000), 0); err != nil || got != "health "+l.family.client {
			t.Errorf("health check: answer %q, error %v", got, err)
		}
		l.silent(t, l.client, "", at(l.family.node, 22))
	}
}

// Packets to an address of a Service network without a Service are dropped, though there is a route.
func unallocated(t *testing.T, l *lab) {
	bits := netip.MustParseAddr(l.nowhere).BitLen()
	l.client.Address(t, "lo", netip.PrefixFrom(netip.MustParseAddr(l.nowhere), bits).String())
	l.listen(t, l.client, l.nowhere, 80, "unserved")
	l.node.Route(t, netip.PrefixFrom(netip.MustParseAddr(l.nowhere), bits).String(), l.family.client)
	for _, pod := range l.family.pods {
		l.client.Route(t, netip.PrefixFrom(netip.MustParseAddr(pod), l.podBits).Masked().String(), l.family.node)
	}
	s := l.service(l.vip, l.family.pods[0])
	l.apply(t, s)
	for _, from := range []*netspace.Space{l.pods[1], l.node} {
		l.answers(t, from, "", at(l.nowhere, 80), "unserved", append(l.nodes(), l.family.pods[1])...)
	}
	s.add(ipvs.Element{Set: ipvs.ServiceNetworks}.From(netip.MustParsePrefix(l.services)))
	l.apply(t, s)
	for _, from := range []*netspace.Space{l.pods[1], l.node} {
		l.silent(t, from, "", at(l.nowhere, 80))
		l.answers(t, from, "", at(l.vip, 80), "pod0", append(l.nodes(), l.family.pods[1])...)
	}
}
