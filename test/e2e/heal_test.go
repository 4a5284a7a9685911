package e2e

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/rare"
)

// harm is damage by another program to IronLB's state on a node.
type harm struct {
	name string
	// show lists the damaged state.
	show, do string
}

// harms returns the damage done to the data plane of the run.
func harms(addr netip.Addr) []harm {
	if dataplane == scene.NFTables {
		return []harm{
			{"all tables flushed", "nft list ruleset", "nft list table ip foreign >$TMPDIR/foreign.nft && nft flush ruleset && nft -f $TMPDIR/foreign.nft"},
			{"load balancer's table deleted", "nft list table ip ironlb-lb", "nft delete table ip ironlb-lb"},
			{"filter's table deleted", "nft list table ip ironlb", "nft delete table ip ironlb"},
		}
	}
	http := netip.AddrPortFrom(addr, httpPort).String()
	return []harm{
		// A flush also removes the foreign virtual server; restore it, because other tests check it.
		{"virtual servers flushed", "ipvsadm -Sn", "ipvsadm -C" + foreignIPVS},
		{"virtual server deleted", "ipvsadm -Sn", "ipvsadm -D -t " + http},
		{"virtual server edited", "ipvsadm -Sn", "ipvsadm -E -t " + http + " -s lc -p 30"},
		{"nftables table deleted", "nft list table ip ironlb", "nft delete table ip ironlb"},
		{"address deleted", "ip -4 route show table local", "ip route del local " + addr.String() + " dev lo table local"},
	}
}

// heal does the damage and returns the time until the state is restored. One script lists the state, damages it and
// lists it again. The last listing counts, in an emulated guest some tenths of a second; the connection to the guest
// does not.
func heal(t testing.TB, n *lab.Node, h harm) time.Duration {
	t.Helper()
	script := fmt.Sprintf(`
before=$(%[1]s | sort)
set -e
%[2]s
set +e
start=$(date +%%s%%N)
until [ "$(%[1]s 2>/dev/null | sort)" = "$before" ]; do
  [ $(( $(date +%%s%%N) - start )) -lt 30000000000 ] || { echo "not healed after 30s:" >&2; %[1]s >&2; exit 1; }
done
echo $(( ($(date +%%s%%N) - start) / 1000000 ))`, h.show, h.do)
	out, err := n.Exec(t.Context(), "sh", "-c", script)
	if err != nil {
		t.Fatalf("%s: %v", h.name, err)
	}
	took, err := time.ParseDuration(trim(out) + "ms")
	if err != nil {
		t.Fatal(err)
	}
	return took
}

// TestHarmIsHealed: state flushed, deleted or edited by another program is restored. BenchmarkHarmIsHealed measures the
// time.
func TestHarmIsHealed(t *testing.T) {
	rare.Test(t)
	pods(t, "harm", 3)
	service(t, "harm")
	addr := address(t, "harm")
	node := owner(t, addr, "a node", anyNode)
	reachable(t, cluster.Client, netip.AddrPortFrom(addr, httpPort))
	for _, h := range harms(addr) {
		t.Run(h.name, func(t *testing.T) { t.Logf("healed after %s", heal(t, node, h)) })
	}
	reachable(t, cluster.Client, netip.AddrPortFrom(addr, httpPort))
}

// BenchmarkHarmIsHealed prints the time until damage by another program is repaired, on average and at most.
func BenchmarkHarmIsHealed(b *testing.B) {
	pods(b, "harm", 3)
	service(b, "harm")
	addr := address(b, "harm")
	node := owner(b, addr, "a node", anyNode)
	reachable(b, cluster.Client, netip.AddrPortFrom(addr, httpPort))
	for _, h := range harms(addr) {
		b.Run(h.name, func(b *testing.B) {
			var sum, most time.Duration
			for range b.N {
				took := heal(b, node, h)
				sum, most = sum+took, max(most, took)
			}
			b.ReportMetric(0, "ns/op") // would include the first listing and the connection to the guest
			b.ReportMetric(float64(sum.Milliseconds())/float64(b.N), "ms/heal")
			b.ReportMetric(float64(most.Milliseconds()), "max-ms/heal")
		})
	}
}
