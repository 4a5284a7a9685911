package reach

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

func TestRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "unreachable-node1")
	now := time.Now()
	nodes := map[string]plan.UnreachableNode{
		"node2": {Since: now.Add(-time.Minute), Silent: []plan.Witness{plan.WitnessEcho, plan.WitnessNeighbor}},
		"node3": {Since: now, Silent: []plan.Witness{plan.WitnessEcho}, Gateway: netip.MustParseAddr("2001:db8::1"), Damped: true},
	}
	read := func(boot string, now time.Time) map[string]plan.UnreachableNode {
		t.Helper()
		got, err := readRecord(path, boot, now)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := read("a", now); len(got) > 0 {
		t.Errorf("without a file: %v", got)
	}
	if err := writeRecord(path, "a", nodes); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	want := maps.Clone(nodes)
	node3 := want["node3"]
	node3.Damped = false // that it was reachable does not last
	want["node3"] = node3
	if got := read("a", now); !maps.EqualFunc(got, want, plan.UnreachableNode.Equal) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := read("b", now); len(got) > 0 {
		t.Errorf("after a boot: %v", got)
	}
	if got := read("a", now.Add(-time.Hour)); !got["node3"].Since.Equal(now.Add(-time.Hour)) {
		t.Errorf("the clock was set back: %v", got)
	}
	for range 2 {
		if err := writeRecord(path, "a", nil); err != nil {
			t.Fatal(err)
		}
	}
	if files, err := os.ReadDir(filepath.Dir(path)); len(files) > 0 || err != nil {
		t.Errorf("left: %v, %v", files, err)
	}
}

func TestRecordRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{`: "unexpected end",
		`{"boot": "a", "unreachable": {"node2": {"since": "2026-01-01T00:00:00Z"}}}`:                  `node "node2": silent`,
		`{"boot": "a", "unreachable": {"node2": {"silent": ["Ping"]}}}`:                               `"Ping" is neither`,
		`{"boot": "a", "unreachable": {"node2": {"silent": ["ICMPEcho"], "since": "yesterday"}}}`:     "yesterday",
		`{"boot": "a", "unreachable": {"node2": {"silent": ["ICMPEcho"], "gateway": "192.0.2.256"}}}`: "192.0.2.256",
		`{"boot": "a", "filler": "` + strings.Repeat("x", recordMost) + `"}`:                          "more than",
	} {
		if got, err := parseRecord([]byte(text), "a", time.Now()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100s: %v, %v, want %q", text, got, err, want)
		}
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"boot": "a", "unreachable": {"node2": {"since": "2026-01-01T00:00:00Z", "silent": ["ICMPEcho"]}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		now := time.Now()
		nodes, err := parseRecord(text, "a", now)
		for name, n := range nodes {
			if err != nil || len(n.Silent) == 0 || n.Since.IsZero() || n.Since.After(now) {
				t.Errorf("%q: %+v, %v", name, n, err)
			}
		}
	})
}
