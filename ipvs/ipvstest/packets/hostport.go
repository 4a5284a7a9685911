package packets

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nftlb"
)

// [2.4.4] Another program translates the destination of packets to the node, as for a Pod's hostPort, docker -p or
// kube-proxy's NodePorts. It does not affect served ports, in either order of creation, also if there is no endpoint.
// It keeps ports that are not served.
func hostPort(t *testing.T, l *lab) {
	served := l.service(l.vip, l.family.pods[0], ipvs.Masqueraded)
	stays := func(when string) {
		t.Helper()
		for _, from := range []*netspace.Space{l.client, l.node} {
			l.answers(t, from, "", at(l.family.node, 80), "pod1", l.family.client, l.family.node, l.gateways[1])
			l.answers(t, from, "", at(l.vip, 80), "pod0", l.gateways[0])
		}
		if t.Failed() {
			t.Fatal(when)
		}
	}
	l.translate(t)
	l.apply(t, served)
	stays("with the other's rules before ours")
	l.nft(t, "delete table "+l.nftFamily()+" hostports")
	l.translate(t)
	stays("with the other's rules after ours")
	l.nft(t, "flush ruleset")
	l.translate(t)
	l.apply(t, served)
	stays("after a flush of all rules")
	l.apply(t, served.without())
	for _, from := range []*netspace.Space{l.client, l.node} {
		l.refused(t, from, at(l.vip, 80))
	}
	// A NodePort, at the node's own address.
	l.apply(t, served.and(l.service(l.family.node, l.family.pods[0], ipvs.Masqueraded)))
	for _, from := range []*netspace.Space{l.client, l.node} {
		l.answers(t, from, "", at(l.family.node, 80), "pod0", l.gateways[0])
	}
	l.apply(t, l.clusterIP())
	l.answers(t, l.pods[1], "", at(l.vip, 80), "pod0", l.family.pods[1])
}

// nftFamily returns the family of the lab's tables.
func (l *lab) nftFamily() string {
	if l.raw == "ip6" {
		return "ip6"
	}
	return "ip"
}

// translate creates table "hostports", which sends port 80 of every address of the node to the second Pod, as the CNI
// plugin portmap does.
func (l *lab) translate(t *testing.T) {
	t.Helper()
	var script strings.Builder
	fmt.Fprintf(&script, "add table %s hostports\n", l.nftFamily())
	for _, hook := range []string{"prerouting", "output"} {
		fmt.Fprintf(&script, "add chain %s hostports %s { type nat hook %[2]s priority -100; }\n", l.nftFamily(), hook)
		for _, protocol := range l.protocols {
			fmt.Fprintf(&script, "add rule %s hostports %s fib daddr type local %s dport 80 dnat to %s\n", l.nftFamily(), hook,
				networks[protocol], at(l.family.pods[1], 8080))
		}
	}
	l.nft(t, script.String())
}

func (l *lab) nft(t *testing.T, script string) {
	t.Helper()
	l.node.Must(t, func() error { return netspace.NFT(script) })
}

// [T11] Policy Local: external clients get the endpoint of this node, and are dropped if it has none; internal clients
// get the endpoint of another node.
func shortCircuit(t *testing.T, l *lab) {
	var pods ipvs.PodSources
	for _, pod := range l.family.pods {
		pods.Prefixes = append(pods.Prefixes, netip.PrefixFrom(netip.MustParseAddr(pod), l.podBits).Masked())
	}
	shortCircuitOf(t, l, pods)
}

// The same with Pods identified by the interfaces on which their packets arrive.
func shortCircuitInterface(t *testing.T, l *lab) {
	shortCircuitOf(t, l, ipvs.PodSources{Interfaces: []string{"pod*"}})
}

func shortCircuitOf(t *testing.T, l *lab, pods ipvs.PodSources) {
	t.Helper()
	outside, inside := l.service(l.vip, l.family.pods[1]), l.service(l.vip, l.family.pods[0])
	l.apply(t, outside)
	l.node.Must(t, func() error {
		balancer, err := nftlb.New(nftlb.ClusterInternal)
		if err != nil {
			return err
		}
		t.Cleanup(balancer.Close)
		if err := balancer.SetPods(pods); err != nil {
			return err
		}
		_, err = balancer.Apply(ipvs.Diff(nil, inside.table))
		return err
	})
	same := func() {
		t.Helper()
		l.answers(t, l.pods[1], "", at(l.vip, 80), "pod0", l.family.pods[1])
		l.answers(t, l.node, "", at(l.vip, 80), "pod0", l.nodes()...)
		l.refused(t, l.client, at(l.vip, 81))
	}
	l.answers(t, l.client, "", at(l.vip, 80), "pod1", l.family.client)
	same()
	outside = outside.without()
	for key := range outside.table {
		outside.add(ipvs.Element{Set: ipvs.Dropped, Key: key})
	}
	l.apply(t, outside)
	l.silent(t, l.client, "", at(l.vip, 80))
	same()
}
