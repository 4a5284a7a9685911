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

var update = flag.Bool("update", false, "write the actual results to testdata")

// fixture is a cluster that a scenario changes. After each command every unit is placed, then the speakers act,
// repeatedly until nothing changes.
//
//	node a b ...        nodes join, alive and ready
//	gone a ...          nodes are removed from the cluster
//	dies a ... / lives a ...      the state in the speakers' view
//	down a ... / up a ...         the state in Kubernetes
//	cordon a ... / uncordon a ...
//	vip v1 v2 ...       new units on all nodes; "vip v1=a,b" on these only; for a known unit it changes its nodes
//	vips 10             new units v01 to v10
//	prefer a=50 b=20    weights of all units
//	drop v1 ...         units are removed
//	api off / api on    nothing is placed, and the speakers report nothing, until it is back
//	exact               spreads exactly
//	move v1 ...         makes the moves that help, of these units or all; drain makes those away from cordoned nodes
//	led                 prints how many units each node leads, and which nodes would inherit them
type fixture struct {
	t        testing.TB
	placer   Placer
	alive    map[string]bool // in the speakers' view
	ready    map[string]bool // in Kubernetes: the existing nodes
	cordoned map[string]bool
	eligible map[string][]string // by unit; nil means all nodes
	weights  map[string]int
	able     map[string]bool // nil: unknown
	all      map[string]bool // units that require all nodes in their lists
	lists    map[string][]string
	holds    map[string]string   // the node that answers
	status   map[string]string   // the node that answers according to the API
	by       map[string][]string // the last list that the speakers used
	away     bool                // the API is unavailable
	moves    int                 // of live owners, since the last check of the test
}

func newFixture(t testing.TB) *fixture {
	return &fixture{
		t: t, alive: map[string]bool{}, ready: map[string]bool{}, cordoned: map[string]bool{}, eligible: map[string][]string{},
		weights: map[string]int{}, lists: map[string][]string{}, holds: map[string]string{}, status: map[string]string{}, by: map[string][]string{},
	}
}

// input returns the arguments of Place, in random order.
func (f *fixture) input() ([]Unit, []Node) {
	var nodes []Node
	for name, r := range f.ready {
		nodes = append(nodes, Node{Name: name, Ready: r, Cordoned: f.cordoned[name]})
	}
	var weights Weights
	if len(f.weights) > 0 {
		weights = &f.weights
	}
	var units []Unit
	for name, only := range f.eligible {
		if only == nil {
			only = slices.Collect(maps.Keys(f.ready))
		}
		u := Unit{Name: name, Eligible: only, Weights: weights, All: f.all[name], Previous: f.lists[name], Owner: f.status[name]}
		if f.able != nil {
			u.Able = &f.able
		}
		units = append(units, u)
	}
	return units, nodes
}

// place runs Place and returns the lists.
func (f *fixture) place(exact bool) []List {
	units, nodes := f.input()
	return f.placer.Place(units, nodes, exact)
}

// elect makes the speakers elect owners by the lists that they have, and report them.
func (f *fixture) elect() {
	for unit := range f.by {
		if _, ok := f.lists[unit]; !ok && !f.away {
			delete(f.by, unit)
			delete(f.holds, unit)
			delete(f.status, unit)
		}
	}
	for unit, list := range f.lists {
		if f.away {
			list = f.by[unit]
		}
		h := f.holds[unit]
		first := ""
		if i := slices.IndexFunc(list, func(n string) bool { return f.alive[n] }); i >= 0 {
			first = list[i]
		}
		switch {
		case !f.alive[h] || !slices.Contains(list, h):
			f.holds[unit] = first
		case !slices.Equal(f.by[unit], list) && first != h: // a newer list with another first candidate
			f.moves++
			f.holds[unit] = first
		}
		f.by[unit] = list
		if !f.away {
			f.status[unit] = f.holds[unit]
		}
	}
}

// settle runs placement and speakers until nothing changes, and returns what was placed.
func (f *fixture) settle(exact bool) string {
	var out strings.Builder
	for range 10 {
		f.elect()
		if f.away {
			return ""
		}
		changed := false
		for _, l := range f.place(exact) {
			if l.Reason != Unchanged {
				changed = true
				fmt.Fprintf(&out, "%s: %s (%s)\n", l.Unit, strings.Join(l.Nodes, " "), l.Reason)
			}
			f.lists[l.Unit] = l.Nodes
		}
		f.elect()
		if !changed {
			return out.String()
		}
	}
	f.t.Fatalf("no end:\n%s", out.String())
	return ""
}

