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
	// standstills is the metric that counts how often a speaker did not run for so long that it gave up what it held.
	standstills = "ironlb_liveness_fences_total"
	// standstillsMost in a whole run a busy machine may cause; more are reason to look at the speaker.
	standstillsMost = 4
)

var starvedNodes int // in the whole run

// starved returns the nodes whose speaker the machine did not let run since the scene began, but for those that the test itself stops:
// what they held may have moved, as it must then. It is said, and may not happen often.
func (s *scene) starved() (nodes []*lab.Node) {
	s.t.Helper()
	for _, n := range cluster.Nodes {
		if !slices.Contains(s.victims, n) && stoodStill(s.t.Context(), n) > s.stood[n] {
			nodes = append(nodes, n)
		}
		if slices.Contains(nodes, n) && !slices.Contains(s.told, n) {
			s.told = append(s.told, n)
			starvedNodes++
			s.t.Logf("the machine is busy: the speaker on %s did not run for too long", n.Name)
		}
	}
	if starvedNodes > standstillsMost {
		s.t.Errorf("speakers did not run for too long %d times in all tests: this machine is too busy, or the speaker is at fault", starvedNodes)
	}
	return nodes
}

// stoodStill is what the node's speaker counted, 0 if none answers.
func stoodStill(ctx context.Context, n *lab.Node) (count int) {
	if p := n.Speaker(); p == nil || !p.Running() {
		return 0
	}
	out, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "2", "http://127.0.0.1:7473/metrics")
	if err != nil {
		return 0 // the test has stopped it
	}
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		if _, err := fmt.Sscanf(lines.Text(), standstills+" %d", &count); err == nil {
			return count
		}
	}
	return 0
}
