package metrics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab/router"
)

// healthy waits until Prometheus reads each program, each node has its session, and no alert fires.
func healthy(t *testing.T) {
	t.Helper()
	cluster.Need(t)
	cluster.Await(t, patience, "Prometheus reads all programs, and no alert fires", func(ctx context.Context) error {
		up, err := query(ctx, "up == 1")
		if err != nil {
			return err
		}
		var have []string
		for _, s := range up {
			have = append(have, strings.TrimSpace(s["job"]+" "+s["node"]))
		}
		slices.Sort(have)
		want := []string{"ironlb-bgpd node1", "ironlb-bgpd node2", "ironlb-bgpd node3", "ironlb-ccm",
			"ironlb-speaker node1", "ironlb-speaker node2", "ironlb-speaker node3"}
		if !slices.Equal(have, want) {
			return fmt.Errorf("up are %q, want %q", have, want)
		}
		for _, expr := range []string{
			`leader_election_master_status{job="ironlb-ccm"} == 1`, `ironlb_bgp_speaker_connected{job="ironlb-bgpd",node="node3"} == 1`,
			`ironlb_pool_addresses{job="ironlb-ccm",pool="lan",state="assigned"} == 1`, `count(ironlb_bgp_session_up{job="ironlb-speaker",peer="tor"} == 1) == 3`,
			`sum(ironlb_speaker_announced_addresses{job="ironlb-speaker"}) == 1`, `absent(ALERTS)`,
		} {
			if found, err := query(ctx, expr); err != nil || len(found) != 1 {
				alerts, _ := query(ctx, "ALERTS")
				return fmt.Errorf("%s has %v (%v); alerts: %v", expr, found, err, alerts)
			}
		}
		return nil
	})
}

// fires waits for an alert with a label.
func fires(t *testing.T, alert, label, value string) {
	t.Helper()
	cluster.Await(t, patience, alert+" fires for "+value, func(ctx context.Context) error {
		expr := fmt.Sprintf(`ALERTS{alertstate="firing",alertname=%q,%s=%q}`, alert, label, value)
		found, err := query(ctx, expr)
		if err == nil && len(found) != 1 {
			all, e := query(ctx, "ALERTS")
			err = errors.Join(fmt.Errorf("the alerts are %v", all), e)
		}
		return err
	})
}

// TestAuthorization: metrics of the node's address need a token of an account that may read them.
func TestAuthorization(t *testing.T) {
	healthy(t)
	other, err := token(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/metrics", "/metrics/bgpd"} {
		for _, c := range []struct{ header, want string }{
			{"Accept: */*", "401"}, {"Authorization: Bearer none", "401"}, {"Authorization: Bearer " + other, "403"},
		} {
			have, err := cluster.Management.Exec(t.Context(), "curl", "-sSk", "--max-time", "5", "-o", "/dev/null", "-w", "%{http_code}", "-H", c.header,
				"https://"+secure(cluster.Node(0))+path)
			if err != nil || have != c.want {
				t.Errorf("%s with %.22s: %s (%v), want %s", path, c.header, have, err, c.want)
			}
		}
	}
}

// TestWithoutAPIServer: Prometheus reads the metrics of the nodes while the API server is away, and the alert of
// ironlb-ccm fires.
func TestWithoutAPIServer(t *testing.T) {
	healthy(t)
	if err := errors.Join(ccm.Stop(20*time.Second), cluster.StopAPIServer()); err != nil { // without its Lease it would end by itself
		t.Fatal(err)
	}
	fires(t, "IronLBControllerDown", "severity", "critical")
	// Longer than a permission is used without a review.
	cluster.Await(t, 2*patience, "without the API server the metrics of all nodes were read for 70 seconds", func(ctx context.Context) error {
		found, err := query(ctx, `count(min_over_time(up{job=~"ironlb-(speaker|bgpd)"}[70s]) == 1) == 6
			and on () count_over_time(absent(up{job="ironlb-ccm"} == 1)[70s:1s]) >= 69`)
		if err == nil && len(found) != 1 {
			err = errors.New("not yet, or not all")
		}
		return err
	})
	if err := cluster.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	var err error
	if ccm, err = cluster.StartCCM(t.Context()); err != nil {
		t.Fatal(err)
	}
	healthy(t)
}

// TestDeadNode: the alert names the node, and ends when it is back.
func TestDeadNode(t *testing.T) {
	healthy(t)
	n := cluster.Node(2)
	if err := n.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	fires(t, "IronLBSpeakerDown", "node", n.Name)
	if err := n.PowerOn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := startSpeaker(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	healthy(t)
}

// TestSessionDown: the alert names the node of a session that the router does not have any more.
func TestSessionDown(t *testing.T) {
	healthy(t)
	without := peers
	without.Neighbors = slices.DeleteFunc(slices.Clone(peers.Neighbors), func(n router.Neighbor) bool { return n.Name == "node2" })
	if err := bird.Configure(t.Context(), without); err != nil {
		t.Fatal(err)
	}
	fires(t, "IronLBBGPSessionDown", "node", "node2")
	if err := bird.Configure(t.Context(), peers); err != nil {
		t.Fatal(err)
	}
	healthy(t)
}

// TestFullPool: the alert names the pool, and ends when it has more addresses.
func TestFullPool(t *testing.T) {
	healthy(t)
	if err := cluster.ApplyYAML(t.Context(), fmt.Sprintf(service, "more")); err != nil {
		t.Fatal(err)
	}
	fires(t, "IronLBPoolFull", "pool", "lan")
	if _, err := cluster.Kubectl(t.Context(), "delete", "service", "more"); err != nil {
		t.Fatal(err)
	}
	healthy(t)
}
