package main

import (
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker"
	"github.com/ironlb/ironlb/speaker/bgp"
	"github.com/ironlb/ironlb/speaker/l2"
	"github.com/ironlb/ironlb/speaker/member"
)

// names collects the names of what is registered.
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

// TestMetricsAreDocumented: docs/metrics.md has every metric of the speaker, and no other one.
func TestMetricsAreDocumented(t *testing.T) {
	log, got := slog.New(slog.DiscardHandler), &names{}
	speaker.NewMetrics(got)
	l2.New(l2.Config{Log: log, Metrics: got})
	bgp.NewClient(bgp.ClientOptions{Log: log, Metrics: got})
	if _, err := member.New(member.Options{Node: "a", Cluster: "c", Profile: member.Standard, Port: member.DefaultPort, Log: log, Metrics: got, Keys: [][]byte{make([]byte, 32)}}); err != nil {
		t.Fatal(err)
	}
	dataplaneMetric(got)
	staleMetrics(got, nil)
	newPairing(log, got)

	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## ironlb-speaker\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var want []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(ironlb_[a-z0-9_]+)").FindAllStringSubmatch(section, -1) {
		want = append(want, m[1])
	}
	slices.Sort(want)
	slices.Sort(got.all)
	if !slices.Equal(got.all, want) {
		t.Errorf("the speaker has\n%s\ndocs/metrics.md has\n%s", strings.Join(got.all, "\n"), strings.Join(want, "\n"))
	}
}
