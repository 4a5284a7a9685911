package direct_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/conntrack"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/kernel"
	"github.com/ironlb/ironlb/ipvs/nft"
	"github.com/ironlb/ironlb/ipvs/nftlb"
	"github.com/ironlb/ironlb/speaker/link"
)

// withIPVS selects IPVS as the second tier; without it, it is nftables.
var withIPVS = os.Getenv("IRONLB_DATAPLANE") == "ipvs"

// secondTier is the virtual servers of one node.
type secondTier interface {
	List() (ipvs.Table, error)
	Apply([]ipvs.Op) ([]ipvs.Op, error)
	Close()
}

// openSecondTier prepares the namespace of the calling thread as a node.
func openSecondTier() (secondTier, error) {
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

// fewer returns n, or less with IPVS, whose kernel may be emulated.
func fewer(n int) int {
	if withIPVS {
		return n/5 + 1
	}
	return n
}

// filter programs the packet filters as planned for a Service with endpoints on these nodes, and deletes the others.
func (l *lab) filter(t *testing.T, serving ...int) {
	t.Helper()
	for i := range l.nodes {
		l.filterNode(t, i, slices.Contains(serving, i))
	}
}

// filterNode is filter on one node. Without serving, it has no endpoint.
func (l *lab) filterNode(t *testing.T, i int, serving bool) {
	t.Helper()
	elements := make(ipvs.Filter)
	add := func(set ipvs.Set, key ipvs.Key) { elements[ipvs.Element{Set: set, Key: key}] = struct{}{} }
	for _, key := range keys() {
		add(ipvs.Addresses, ipvs.Key{Addr: key.Addr})
		add(ipvs.Served, key)
		if !serving {
			add(ipvs.Dropped, key)
		}
		for pod := range l.pods {
			add(ipvs.Endpoints, ipvs.Key{Addr: netip.MustParseAddr(familyOf(key.Addr).pod(pod))})
		}
	}
	l.nodes[i].Must(t, func() error {
		filter, err := nft.New()
		if err != nil {
			return err
		}
		defer filter.Close()
		_, err = filter.Build(context.Background(), elements)
		return err
	})
	if !serving {
		l.serve(t, i, ipvs.Settings{Scheduler: ipvs.RoundRobin})
	}
}

// An owner without endpoints sends to the other nodes. Neither its packet filter nor its virtual servers take what it
// sends.
func TestOwnerWithoutEndpoints(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		l.filter(t, 1, 2)
		l.direct(t, ipvs.Directed{Slots: spreadOver(1, 2)})
		all := l.open(t, fewer(20), "tcp", "udp")
		if got := shares(all); got["pod1"] == 0 || got["pod2"] == 0 {
			t.Errorf("the connections reach %v", got)
		}
		l.own(t, 1)
		survive(t, all, "the owner moves")
	})
}

// What comes out of a tunnel on a node without endpoints is not refused: the sender's slots are older than this node's,
// so a retransmission reaches an endpoint. A connection whose endpoint is deleted is reset.
func TestNoEndpoint(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		l.filter(t, 1)
		l.direct(t, ipvs.Directed{Slots: spreadOver(1)})
		all := l.open(t, 1, "tcp")
		l.filterNode(t, 1, false)
		table := make(ipvs.Table)
		for _, key := range keys() {
			table[key] = ipvs.VirtualServer{}
		}
		l.nodes[1].Must(t, func() error {
			_, err := conntrack.Clean(context.Background(), table)
			return err
		})
		for _, f := range families {
			conn, err := l.client.DialWithin(time.Second, "tcp", "", at(f.vip, servicePort))
			var timeout net.Error
			if err == nil {
				conn.Close()
			}
			if !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Errorf("%s: a new connection: %v, want no answer", f.name, err)
			}
		}
		for _, c := range all {
			if got, err := netspace.AskOn(c); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a connection to a deleted endpoint: answer %q, error %v, want a reset", got, err)
			}
		}
	})
}

// An endpoint in the node's own network sees the client's address.
func TestHostNetwork(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		host := func(f family) string { return at(f.node(1), podPort) }
		for _, f := range families {
			l.nodes[1].ServeTCP(t, host(f), "podless")
			l.nodes[1].ServeUDP(t, host(f), "podless")
		}
		l.serve(t, 1, ipvs.Settings{Scheduler: ipvs.RoundRobin}, host)
		for _, node := range []uint16{1, 0} { // not through a tunnel, and through one
			l.direct(t, ipvs.Directed{Slots: spreadOver(1), Before: spreadOver(node)})
			l.own(t, int(node))
			all := l.open(t, 2, "tcp", "udp")
			if got := shares(all); got["podless"] != len(all) {
				t.Errorf("owner %d: the connections reach %v", node, got)
			}
		}
	})
}

// With session affinity, all connections of a client reach one of the endpoints on its node, from every owner.
func TestAffinity(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		sticky := ipvs.Settings{Scheduler: ipvs.RoundRobin, Flags: ipvs.Persistent, Timeout: 600}
		for i, pod := range l.pods {
			other := func(f family) string { return at(f.pod(i), podPort+1) }
			for _, f := range families {
				pod.ServeTCP(t, other(f), podName(i)+"b")
			}
			l.serve(t, i, sticky, podAt(i), other)
		}
		l.direct(t, ipvs.Directed{Slots: spreadOver(0, 1, 2), ByClient: true})
		for _, f := range families {
			pods := make(map[string]bool)
			for _, owner := range []int{0, 1, 2} {
				l.own(t, owner)
				for range 4 {
					got, err := l.ask("tcp", f)
					if err != nil {
						t.Fatal(err)
					}
					pods[got] = true
				}
			}
			if len(pods) != 1 {
				t.Errorf("%s: one client reaches %v", f.name, pods)
			}
		}
	})
}
