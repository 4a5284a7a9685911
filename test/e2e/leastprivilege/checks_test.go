package leastprivilege

import (
	"context"
	"slices"

	"github.com/ironlb/ironlb/test/lab/manifest"
)

// check tests an effect of a program that is visible to a user of the cluster.
type check struct {
	name string
	// proves names the rights, by their keys, whose removal must fail this check: for these it runs first.
	proves []string
	run    func(ctx context.Context, f *fixture) error
}

// checks by program.
var checks = map[string][]check{ccm: managerChecks, speaker: speakerChecks, bgpd: daemonChecks}

// ordered returns the checks of the container's program, those that prove the right first.
func ordered(r manifest.Right) []check {
	all := slices.Clone(checks[program(r.Container)])
	slices.SortStableFunc(all, func(a, b check) int { return rank(a, r) - rank(b, r) })
	return all
}

func rank(c check, r manifest.Right) int {
	if slices.Contains(c.proves, r.Key()) {
		return 0
	}
	return 1
}

// reads are the verbs of an informer of the resources.
func reads(resources ...string) (keys []string) {
	for _, r := range resources {
		keys = append(keys, "list "+r, "watch "+r)
	}
	return keys
}
