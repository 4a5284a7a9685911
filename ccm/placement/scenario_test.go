package placement

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what came out to testdata")

// world is a cluster that a scenario changes. After each command every unit is placed again.
//
//	node a b ...        nodes join, ready
//	gone a ...          nodes leave the cluster
//	down a ... / up a ...
//	vip v1 v2 ...       new units on all nodes; "vip v1=a,b" on these only; again for a known one changes its nodes
//	vips 10             new units v01 to v10
//	drop v1 ...         units go
//	led                 prints how many units each node leads, and who would inherit them
type world struct {
	ready    map[string]bool
	eligible map[string][]string // by unit; nil means all nodes
	lists    map[string][]string
}

func newWorld() *world {
	return &world{ready: map[string]bool{}, eligible: map[string][]string{}, lists: map[string][]string{}}
}

// place runs Place on the world and returns its answer.
func (w *world) place() []List {
	var nodes []Node
	for name, r := range w.ready {
		nodes = append(nodes, Node{Name: name, Ready: r})
	}
	var units []Unit
	for name, only := range w.eligible {
		if only == nil {
			only = slices.Collect(maps.Keys(w.ready))
		}
		units = append(units, Unit{Name: name, Eligible: only, Previous: w.lists[name]})
	}
	return Place(units, nodes)
}

// do runs one command and returns what to print.
func (w *world) do(t *testing.T, line string) string {
	t.Helper()
	f := strings.Fields(line)
	for _, arg := range f[1:] {
		switch f[0] {
		case "node", "up":
			w.ready[arg] = true
		case "down":
			w.ready[arg] = false
		case "gone":
			delete(w.ready, arg)
		case "drop":
			delete(w.eligible, arg)
			delete(w.lists, arg)
		case "vip":
			name, only, limited := strings.Cut(arg, "=")
			w.eligible[name] = nil
			if limited {
				w.eligible[name] = strings.FieldsFunc(only, func(r rune) bool { return r == ',' })
			}
			if limited && w.eligible[name] == nil {
				w.eligible[name] = []string{}
			}
		case "vips":
			n, err := strconv.Atoi(arg)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			for i := range n {
				w.eligible[fmt.Sprintf("v%02d", i+1)] = nil
			}
		default:
			t.Fatalf("unknown command %q", line)
		}
	}
	if f[0] == "led" {
		return w.led()
	}
	var out strings.Builder
	for _, l := range w.place() {
		if l.Reason != Unchanged {
			fmt.Fprintf(&out, "%s: %s (%s)\n", l.Unit, strings.Join(l.Nodes, " "), l.Reason)
		}
		w.lists[l.Unit] = l.Nodes
	}
	return out.String()
}

func (w *world) led() string {
	var out strings.Builder
	for _, node := range slices.Sorted(maps.Keys(w.ready)) {
		heirs := map[string]int{}
		n := 0
		for _, list := range w.lists {
			if len(list) > 0 && list[0] == node {
				n++
				if i := slices.IndexFunc(list[1:], func(n string) bool { return w.ready[n] }); i >= 0 {
					heirs[list[i+1]]++
				}
			}
		}
		fmt.Fprintf(&out, "%s %d", node, n)
		for _, h := range slices.Sorted(maps.Keys(heirs)) {
			fmt.Fprintf(&out, " %s:%d", h, heirs[h])
		}
		out.WriteString("\n")
	}
	return out.String()
}

func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			w, out := newWorld(), &bytes.Buffer{}
			for line := range strings.Lines(string(text)) {
				line = strings.TrimSpace(line)
				switch {
				case line == "" || strings.HasPrefix(line, "#"):
					fmt.Fprintln(out, line)
				case strings.HasPrefix(line, "> "):
					fmt.Fprintln(out, line)
					for l := range strings.Lines(w.do(t, line[2:])) {
						fmt.Fprint(out, l)
					}
				}
			}
			if *update {
				if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if out.String() != string(text) {
				t.Errorf("got:\n%s\nwant:\n%s", out, text)
			}
		})
	}
}
