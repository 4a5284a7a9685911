// Command targets runs make targets one after the other, and at the same time those of each -background, likewise one
// after the other, with low priority.
// It prints a line per package as it ends, a table of all targets with their times, and last the full output of each
// that failed. A failed target does not stop the others.
//
// Usage: targets [-background 'TARGET ...']... TARGET...
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/test/rare"
)

func main() {
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: targets [-background 'TARGET ...']... TARGET...: make targets")
		flag.PrintDefaults()
	}
	var background [][]string
	flag.Func("background", "targets that run at the same time as the others, with low priority; may be repeated", func(targets string) error {
		background = append(background, strings.Fields(targets))
		return nil
	})
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	// Ctrl-C reaches the running target too (same process group): wait until it has cleaned up, and start no other.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r := runner{out: os.Stdout, command: func(target string) *exec.Cmd { return exec.Command("make", target) }}
	if !r.run(ctx, flag.Args(), background) {
		stop()
		os.Exit(1)
	}
}

// runner runs targets and prints to out.
type runner struct {
	command func(target string) *exec.Cmd

	mu  sync.Mutex
	out io.Writer
}

// result of one target.
type result struct {
	target string
	err    error
	took   time.Duration
	cpu    time.Duration // of the target and all processes that it waited for
	output []byte
}

// run runs the targets, and each sequence of others in the background, until the context ends, and reports whether all
// passed.
func (r *runner) run(ctx context.Context, targets []string, background [][]string) bool {
	began := time.Now()
	results := make([][]result, 1+len(background))
	var group sync.WaitGroup
	group.Go(func() { results[0] = r.sequence(ctx, targets, (*exec.Cmd).Run) })
	for i, others := range background {
		group.Go(func() { results[i+1] = r.sequence(ctx, others, r.low) })
	}
	group.Wait()
	return report(r.out, slices.Concat(results...), time.Since(began))
}

// sequence runs targets one after the other.
func (r *runner) sequence(ctx context.Context, targets []string, run func(*exec.Cmd) error) (results []result) {
	for _, target := range targets {
		if err := ctx.Err(); err != nil {
			results = append(results, result{target: target, err: err})
			continue
		}
		results = append(results, r.one(target, run))
		r.printf("%v\n", results[len(results)-1])
	}
	return results
}

func (r *runner) one(target string, run func(*exec.Cmd) error) result {
	began := time.Now()
	cmd := r.command(target)
	progress := &progress{runner: r, target: target}
	cmd.Stdout, cmd.Stderr = progress, progress
	err := run(cmd)
	done := result{target: target, err: err, took: time.Since(began), output: progress.all.Bytes()}
	if s := cmd.ProcessState; s != nil {
		done.cpu = s.UserTime() + s.SystemTime()
	}
	return done
}

// nice is the priority of background targets (setpriority(2)): a tenth of the time of others that use all processors.
const nice = 10

// low runs a command with low priority. Where the kernel schedules sessions as groups, the priority of a process counts
// only within its session (sched(7), "The autogroup feature"): the command gets a session, with the same priority. An
// interrupt is passed on, because the terminal's does not reach another session.
func (r *runner) low(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its priority, which the command inherits
		if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, nice); err != nil {
			r.printf("low priority: %v\n", err)
		}
		started <- cmd.Start()
	}()
	if err := <-started; err != nil {
		return err
	}
	group := fmt.Sprintf("/proc/%d/autogroup", cmd.Process.Pid)
	if err := os.WriteFile(group, fmt.Append(nil, nice), 0); err != nil && !os.IsNotExist(err) {
		r.printf("low priority: %v\n", err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	defer signal.Stop(signals)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case <-signals:
			syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		case err := <-ended:
			return err
		}
	}
}

func (r *runner) printf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, format, args...)
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
	runner *runner
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
			p.runner.printf("%s: %s\n", p.target, line)
		}
	}
}

// notable reports whether a line is about a package, a failed or slow test, a build or a count, as gotestsum, test/skips
// and test/lab/tools print them.
func notable(line string) bool {
	for _, prefix := range []string{"PASS ", "FAIL ", "slow ", "=== FAIL", "DONE ", "building ", "skipped, "} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return strings.HasSuffix(line, rare.Reason)
}
