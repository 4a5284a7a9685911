package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/tools"
)

// Programs of upstream.
const (
	testProgram   = "e2e.test"
	ginkgoProgram = "ginkgo"
)

// suiteLimit is longer than any configuration takes: the rolling updates take 15 minutes.
const suiteLimit = time.Hour

// listSpecs returns all specs of the test program.
func listSpecs(ctx context.Context, build *tools.Build) ([]Spec, error) {
	dir, err := os.MkdirTemp("", "ironlb-upstream-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "specs.json")
	// With a focus, the program does not leave out the specs of optional features.
	_, err = host.Output(ctx, host.Native{}, host.Cmd{Dir: dir, Argv: []string{build.Path(testProgram), "--provider=skeleton", "--ginkgo.dry-run",
		"--ginkgo.succinct", "--ginkgo.focus=.", "--ginkgo.json-report=" + file}})
	if err != nil {
		return nil, fmt.Errorf("list upstream's specs: %w", err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("list upstream's specs: %w", err)
	}
	results, _, err := readReport(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("list upstream's specs: %w", err)
	}
	var specs []Spec
	for _, r := range results {
		specs = append(specs, r.Spec)
	}
	return specs, nil
}

// suite runs upstream's test program on a machine of a cluster.
type suite struct {
	cluster  *lab.Cluster
	out      string // folder of this machine for reports and logs
	progress *progress
}

// run runs the specs, the parallel ones first.
func (s *suite) run(ctx context.Context, specs []Spec) (results []Result, problems []string, err error) {
	var together, alone []Spec
	for _, spec := range specs {
		if spec.alone() {
			alone = append(alone, spec)
		} else {
			together = append(together, spec)
		}
	}
	for _, part := range []struct {
		name  string
		procs int
		specs []Spec
	}{{"parallel", s.processes(), together}, {"serial", 1, alone}} {
		if len(part.specs) == 0 {
			continue
		}
		r, p, err := s.ginkgo(ctx, part.name, part.procs, part.specs)
		if err != nil {
			return results, problems, err
		}
		results, problems = append(results, r...), append(problems, p...)
	}
	return results, problems, nil
}

// processes returns the number of parallel specs, as in upstream's jobs; in a guest, which may be emulated, it is one.
func (s *suite) processes() int {
	if s.cluster.Kernel == lab.Guest {
		return 1
	}
	return 5
}

// ginkgo runs specs with a number of processes. An error means that there is no report.
func (s *suite) ginkgo(ctx context.Context, name string, procs int, specs []Spec) ([]Result, []string, error) {
	log, err := os.Create(filepath.Join(s.out, name+".log"))
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	// A guest can write only into the folder of its cluster.
	dir := filepath.Join(s.cluster.Dir, "upstream-"+name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	report := name + ".json"
	argv := []string{s.cluster.Program(ginkgoProgram), "run", "--no-color", fmt.Sprintf("--procs=%d", procs), "--timeout=" + suiteLimit.String(),
		"--output-dir=" + dir, "--json-report=" + report}
	for _, spec := range specs {
		argv = append(argv, "--focus="+regexp.QuoteMeta(spec.Name)+"$")
	}
	argv = append(argv, s.cluster.Program(testProgram), "--", "--provider=skeleton", fmt.Sprintf("--num-nodes=%d", len(s.cluster.Nodes)),
		"--kubeconfig="+s.cluster.Kubeconfig(), "--kubectl-path="+s.cluster.KubectlPath(), "--e2e-output-dir="+dir,
		"--disable-log-dump", "--node-schedulable-timeout=1m", "--system-pods-startup-timeout=2m", "--system-daemonsets-startup-timeout=1m")
	p, err := s.cluster.Remote.Start(ctx, "upstream-"+name, host.Cmd{Argv: argv, Dir: dir, Stdout: io.MultiWriter(log, s.progress)})
	if err != nil {
		return nil, nil, err
	}
	s.progress.start(len(specs))
	select {
	case <-p.Done():
	case <-ctx.Done():
		return nil, nil, errors.Join(ctx.Err(), p.Kill())
	}
	end := p.Wait() // not 0 if a spec failed
	data, err := os.ReadFile(filepath.Join(dir, report))
	if err != nil {
		return nil, nil, fmt.Errorf("the suite ended without a report: %w: %w; its log is %s", end, err, log.Name())
	}
	if err := os.WriteFile(filepath.Join(s.out, report), data, 0o644); err != nil {
		return nil, nil, err
	}
	results, problems, err := readReport(bytes.NewReader(data))
	return resultsOf(specs, results), problems, err
}

// resultsOf leaves out the results of other specs: a report lists filtered specs as skipped.
func resultsOf(specs []Spec, results []Result) []Result {
	return slices.DeleteFunc(results, func(r Result) bool {
		return !slices.ContainsFunc(specs, func(s Spec) bool { return s.Name == r.Name })
	})
}

// progress counts the specs in ginkgo's output and reports them at intervals.
type progress struct {
	w      io.Writer
	prefix string

	mu     sync.Mutex
	total  int
	output bytes.Buffer
}

func (p *progress) start(specs int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total += specs
}

// Write receives ginkgo's output.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.Write(b)
}

// failedSpec matches a spec that did not pass in ginkgo's output; each spec has a dot.
var failedSpec = regexp.MustCompile(`• \[(FAILED|PANICKED!|TIMEDOUT|INTERRUPTED|ABORTED)\]`)

func (p *progress) count() (ended, failed, total int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Count(p.output.Bytes(), []byte("•")), len(failedSpec.FindAll(p.output.Bytes(), -1)), p.total
}

// report writes a line at every interval until the context ends.
func (p *progress) report(ctx context.Context, interval time.Duration) {
	began, tick := time.Now(), time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			ended, failed, total := p.count()
			fmt.Fprintf(p.w, "%s: %d of %d specs ended, %d failed, %s\n", p.prefix, ended, total, failed, time.Since(began).Round(time.Second))
		case <-ctx.Done():
			return
		}
	}
}
