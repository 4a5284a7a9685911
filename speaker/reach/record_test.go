package reach

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/speaker/view"
)

func TestRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "unreachable-node1")
	four, six := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::3")
	nodes := map[string][]Target{
		"node2": {{four, view.WitnessEcho}, {four, view.WitnessNeighbor}}, "node3": {{six, view.WitnessEcho}},
	}
	read := func(boot string) map[string][]Target {
		t.Helper()
		got, err := readRecord(path, boot)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := read("a"); len(got) > 0 {
		t.Errorf("without a file: %v", got)
	}
	if err := writeRecord(path, "a", nodes); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if got := read("a"); !maps.EqualFunc(got, nodes, slices.Equal) {
		t.Errorf("%v, want %v", got, nodes)
	}
	if got := read("b"); len(got) > 0 {
		t.Errorf("after a boot: %v", got)
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
		`{"boot": "a", "unreachable": {"node2": []}}`:                                          `node "node2": no target`,
		`{"boot": "a", "unreachable": {"node2": [{"addr": "192.0.2.2", "by": "Ping"}]}}`:       `"Ping" is neither`,
		`{"boot": "a", "unreachable": {"node2": [{"addr": "192.0.2.256", "by": "ICMPEcho"}]}}`: "192.0.2.256",
		`{"boot": "a", "unreachable": {"node2": [{"by": "ICMPEcho"}]}}`:                        `node "node2": no address`,
		`{"boot": "a", "filler": "` + strings.Repeat("x", maxRecord) + `"}`:                    "more than",
	} {
		if got, err := parseRecord([]byte(text), "a"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100s: %v, %v, want %q", text, got, err, want)
		}
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"boot": "a", "unreachable": {"node2": [{"addr": "192.0.2.2", "by": "ICMPEcho"}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		nodes, err := parseRecord(text, "a")
		for name, targets := range nodes {
			if err != nil || len(targets) == 0 || !targets[0].Addr.IsValid() {
				t.Errorf("%q: %+v, %v", name, targets, err)
			}
		}
	})
}
