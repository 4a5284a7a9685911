package leastprivilege

import (
	"context"
	"slices"

	"github.com/ironlb/ironlb/test/lab/manifest"
)

// check is something that a user of the cluster sees, and that a program does.
type check struct {
	name string
	// proves names the rights, by their keys, whose removal is expected to fail this check: it runs first then.
	proves []string
	run    func(ctx context.Context, w *world) error
}

// checks by program.
var checks = map[string][]check{ccm: managerChecks, speaker: speakerChecks, bgpd: daemonChecks}

// ordered returns the checks of the container's program, with those first that are expected to prove the right.
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
