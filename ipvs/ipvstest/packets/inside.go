package packets

import (
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftlb"
)

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
