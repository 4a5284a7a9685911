// Command lanes runs make targets, several at a time. Each argument is a lane: its targets run one after the other, and
// all lanes run at the same time. The argument "then" waits for the lanes before it. It prints a line per package as it
// ends, a table of all targets, and last the full output of each that failed. A failed target stops no other.
//
// Usage: lanes 'TARGET ...' 'TARGET ...' then 'TARGET ...'
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: lanes 'TARGET ...' 'TARGET ...' then 'TARGET ...': make targets; all lanes run at the same time")
		os.Exit(2)
	}
	// Ctrl-C reaches the targets too (same process group): wait until they have cleaned up.
	var interrupted atomic.Bool
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	go func() {
		<-signals
		interrupted.Store(true)
	}()
	r := runner{out: os.Stdout, interrupted: &interrupted, command: func(target string) *exec.Cmd {
		return exec.Command("make", target)
	}}
	if !r.run(os.Args[1:]) {
		os.Exit(1)
	}
}

// runner runs targets and prints to out.
type runner struct {
	out         io.Writer
	command     func(target string) *exec.Cmd
	interrupted *atomic.Bool // no further target is started

	mu      sync.Mutex // guards out and results
	results []result
}

// result of one target.
type result struct {
	target   string
	err      error
	took     time.Duration
	cpu      time.Duration // of the target and all processes that it waited for
	output   []byte
	canceled bool
}

// then separates lanes that run at the same time from those that follow.
const then = "then"

// run reports whether all targets passed.
func (r *runner) run(lanes []string) bool {
	began := time.Now()
	var group sync.WaitGroup
	for _, lane := range lanes {
		if lane == then {
			group.Wait()
			continue
		}
		group.Go(func() {
			for _, target := range strings.Fields(lane) {
				r.add(r.target(target))
			}
		})
	}
	group.Wait()
	return r.report(time.Since(began))
}

func (r *runner) target(name string) result {
	if r.interrupted.Load() {
		return result{target: name, canceled: true}
	}
	began := time.Now()
	cmd := r.command(name)
	progress := &progress{runner: r, target: name}
	cmd.Stdout, cmd.Stderr = progress, progress
	err := cmd.Run()
	done := result{target: name, err: err, took: time.Since(began), output: progress.all.Bytes()}
	if s := cmd.ProcessState; s != nil {
		done.cpu = s.UserTime() + s.SystemTime()
	}
	return done
}

// add prints how a target ended.
func (r *runner) add(done result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, done)
	if !done.canceled {
		fmt.Fprintln(r.out, done)
	}
}

func (d result) String() string {
	if d.canceled {
		return fmt.Sprintf("-     %-20s not started", d.target)
	}
	verdict := "ok"
	if d.err != nil {
		verdict = "FAIL"
	}
	return fmt.Sprintf("%-5s %-20s %7s, CPU %7s", verdict, d.target, d.took.Round(time.Second), d.cpu.Round(time.Second))
}

// report prints all results, and last the output of those that failed.
func (r *runner) report(took time.Duration) bool {
	var failed []string
	fmt.Fprintf(r.out, "\n=== %d targets in %s\n", len(r.results), took.Round(time.Second))
	for _, done := range r.results {
		fmt.Fprintln(r.out, done)
	}
	for _, done := range r.results {
		if done.err != nil {
			fmt.Fprintf(r.out, "\n=== %s: %v; its output:\n%s", done.target, done.err, done.output)
		}
		if done.err != nil || done.canceled {
			failed = append(failed, done.target)
		}
	}
	if failed != nil {
		fmt.Fprintf(r.out, "\n=== failed or not started: %s\n", strings.Join(failed, ", "))
	}
	return failed == nil
}

// progress keeps the output of a target, and prints its lines about packages, progress and counts.
type progress struct {
	runner *runner
	target string
	all    bytes.Buffer
	line   []byte
}

func (p *progress) Write(data []byte) (int, error) {
	p.all.Write(data)
	p.line = append(p.line, data...)
	for {
		line, rest, found := bytes.Cut(p.line, []byte("\n"))
		if !found {
			return len(data), nil
		}
		p.line = rest
		if notable(string(line)) {
			p.runner.mu.Lock()
			fmt.Fprintf(p.runner.out, "%s: %s\n", p.target, line)
			p.runner.mu.Unlock()
		}
	}
}

// notable reports whether a line is about a package, a failed test, a build or a count, as test/report and
// test/lab/tools print them.
func notable(line string) bool {
	for _, prefix := range []string{"ok ", "FAIL ", "slow ", "--- FAIL", "building ", "skipped, "} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return strings.HasSuffix(line, " skipped")
}
