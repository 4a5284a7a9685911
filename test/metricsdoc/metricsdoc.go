// Package metricsdoc compares docs/reference/metrics.md with the metrics that a program registers.
package metricsdoc

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// names collects the names of registered metrics.
type names struct{ all []string }

var fqName = regexp.MustCompile(`fqName: "([^"]+)"`)

func (n *names) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 100)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		n.all = append(n.all, fqName.FindStringSubmatch(d.String())[1])
	}
	return nil
}

func (n *names) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		_ = n.Register(c)
	}
}

func (n *names) Unregister(prometheus.Collector) bool { return false }

var documented = regexp.MustCompile("(?m)^\\| `(ironlb_[a-z0-9_]+)")

// Check fails unless the program's section of the file has every metric that register registers, and no other one.
func Check(t *testing.T, file, program string, register func(prometheus.Registerer)) {
	t.Helper()
	got := &names{}
	register(got)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## "+program+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var want []string
	for _, m := range documented.FindAllStringSubmatch(section, -1) {
		want = append(want, m[1])
	}
	slices.Sort(want)
	slices.Sort(got.all)
	if !slices.Equal(got.all, want) {
		t.Errorf("%s has\n%s\n%s has\n%s", program, strings.Join(got.all, "\n"), file, strings.Join(want, "\n"))
	}
}
