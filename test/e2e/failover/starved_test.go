package failover

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/test/lab"
)

const (
	// standstills is the metric that counts a speaker's fences: it stalled for so long that it gave up its VirtualIPs.
	standstills = "ironlb_liveness_fences_total"
	// standstillsMost is the number of fences that a busy machine may cause in the entire run. More may be a fault of
	// the speaker.
	standstillsMost = 4
)

var starvedNodes int // in the entire run

// starved returns the nodes whose speaker has stalled since the scene began, except those that the test itself stops.
// Their VirtualIPs had to move. Each is logged, and the number is limited.
func (s *scene) starved() (nodes []*lab.Node) {
	s.t.Helper()
	for _, n := range cluster.Nodes {
		if !slices.Contains(s.victims, n) && fencesOf(s.t.Context(), n) > s.fences[n] {
			nodes = append(nodes, n)
		}
		if slices.Contains(nodes, n) && !slices.Contains(s.published, n) {
			s.published = append(s.published, n)
			starvedNodes++
			s.t.Logf("the machine is busy: the speaker on %s did not run for too long", n.Name)
		}
	}
	if starvedNodes > standstillsMost {
		s.t.Errorf("speakers did not run for too long %d times in all tests: this machine is too busy, or the speaker is at fault", starvedNodes)
	}
	return nodes
}

// fencesOf returns the counter of the node's speaker, 0 if it does not answer.
func fencesOf(ctx context.Context, n *lab.Node) (count int) {
	for lines := bufio.NewScanner(strings.NewReader(metricsOf(ctx, n))); lines.Scan(); {
		if _, err := fmt.Sscanf(lines.Text(), standstills+" %d", &count); err == nil {
			return count
		}
	}
	return 0
}

// metricsOf returns the metrics of the node's speaker, nothing if it does not answer.
func metricsOf(ctx context.Context, n *lab.Node) string {
	if p := n.Speaker(); p == nil || !p.Running() {
		return ""
	}
	out, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "2", "http://127.0.0.1:7950/metrics")
	if err != nil {
		return "" // the test has stopped it
	}
	return out
}
