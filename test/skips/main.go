// Command skips fails when a run of `go test -json` skipped a test that test/skips/allowed.txt does not list. It also
// prints the slowest tests, and how many package rare left out.
//
// Usage: skips EVENTS
package main

import (
	"bufio"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/test/rare"
)

// allowed has lines "package test # missing capability".
//
//go:embed allowed.txt
var allowed string

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: skips EVENTS: the output of go test -json")
		os.Exit(2)
	}
	file, err := os.Open(os.Args[1])
	var ok bool
	if err == nil {
		ok, err = check(file, allowed, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "skips:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// event is a line of `go test -json` (go doc test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// slow is from how many seconds on a test is named.
const slow = 15

// check reads the events, prints what is notable, and reports whether every skip is allowed.
func check(events io.Reader, allowed string, out io.Writer) (ok bool, err error) {
	var listed []string
	for line := range strings.Lines(allowed) {
		line, _, _ = strings.Cut(line, "#")
		listed = append(listed, strings.TrimSpace(line))
	}
	ok = true
	left, leftOut := 0, map[string]bool{} // tests with the message of package rare
	var slowest []event
	in := bufio.NewScanner(events)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var e event
		if json.Unmarshal(in.Bytes(), &e) != nil || e.Test == "" {
			continue
		}
		name := e.Package + " " + e.Test
		switch {
		case e.Action == "output" && strings.Contains(e.Output, rare.Reason):
			leftOut[name] = true
		case e.Action == "skip" && leftOut[name]:
			left++
		case e.Action == "skip" && !slices.Contains(listed, name):
			ok = false
			fmt.Fprintf(out, "skipped, and not listed in test/skips/allowed.txt: %s\n", name)
		case (e.Action == "pass" || e.Action == "fail") && e.Elapsed >= slow && !strings.Contains(e.Test, "/"):
			slowest = append(slowest, e)
		}
	}
	slices.SortStableFunc(slowest, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	for _, e := range slowest {
		fmt.Fprintf(out, "slow  %-55s %.0fs\n", path.Base(e.Package)+" "+e.Test, e.Elapsed)
	}
	if left > 0 {
		fmt.Fprintf(out, "%d tests %s\n", left, rare.Reason)
	}
	return ok, in.Err()
}
