package pools

import (
	"cmp"
	"slices"
)

// firstOverlap returns the first entry j that shares an address with an earlier entry i.
func firstOverlap(ranges []Range) (i, j int, found bool) {
	order := make([]int, len(ranges))
	for k := range order {
		order[k] = k
	}
	slices.SortFunc(order, func(x, y int) int {
		return cmp.Or(ranges[x].First.Compare(ranges[y].First), cmp.Compare(x, y))
	})
	reach := -1 // the entry so far with the highest end
	for _, k := range order {
		if reach >= 0 && ranges[reach].Overlaps(ranges[k]) {
			x, y := min(reach, k), max(reach, k)
			if !found || y < j || y == j && x < i {
				i, j, found = x, y, true
			}
		}
		if reach < 0 || ranges[k].Family() != ranges[reach].Family() || ranges[reach].Last.Less(ranges[k].Last) {
			reach = k
		}
	}
	return i, j, found
}
