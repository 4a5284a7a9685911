package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

func (b *bench) measure(ctx context.Context) error {
	for _, step := range []func(context.Context) error{b.cold, b.idle, b.change, b.changeBig, b.churn, b.burst, b.repair} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("%w; the log ends with:\n%s", err, b.p.lastLines())
		}
	}
	return nil
}

// until waits until done returns true.
func (b *bench) until(ctx context.Context, every time.Duration, what string, done func() (bool, string)) error {
	limit := time.After(b.o.limit)
	for {
		ok, why := done()
		if ok {
			return nil
		}
		select {
		case err := <-b.p.ended:
			b.p.ended <- err
			return fmt.Errorf("the process has ended: %w", errors.Join(err, errors.New("before "+what)))
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return fmt.Errorf("not %s within %v: %s", what, b.o.limit, why)
		case <-time.After(every):
		}
	}
}

// result prints a line.
func (b *bench) result(name string, n int, op time.Duration, rest string, args ...any) {
	fmt.Printf("Benchmark%s/services=%d-%d\t%d\t%d ns/op\t%s\n", name, b.services, runtime.GOMAXPROCS(0), n, op.Nanoseconds(), fmt.Sprintf(rest, args...))
}

// cold measures the start, until the process is ready with all virtual servers.
func (b *bench) cold(ctx context.Context) error {
	err := b.until(ctx, 20*time.Millisecond, "ready", func() (bool, string) {
		why, ok := get("/readyz")
		return ok, why
	})
	if err != nil {
		return err
	}
	took := time.Since(b.p.began)
	cpu, err := b.p.cpu()
	if err != nil {
		return err
	}
	want := float64(2 * (b.services*perService + bigEndpoints)) // of the ClusterIP and of the address
	if have, err := metric("ironlb_speaker_real_servers"); err != nil || have != want {
		return fmt.Errorf("%v real servers are programmed, want %v: %w", have, want, err)
	}
	if err := b.settle(ctx); err != nil {
		return err
	}
	tree := b.p.treePeak()
	peak, err := b.p.megabytes("status", "VmHWM")
	if err != nil {
		return err
	}
	b.result("Start", 1, took, "%.2f start-s\t%.2f cpu-s\t%.1f peak-MB\t%.1f tree-MB", took.Seconds(), cpu.Seconds(), peak, float64(tree)/1e6)
	return nil
}

const (
	settleStep = 5 * time.Second
	settleMost = 24
)

// settle waits until the CPU time of three consecutive steps no longer falls, at most for two minutes: announcements and
// Go's garbage collector follow the start.
func (b *bench) settle(ctx context.Context) error {
	var steps []time.Duration
	last, err := b.p.cpu()
	if err != nil {
		return err
	}
	for range settleMost {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(settleStep):
		}
		now, err := b.p.cpu()
		if err != nil {
			return err
		}
		steps = append(steps, now-last)
		last = now
		const enough = 5
		if n := len(steps); n >= enough && 10*steps[n-1] >= 8*steps[n-2] && 10*steps[n-2] >= 8*steps[n-3] {
			return nil
		}
	}
	progress("%d Services: not idle after %v: %v in each %v", b.services, settleMost*settleStep, steps, settleStep)
	return nil
}

// idle measures the process while nothing changes.
func (b *bench) idle(ctx context.Context) error {
	before, err := b.p.cpu()
	if err != nil {
		return err
	}
	start := time.Now()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(b.o.window):
	}
	after, err := b.p.cpu()
	if err != nil {
		return err
	}
	took := time.Since(start)
	rss, err1 := b.p.megabytes("status", "VmRSS")
	pss, err2 := b.p.megabytes("smaps_rollup", "Pss")
	heap, err3 := metric("go_memstats_heap_inuse_bytes")
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	b.result("Idle", int(took.Seconds()), time.Duration(float64(after-before)/took.Seconds()), "%.2f cpu-%%\t%.1f RSS-MB\t%.1f Pss-MB\t%.1f heap-MB",
		100*(after-before).Seconds()/took.Seconds(), rss, pss, heap/1e6)
	return nil
}

// change measures changed endpoints, one after the other, of different Services.
func (b *bench) change(ctx context.Context) error {
	return b.oneByOne(ctx, "Change", func(n int) { b.changeEndpoint(n * b.services / b.o.changes) })
}

// changeBig measures changed endpoints, one after the other, of the Service with bigEndpoints.
func (b *bench) changeBig(ctx context.Context) error {
	const parts = bigEndpoints / perSlice
	return b.oneByOne(ctx, fmt.Sprintf("Change/endpoints=%d", bigEndpoints), func(n int) {
		part := n % parts
		b.api.replace("endpointslices", b.services+part, bigSlice(b.services, part, n/parts+1))
	})
}

// oneByOne measures changes, each once the previous one is programmed.
func (b *bench) oneByOne(ctx context.Context, row string, change func(n int)) error {
	if b.o.changes == 0 {
		return nil
	}
	watch, err := nftwatch.Open("ironlb-lb")
	if err != nil {
		return err
	}
	defer watch.Close()
	before, err := b.p.cpu()
	if err != nil {
		return err
	}
	var took []time.Duration
	for n := range b.o.changes {
		start := time.Now()
		change(n)
		err := b.until(ctx, time.Millisecond, "programmed", func() (bool, string) {
			counts, err := watch.Count()
			return err != nil || counts[nftwatch.IP] > 0, "the kernel reports no change"
		})
		if err != nil {
			return err
		}
		took = append(took, time.Since(start))
		select { // the next change comes on its own
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		if _, err := watch.Count(); err != nil {
			return err
		}
	}
	after, err := b.p.cpu()
	if err != nil {
		return err
	}
	slices.Sort(took)
	sum := time.Duration(0)
	for _, d := range took {
		sum += d
	}
	n := len(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.result(row, n, sum/time.Duration(n), "%.1f p50-ms\t%.1f p99-ms\t%.1f cpu-ms",
		ms(took[n/2]), ms(took[n*99/100]), ms((after-before)/time.Duration(n)))
	return nil
}

// repair measures how soon a flush and an edit by another program are repaired.
func (b *bench) repair(ctx context.Context) error {
	const table, reals, virtuals = "ironlb-lb", "reals-tcp", "virtuals"
	addr := nth(loadBalancers, b.services/2)
	for _, damage := range []struct {
		name        string
		nft, intact []string
	}{
		{"Flush", []string{"delete", "table", "ip", table}, []string{"get", "element", "ip", table, virtuals, "{ " + addr + " . tcp . 80 }"}},
		{"Edit", []string{"delete", "element", "ip", table, reals, "{ " + addr + " . 80 . 0 }"},
			[]string{"get", "element", "ip", table, reals, "{ " + addr + " . 80 . 0 }"}},
	} {
		if out, err := exec.CommandContext(ctx, "nft", damage.nft...).CombinedOutput(); err != nil {
			return fmt.Errorf("nft %v: %w: %s", damage.nft, err, out)
		}
		before, err := b.p.cpu()
		if err != nil {
			return err
		}
		start := time.Now()
		err = b.until(ctx, 20*time.Millisecond, "repaired", func() (bool, string) {
			out, err := exec.CommandContext(ctx, "nft", damage.intact...).CombinedOutput()
			return err == nil, string(out)
		})
		if err != nil {
			return err
		}
		took := time.Since(start)
		after, err := b.p.cpu()
		if err != nil {
			return err
		}
		b.result(damage.name, 1, took, "%.2f repair-s\t%.0f cpu-ms", took.Seconds(), 1000*(after-before).Seconds())
	}
	return nil
}
