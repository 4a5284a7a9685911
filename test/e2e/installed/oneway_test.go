package installed

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/connections"
)

var (
	rounds = flag.Int("rounds", 1, "of each one-way link of TestOneWay")
	within = flag.Duration("within", 3*time.Second, "new connections fail for at most this time after a link became one-way")
)

// oneWay is the loss of what the LAN switch delivers to the owner of an address; it passes what the owner sends.
var oneWay = []struct {
	name    string
	percent int
}{
	{"owner receives nothing", 100},
	{"owner receives 30 %", 70},
	{"owner receives 70 %", 30},
}

// TestOneWay: a node that sends and does not receive costs clients no more than a dead one. Its addresses move, its
// endpoints get no new connections by any way of forwarding, connections of forwarding direct with Pods elsewhere stay,
// and nothing moves when it receives again. A link that loses a part is measured without a bound.
func TestOneWay(t *testing.T) {
	cluster.Need(t)
	serve(t)
	targets := byForwarding(t)
	var table strings.Builder
	rows := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows, "fault\tround\tforwarding\tnew connections\tfailed\tfor\testablished, Pod elsewhere\tbroken\tmoved after")
	for _, fault := range oneWay {
		if fault.percent < 100 && *rounds == 1 {
			continue // without an assertion
		}
		for round := range *rounds {
			t.Run(fmt.Sprintf("%s/%d", strings.ReplaceAll(fault.name, " ", "_"), round+1), func(t *testing.T) {
				cluster.Need(t)
				loseToOwner(t, fault.percent, targets, func(r oneWayResult) {
					fmt.Fprintf(rows, "%s\t%d\t%s\t%d\t%d\t%s\t%d\t%d\t%s\n", fault.name, round+1, r.forwarding, r.opened.All, r.opened.Broken,
						r.outage.Round(time.Millisecond), r.elsewhere.All, r.elsewhere.Broken, r.moved.Round(time.Millisecond))
					if fault.percent < 100 {
						return
					}
					if r.outage > *within {
						t.Errorf("%s: new connections failed for %s", r.forwarding, r.outage)
					}
					if r.forwarding == "direct" && r.elsewhere.Broken > 0 {
						t.Errorf("%d of %d connections with a Pod elsewhere broke: %s", r.elsewhere.Broken, r.elsewhere.All, r.causes)
					}
				})
			})
		}
	}
	if err := rows.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", table.String())
}

// oneWayResult is the effect of one fault on the connections of one way of forwarding.
type oneWayResult struct {
	forwarding        string
	opened, elsewhere connections.Share
	outage            time.Duration // from the fault to the last failed connection
	moved             time.Duration
	causes            string
}

// byForwarding creates Services for each way of forwarding until the end of the test, and returns their addresses.
func byForwarding(t *testing.T) map[string][]netip.AddrPort {
	t.Helper()
	kubectl(t, "apply", "-f", "test/e2e/installed/testdata/direct.yaml", "-f", "test/e2e/installed/testdata/oneway.yaml")
	all := serveDirect(t)
	targets := map[string][]netip.AddrPort{}
	for _, forwarding := range []string{"direct", "pod", "nodeport"} {
		ofService := "oneway-" + forwarding
		if forwarding == "direct" {
			ofService = "direct-cluster"
		}
		addrs := strings.Fields(kubectl(t, "get", "service", ofService, "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"))
		for _, target := range all {
			if slices.Contains(addrs, target.Addr().String()) {
				targets[forwarding] = append(targets[forwarding], target)
			}
		}
	}
	waitDirect(t, 4) // two families of direct-cluster and direct-local
	return targets
}

// loseToOwner loses frames to the owner of the first address for 15 s, and reports the connections of each way of
// forwarding from the LAN.
func loseToOwner(t *testing.T, percent int, targets map[string][]netip.AddrPort, report func(oneWayResult)) {
	t.Helper()
	const lasts = 15 * time.Second
	clients := map[string][2]*directClient{} // one keeps connections, one opens short ones
	for forwarding, addrs := range targets {
		clients[forwarding] = [2]*directClient{
			startConnections(t, cluster.Client, &connections.Client{Targets: addrs, Kept: directKept, Every: 500 * time.Millisecond, Bound: lasts}),
			startConnections(t, cluster.Client, &connections.Client{Targets: addrs, Every: time.Second, Open: 40 * time.Millisecond, Lines: 1, Bound: time.Second}),
		}
	}
	for _, c := range clients {
		c[0].wait(t, directKept, func(l connections.Life) bool { return l.Kept })
		c[1].wait(t, directLater, func(connections.Life) bool { return true })
	}
	addr := targets["direct"][0].Addr()
	owner := ownerOf(t, addr)
	on := nodesOf(t, "app=web")
	did := connections.Fault{Began: time.Now(), Gone: map[string]time.Time{}}
	for pod, node := range on {
		if node == owner {
			did.Gone[pod] = did.Began.Add(-time.Second) // what fails now may have had its last answer an interval before
		}
	}
	heal := func(ctx context.Context) {
		if err := cluster.Pass(ctx); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { heal(context.WithoutCancel(t.Context())) })
	if err := cluster.Lose(t.Context(), lab.Loss{To: &owner.Machine, Percent: percent}); err != nil {
		t.Fatal(err)
	}
	var moved time.Duration
	if percent == 100 {
		waitMoved(t, owner, addr)
		moved = time.Since(did.Began)
	}
	until := time.NewTimer(time.Until(did.Began.Add(lasts)))
	defer until.Stop()
	select {
	case <-until.C:
	case <-t.Context().Done():
	}
	did.Done = time.Now()
	results := map[string]oneWayResult{}
	for forwarding, c := range clients {
		r := oneWayResult{forwarding: forwarding, moved: moved}
		for i, client := range c {
			lives, _, err := client.Stop()
			if err != nil {
				t.Fatal(err)
			}
			count := connections.CountLives(lives, did)
			if count.Before > 0 {
				t.Errorf("%s: %d connections broke before the fault: %s", forwarding, count.Before, count)
			}
			if i == 0 {
				r.elsewhere, r.causes = count.Elsewhere, count.String()
				continue
			}
			r.opened = count.During
			for _, l := range lives {
				if l.Cause != connections.Unbroken && l.Opened.After(did.Began) {
					r.outage = max(r.outage, l.Opened.Sub(did.Began))
				}
			}
		}
		results[forwarding] = r
	}
	now := ownerOf(t, addr)
	heal(t.Context())
	for _, forwarding := range slices.Sorted(maps.Keys(results)) {
		report(results[forwarding])
	}
	settled(t)
	allAlive(t)
	if percent == 100 {
		if after := ownerOf(t, addr); after != now {
			t.Errorf("the address went from %s to %s when %s received again", now.Name, after.Name, owner.Name)
		}
	}
}

// allAlive waits until every speaker reports that it receives all others.
func allAlive(t *testing.T) {
	t.Helper()
	others := len(cluster.Nodes) - 1
	cluster.Await(t, time.Minute, "all speakers to receive one another", func(ctx context.Context) error {
		var all v1alpha1.SpeakerStatusList
		if err := cluster.Objects.List(ctx, &all); err != nil {
			return err
		}
		for _, s := range all.Items {
			if s.Status.Alive != fmt.Sprintf("%d/%d", others, others) {
				return fmt.Errorf("%s reports %s", s.Name, s.Status.Alive)
			}
		}
		return nil
	})
}
