// Command report runs `go test` and reports its result: a line per package as it ends, the full output of failed tests,
// and a closing count. It fails when a test was skipped that test/skips.txt does not list, so that no capability is
// lost in silence. Under -short, tests are left out on purpose, so any may be skipped.
//
// Usage: report go test [flags] packages
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

const skipsFile = "test/skips.txt"

func main() {
	if len(os.Args) < 3 || os.Args[1] != "go" || os.Args[2] != "test" {
		fmt.Fprintln(os.Stderr, "usage: report go test [flags] packages")
		os.Exit(2)
	}
	ok, err := run(append([]string{"test", "-json"}, os.Args[3:]...))
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func run(args []string) (bool, error) {
	allowed, err := readSkips(skipsFile)
	if err != nil {
		return false, err
	}
	// Ctrl-C reaches go test too (same process group); wait until it has cleaned up, and report its results.
	signal.Ignore(syscall.SIGINT)
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("start go test: %w", err)
	}
	s := newSummary(os.Stdout)
	if err := s.read(out); err != nil {
		return false, fmt.Errorf("read go test's output: %w", err)
	}
	waitErr := cmd.Wait()
	var exit *exec.ExitError
	if waitErr != nil && !errors.As(waitErr, &exit) {
		return false, fmt.Errorf("go test: %w", waitErr)
	}
	if slices.Contains(args, "-short") {
		allowed = s.skips
	}
	unlisted := s.close(allowed)
	return waitErr == nil && unlisted == 0 && s.failed == 0, nil
}

// event is a line of `go test -json` (go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Elapsed    float64
	Output     string
}

// summary collects the events of one run.
type summary struct {
	w                       io.Writer
	output                  map[[2]string][]string
	passed, failed, skipped int
	skips                   []string
	slow                    []event // top-level tests of slowest or more
}

// slowest is from how many seconds on a test is named in the end.
const slowest = 15

func newSummary(w io.Writer) *summary {
	return &summary{w: w, output: map[[2]string][]string{}}
}

func (s *summary) read(r io.Reader) error {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil {
				s.add(e)
			} else {
				s.w.Write(line)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *summary) add(e event) {
	key := [2]string{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(s.w, e.Output)
	case "output":
		s.output[key] = append(s.output[key], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e)
		} else {
			s.endTest(e)
		}
		delete(s.output, key)
	}
}

func (s *summary) endTest(e event) {
	if e.Elapsed >= slowest && !strings.Contains(e.Test, "/") {
		s.slow = append(s.slow, e)
	}
	switch e.Action {
	case "pass":
		s.passed++
	case "fail":
		s.failed++
		s.print(e)
	case "skip":
		s.skipped++
		s.skips = append(s.skips, e.Package+" "+e.Test)
	}
}

func (s *summary) endPackage(e event) {
	took := time.Duration(e.Elapsed * float64(time.Second)).Round(time.Millisecond)
	switch e.Action {
	case "pass":
		fmt.Fprintf(s.w, "ok    %-55s %s\n", e.Package, took)
	case "fail":
		// A package can fail without a failed test: it did not build, panicked in TestMain or ran out of time.
		s.print(e)
		fmt.Fprintf(s.w, "FAIL  %-55s %s\n", e.Package, took)
	}
}

// print prints all output of the test, or of the package outside its tests. Tests that had not ended (a panic, a
// timeout) are printed with the package.
func (s *summary) print(e event) {
	keys := slices.SortedFunc(maps.Keys(s.output), func(a, b [2]string) int { return strings.Compare(a[1], b[1]) })
	for _, key := range keys {
		if key[0] == e.Package && (key[1] == e.Test || e.Test == "") {
			fmt.Fprint(s.w, strings.Join(s.output[key], ""))
		}
	}
}

// close prints the count and returns the number of skips not allowed.
func (s *summary) close(allowed []string) (unlisted int) {
	slices.Sort(s.skips)
	for _, skip := range s.skips {
		if !slices.Contains(allowed, skip) {
			unlisted++
			fmt.Fprintf(s.w, "skipped, and not listed in %s: %s\n", skipsFile, skip)
		}
	}
	slices.SortStableFunc(s.slow, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	for _, e := range s.slow {
		fmt.Fprintf(s.w, "slow  %-55s %.0fs\n", path.Base(e.Package)+" "+e.Test, e.Elapsed)
	}
	fmt.Fprintf(s.w, "%d passed, %d failed, %d skipped\n", s.passed, s.failed+unlisted, s.skipped-unlisted)
	return unlisted
}

// readSkips returns the lines "package test" of the file, without comments.
func readSkips(name string) ([]string, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the allowed skips (run from the repository's top): %w", err)
	}
	var skips []string
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			skips = append(skips, line)
		}
	}
	return skips, nil
}
