package bgpstatus

import (
	"testing"

	"github.com/ironlb/ironlb/pools"
)

// TestWidePrefix: adjoining ranges count as one, in any order; the first prefix that extends beyond them is returned.
func TestWidePrefix(t *testing.T) {
	for _, c := range []struct {
		length int
		want   string // empty: none
		ranges []string
	}{
		{24, "", []string{"192.0.2.0/24"}},
		{24, "", []string{"192.0.2.128/25", "192.0.2.0/25"}},
		{24, "192.0.2.0/24 of 192.0.2.0-192.0.2.127", []string{"192.0.2.0/25", "192.0.3.0/24"}},
		{24, "192.0.2.0/24 of 192.0.2.1-192.0.3.255", []string{"192.0.2.1-192.0.3.255"}},
		{24, "192.0.3.0/24 of 192.0.2.0-192.0.3.254", []string{"192.0.2.0-192.0.3.254"}},
		{24, "", []string{"2001:db8::1"}},
		{31, "192.0.2.4/31 of 192.0.2.4", []string{"192.0.2.4"}},
	} {
		ranges, err := pools.ParseRanges(c.ranges)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if p, within := widePrefix(ranges, pools.IPv4, c.length); p.IsValid() {
			got = p.String() + " of " + within.String()
		}
		if got != c.want {
			t.Errorf("/%d of %v: %q, want %q", c.length, c.ranges, got, c.want)
		}
	}
}
