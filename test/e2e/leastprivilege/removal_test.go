package leastprivilege

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab/manifest"
	"github.com/ironlb/ironlb/test/lab/process"
)

// TestNothingRemoved runs every check with the privileges of the manifests: all must pass.
func TestNothingRemoved(t *testing.T) {
	var group sync.WaitGroup
	for i, name := range []string{ccm, speaker, bgpd} {
		f := fixtures[i%len(fixtures)]
		group.Go(func() {
			f.mutex.Lock()
			defer f.mutex.Unlock()
			f.limits = generous
			if err := f.again(t.Context(), name); err != nil {
				t.Error(err)
				return
			}
			for _, c := range checks[name] {
				began := time.Now()
				if err := c.run(t.Context(), f); err != nil {
					t.Errorf("%s: %q fails: %v\n%s", name, c.name, err, f.tail(name))
				} else {
					t.Logf("%-15s %s: passed after %v", name, c.name, time.Since(began).Round(100*time.Millisecond))
				}
			}
		})
	}
	group.Wait()
}

// result of the removal of a right.
type result struct {
	right   manifest.Right
	failed  string // name of the check
	why     error
	passed  []string // checks that ran before
	refused int      // requests
	took    time.Duration
}

// TestEachIsNeeded removes every right, one at a time: a check must fail, and pass again after the right is restored.
func TestEachIsNeeded(t *testing.T) {
	all, err := manifest.Rights(root)
	if err != nil {
		t.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(r manifest.Right) bool {
		return !strings.Contains(r.Container+" "+r.GrantedBy()+" "+r.String(), *only)
	})
	results := make([]result, len(all))
	next := make(chan int, len(all))
	for i := range all {
		next <- i
	}
	close(next)
	var group sync.WaitGroup
	for _, f := range fixtures {
		group.Go(func() {
			for i := range next {
				began := time.Now()
				res, err := f.without(t.Context(), all[i])
				res.took = time.Since(began).Round(time.Second)
				results[i] = res
				switch {
				case err != nil:
					t.Errorf("%s without %v: %v; passed before: %q", all[i].Container, all[i], err, res.passed)
				default:
					t.Logf("%s without %v: %q fails: %v (%d refused, %v; passed before: %q)", all[i].Container, all[i], res.failed, res.why, res.refused, res.took, res.passed)
				}
			}
		})
	}
	group.Wait()
	text := table(results)
	t.Logf("\n%s", text)
	if *file != "" {
		if err := os.WriteFile(*file, []byte(text), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// without removes the right and returns the first check that fails.
func (f *fixture) without(ctx context.Context, r manifest.Right) (res result, err error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	res.right = r
	f.limits = strict
	name := program(r.Container)
	defer func() {
		if back := f.restore(context.WithoutCancel(ctx), r); back != nil {
			err = errors.Join(err, back)
		}
	}()
	size, err := f.auditSize()
	if err != nil {
		return res, err
	}
	if err := errors.Join(f.stop(name), f.remove(ctx, r), f.again(ctx, name)); err != nil {
		return res, err
	}
	var proof check
	for _, c := range ordered(r) {
		began := time.Now()
		why := c.run(ctx, f)
		if why == nil {
			res.passed = append(res.passed, fmt.Sprintf("%s (%v)", c.name, time.Since(began).Round(time.Second)))
		} else {
			proof, res.failed, res.why = c, c.name, why
			break
		}
	}
	if ctx.Err() != nil {
		return res, ctx.Err()
	}
	if res.failed == "" {
		return res, errors.New("no check fails: remove the right from the chart, or add the check that shows what it is for")
	}
	if r.InAPI() {
		if res.refused, err = f.refused(r, size); err != nil {
			return res, err
		}
		if res.refused == 0 {
			return res, fmt.Errorf("%q fails (%w), but the API server refused no such request", res.failed, res.why)
		}
	}
	// The check must pass within the same limits with the right; a busy machine may need several attempts.
	if err := errors.Join(f.stop(name), f.restore(ctx, r)); err != nil {
		return res, err
	}
	for range 3 {
		if err = f.again(ctx, name); err != nil {
			return res, err
		}
		if err = proof.run(ctx, f); err == nil {
			return res, nil
		}
	}
	return res, fmt.Errorf("%q fails, and also once the right is back: %w\n%s", res.failed, err, f.tail(name))
}

// again restarts a program with a clean state of the cluster.
func (f *fixture) again(ctx context.Context, name string) error {
	return errors.Join(f.stop(name), f.reset(ctx), f.start(ctx, name))
}

func (f *fixture) tail(name string) string {
	p := f.manager
	switch name {
	case speaker:
		p = f.node.Speaker()
	case bgpd:
		p = f.node.BGP()
	}
	if p == nil {
		return ""
	}
	return process.Tail(p.Log, 15)
}

// table returns the results as Markdown.
func table(results []result) string {
	rows := [][]string{{"container", "granted by", "right", "fails without it"}, {"", "", "", ""}}
	for _, r := range results {
		rows = append(rows, []string{r.right.Container, r.right.GrantedBy(), "`" + r.right.String() + "`", r.failed})
	}
	widths := make([]int, 4)
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	var b strings.Builder
	for n, row := range rows {
		for i, cell := range row {
			if n == 1 {
				cell = strings.Repeat("-", widths[i])
			}
			fmt.Fprintf(&b, "| %-*s ", widths[i], cell)
		}
		b.WriteString("|\n")
	}
	return b.String()
}
