package ccm

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ccm/addresspool"
	"github.com/ironlb/ironlb/ccm/allocation"
	"github.com/ironlb/ironlb/ccm/bgpstatus"
	"github.com/ironlb/ironlb/ccm/virtualip"
)

// TestMetricsAreDocumented: docs/reference/metrics.md lists exactly the metrics of the packages below.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## ironlb-ccm\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var got, want []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(ironlb_[a-z0-9_]+)").FindAllStringSubmatch(section, -1) {
		want = append(want, m[1])
	}
	for _, m := range slices.Concat(allocation.Metrics, addresspool.Metrics, bgpstatus.Metrics, virtualip.Metrics) {
		got = append(got, m.FQName())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("there are %v, docs/reference/metrics.md has %v", got, want)
	}
}
