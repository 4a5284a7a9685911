package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/tools"
)

// options of the command line.
type options struct {
	configurations string
	specs          string
	out            string
	subset         bool
	list           bool
	pause          bool
}

func main() {
	var o options
	flag.StringVar(&o.configurations, "configurations", "", "names of configurations, separated by commas or blanks; empty: all")
	flag.StringVar(&o.specs, "specs", "", "run only the specs that this regular expression matches")
	flag.StringVar(&o.out, "out", "bin/e2e-upstream", "folder for the JUnit files, the table and logs")
	flag.BoolVar(&o.subset, "subset", false, "run what make test runs")
	flag.BoolVar(&o.list, "list", false, "print the specs of each configuration and run none")
	flag.BoolVar(&o.pause, "pause", false, "leave the cluster up after a failure, until Ctrl-C")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	ok, err := run(ctx, o, os.Stdout, os.Stderr)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case interrupted && !errors.Is(err, lab.ErrLeft):
		fmt.Fprintln(os.Stderr, "interrupted; the cluster is removed")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "upstream:", err)
		os.Exit(1)
	case !ok:
		os.Exit(1)
	}
}

// run runs the configurations one after the other, and reports whether all specs passed. After an interrupt the table
// has the completed ones.
func run(ctx context.Context, o options, stdout, stderr io.Writer) (bool, error) {
	plans, build, err := prepare(ctx, o, stderr)
	if err != nil {
		return false, err
	}
	if o.list {
		return true, writePlans(stdout, plans)
	}
	references, err := imageReferences(ctx, build)
	if err != nil {
		return false, err
	}
	if o.out, err = filepath.Abs(o.out); err != nil {
		return false, err
	}
	var outcomes []Outcome
	var errs []error
	for _, p := range plans {
		outcome, err := runPlan(ctx, o, p, references, stderr)
		if ctx.Err() != nil {
			errs = append(errs, ctx.Err(), err)
			break
		}
		if err != nil {
			outcome.Problems = append(outcome.Problems, err.Error())
		}
		outcomes = append(outcomes, outcome)
		errs = append(errs, saveJUnit(o.out, outcome))
	}
	if err := writeTable(stdout, outcomes); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, saveTable(o.out, outcomes))
	return !slices.ContainsFunc(outcomes, func(o Outcome) bool { return !o.ok() }), errors.Join(errs...)
}

// prepare builds the test programs and selects the specs of each configuration.
func prepare(ctx context.Context, o options, progress io.Writer) ([]Plan, *tools.Build, error) {
	picked, err := pick(o.configurations)
	if err != nil {
		return nil, nil, err
	}
	skips, err := readSkips(skipsText)
	if err != nil {
		return nil, nil, err
	}
	only, err := regexp.Compile(o.specs)
	if err != nil {
		return nil, nil, fmt.Errorf("-specs: %w", err)
	}
	build, err := tools.New(ctx, progress)
	if err != nil {
		return nil, nil, err
	}
	if err := build.Pinned(ctx, testProgram, ginkgoProgram, agnhost); err != nil {
		return nil, nil, err
	}
	specs, err := listSpecs(ctx, build)
	if err != nil {
		return nil, nil, err
	}
	if err := unused(specs, skips); err != nil {
		return nil, nil, err
	}
	var plans []Plan
	for _, c := range picked {
		expressions := c.Specs
		if c.inGuest() {
			expressions = c.Emulated
		}
		if o.subset {
			if expressions = c.Subset; expressions == nil {
				continue
			}
		}
		selected, err := selectSpecs(specs, expressions)
		if err != nil {
			return nil, nil, fmt.Errorf("configuration %s: %w", c.Name, err)
		}
		selected = slices.DeleteFunc(selected, func(s Spec) bool {
			return !only.MatchString(s.Name) || o.subset && (s.alone() || strings.Contains(s.Name, rollingUpdate))
		})
		if p := plan(c, selected, skips); len(p.Run) > 0 {
			plans = append(plans, p)
		}
	}
	if len(plans) == 0 {
		return nil, nil, fmt.Errorf("no configuration has a spec to run: change -configurations or -specs")
	}
	return plans, build, nil
}

// runPlan starts the cluster of a configuration, runs its specs, and removes the cluster.
func runPlan(ctx context.Context, o options, p Plan, references map[string][]string, stderr io.Writer) (outcome Outcome, err error) {
	began := time.Now()
	dir := filepath.Join(o.out, "logs", p.Name)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return evaluate(p, nil, nil), err
	}
	progress := &progress{w: stderr, prefix: p.Name}
	fmt.Fprintf(stderr, "%s (%s): %d specs\n", p.Name, p.About, len(p.Run))
	reports, stop := context.WithCancel(ctx)
	defer stop()
	go progress.report(reports, 30*time.Second)

	cluster, err := startCluster(ctx, p.Configuration, references, progress)
	if cluster != nil {
		defer func() { err = errors.Join(err, cluster.Close()) }()
	}
	outcome = evaluate(p, nil, nil)
	outcome.Start = time.Since(began)
	if err == nil {
		fmt.Fprintf(stderr, "%s: IronLB is installed after %s\n", p.Name, outcome.Start.Round(time.Second))
		s := suite{cluster: cluster, out: dir, progress: progress}
		var results []Result
		var problems []string
		results, problems, err = s.run(ctx, p.Run)
		start := outcome.Start
		outcome = evaluate(p, results, problems)
		outcome.Start = start
		err = errors.Join(err, cluster.Err())
	}
	outcome.Took = time.Since(began)
	if cluster != nil && (err != nil || !outcome.ok()) {
		err = errors.Join(err, failed(ctx, o, cluster, dir, stderr))
	}
	return outcome, err
}

// failed keeps the logs that explain a failure.
func failed(ctx context.Context, o options, cluster *lab.Cluster, dir string, stderr io.Writer) error {
	logs, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	err := keepLogs(logs, cluster, dir)
	fmt.Fprintln(stderr, "the logs are in", dir)
	if o.pause && ctx.Err() == nil {
		fmt.Fprintf(stderr, "the cluster stays up until Ctrl-C: KUBECONFIG=%s ip netns exec %s %s\n", cluster.Kubeconfig(), cluster.Management.Namespace, cluster.KubectlPath())
		<-ctx.Done()
	}
	return err
}

func saveJUnit(dir string, o Outcome) error {
	file, err := os.Create(filepath.Join(dir, "junit-"+o.Name+".xml"))
	if err != nil {
		return err
	}
	return errors.Join(writeJUnit(file, o), file.Close())
}

func saveTable(dir string, outcomes []Outcome) error {
	file, err := os.Create(filepath.Join(dir, "table.txt"))
	if err != nil {
		return err
	}
	return errors.Join(writeTable(file, outcomes), file.Close())
}

// writePlans lists the planned specs.
func writePlans(w io.Writer, plans []Plan) error {
	for _, p := range plans {
		fmt.Fprintf(w, "%s (%s): %d specs\n", p.Name, p.About, len(p.Run))
		for _, s := range p.Run {
			fmt.Fprintln(w, "  run ", s.Name)
		}
		for _, s := range p.Skip {
			fmt.Fprintln(w, "  skip", s.Name)
		}
	}
	return nil
}