// move makes one move that helps, of the given units or of all.
func (f *fixture) move(only []string, movable bool) string {
	units, nodes := f.input()
	for i := range units {
		units[i].Movable = movable && (len(only) == 0 || slices.Contains(only, units[i].Name))
	}
	m, ok := NextMove(units, f.placer.Place(units, nodes, true), nodes)
	if !ok {
		return ""
	}
	for i := range units {
		if units[i].Name == m.Unit {
			units[i].Lead, units[i].Why = m.To, m.Reason
		}
	}
	out := fmt.Sprintf("%s from %s to %s\n", m.Unit, m.From, m.To)
	for _, l := range f.placer.Place(units, nodes, true) {
		if l.Unit == m.Unit {
			out += fmt.Sprintf("%s: %s (%s)\n", l.Unit, strings.Join(l.Nodes, " "), l.Reason)
		}
		f.lists[l.Unit] = l.Nodes
	}
	f.elect()
	if f.holds[m.Unit] != m.To {
		f.t.Fatalf("%+v has not moved: %s holds", m, f.holds[m.Unit])
	}
	return out + f.settle(true)
}

// do runs one command and returns what to print.
func (f *fixture) do(line string) string {
	f.t.Helper()
	words := strings.Fields(line)
	switch words[0] {
	case "led":
		return f.led()
	case "exact":
		return f.settle(true)
	case "move", "drain":
		out := ""
		for range 1000 {
			more := f.move(words[1:], words[0] == "move")
			if out += more; more == "" {
				return out
			}
		}
		f.t.Fatalf("%s: no end:\n%s", line, out)
	}
	for _, arg := range words[1:] {
		switch words[0] {
		case "node":
			f.ready[arg], f.alive[arg] = true, true
		case "gone":
			delete(f.ready, arg)
			delete(f.alive, arg)
		case "dies", "lives":
			f.alive[arg] = words[0] == "lives"
		case "down", "up":
			f.ready[arg] = words[0] == "up"
		case "cordon", "uncordon":
			f.cordoned[arg] = words[0] == "cordon"
		case "api":
			f.away = arg == "off"
		case "drop":
			delete(f.eligible, arg)
			delete(f.lists, arg)
		default:
			f.unit(words[0], arg)
		}
	}
	return f.settle(false)
}

// unit runs one of the commands about units.
func (f *fixture) unit(command, arg string) {
	name, value, given := strings.Cut(arg, "=")
	switch command {
	case "vip":
		f.eligible[name] = nil
		if given {
			f.eligible[name] = append([]string{}, strings.FieldsFunc(value, func(r rune) bool { return r == ',' })...)
		}
	case "vips", "prefer":
		n, err := strconv.Atoi(arg[strings.Index(arg, "=")+1:])
		if err != nil {
			f.t.Fatalf("%s %s: %v", command, arg, err)
		}
		if command == "prefer" {
			f.weights[name] = n
			return
		}
		for i := range n {
			f.eligible[fmt.Sprintf("v%02d", i+1)] = nil
		}
	default:
		f.t.Fatalf("unknown command %q", command)
	}
}

func (f *fixture) led() string {
	var out strings.Builder
	for _, node := range slices.Sorted(maps.Keys(f.ready)) {
		heirs := map[string]int{}
		n := 0
		for _, list := range f.lists {
			if len(list) > 0 && list[0] == node {
				n++
				if i := slices.IndexFunc(list[1:], func(n string) bool { return f.ready[n] }); i >= 0 {
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
			f, out := newFixture(t), &bytes.Buffer{}
			for line := range strings.Lines(string(text)) {
				line = strings.TrimSpace(line)
				switch {
				case line == "" || strings.HasPrefix(line, "#"):
					fmt.Fprintln(out, line)
				case strings.HasPrefix(line, "> "):
					fmt.Fprintln(out, line)
					for l := range strings.Lines(f.do(line[2:])) {
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
