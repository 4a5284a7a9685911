// Command targets runs make targets one after the other. It prints a line per package as it ends, a table of all
// targets with their times, and last the full output of each that failed. A failed target does not stop the others.
//
// Usage: targets TARGET...
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: targets TARGET...: make targets")
		os.Exit(2)
	}
	// Ctrl-C reaches the running target too (same process group): wait until it has cleaned up, and start no other.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	command := func(target string) *exec.Cmd { return exec.Command("make", target) }
	if !run(ctx, os.Stdout, command, os.Args[1:]) {
		stop()
		os.Exit(1)
	}
}

// result of one target.
type result struct {
	target string
	err    error
	took   time.Duration
	cpu    time.Duration // of the target and all processes that it waited for
	output []byte
}

// run runs the targets until the context ends, and reports whether all passed.
func run(ctx context.Context, out io.Writer, command func(target string) *exec.Cmd, targets []string) bool {
	began := time.Now()
	var results []result
	for _, target := range targets {
		if err := ctx.Err(); err != nil {
			results = append(results, result{target: target, err: err})
			continue
		}
		results = append(results, one(out, target, command(target)))
		fmt.Fprintln(out, results[len(results)-1])
	}
	return report(out, results, time.Since(began))
}

func one(out io.Writer, target string, cmd *exec.Cmd) result {
	began := time.Now()
	progress := &progress{out: out, target: target}
	cmd.Stdout, cmd.Stderr = progress, progress
	err := cmd.Run()
	done := result{target: target, err: err, took: time.Since(began), output: progress.all.Bytes()}
	if s := cmd.ProcessState; s != nil {
		done.cpu = s.UserTime() + s.SystemTime()
	}
	return done
}

func (r result) String() string {
	verdict := "ok"
	if r.err != nil {
		verdict = "FAIL"
	}
	return fmt.Sprintf("%-5s %-20s %7s, CPU %7s", verdict, r.target, r.took.Round(time.Second), r.cpu.Round(time.Second))
}

// report prints all results, and last the output of those that failed.
func report(out io.Writer, results []result, took time.Duration) bool {
	var failed []string
	fmt.Fprintf(out, "\n=== %d targets in %s\n", len(results), took.Round(time.Second))
	for _, r := range results {
		fmt.Fprintln(out, r)
	}
	for _, r := range results {
		if r.err != nil {
			fmt.Fprintf(out, "\n=== %s: %v; its output:\n%s", r.target, r.err, r.output)
			failed = append(failed, r.target)
		}
	}
	if failed != nil {
		fmt.Fprintf(out, "\n=== failed: %s\n", strings.Join(failed, ", "))
	}
	return failed == nil
}

// progress keeps the output of a target, and prints its notable lines.
type progress struct {
	out    io.Writer
	target string
	all    bytes.Buffer
	line   []byte // incomplete
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
			fmt.Fprintf(p.out, "%s: %s\n", p.target, line)
		}
	}
}

// notable reports whether a line is about a package, a failed or slow test, a build or a count, as test/report and
// test/lab/tools print them.
func notable(line string) bool {
	for _, prefix := range []string{"ok ", "FAIL ", "slow ", "--- FAIL", "building ", "skipped, "} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return strings.HasSuffix(line, " skipped")
}
