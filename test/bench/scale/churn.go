package main

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// programming is the speaker's metric in the form of Kubernetes' network programming latency, from the time in the
// EndpointSlice.
const programming = "ironlb_speaker_network_programming_duration_seconds"

// churn measures changed endpoints at a constant rate, of one Service after the other.
func (b *bench) churn(ctx context.Context) error {
	if b.o.churn == 0 {
		return nil
	}
	changes := int(float64(b.o.rate) * b.o.churn.Seconds())
	f, err := b.follow(ctx, changes, float64(b.o.rate))
	if err != nil {
		return err
	}
	row := fmt.Sprintf("Churn/rate=%d", b.o.rate)
	b.result(row, f.of.count(), f.sent/time.Duration(changes), "%.0f p50-ms\t%.0f p99-ms\t%.2f behind-s\t%.1f cpu-%%",
		1000*f.of.quantile(0.5), 1000*f.of.quantile(0.99), (f.programmed - f.sent).Seconds(),
		100*f.cpuSent.Seconds()/f.sent.Seconds())
	return nil
}

// deadNode is the share of all endpoints that a node has: it is one of a hundred.
const deadNode = 100

// burst measures as many changed endpoints at once as the death of a node causes.
func (b *bench) burst(ctx context.Context) error {
	changes := b.services * perService / deadNode
	f, err := b.follow(ctx, changes, math.Inf(1))
	if err != nil {
		return err
	}
	b.result("Burst", f.of.count(), f.programmed/time.Duration(changes),
		"%.0f p50-ms\t%.0f p99-ms\t%.2f all-s\t%.0f cpu-ms",
		1000*f.of.quantile(0.5), 1000*f.of.quantile(0.99), f.programmed.Seconds(), 1000*f.cpu.Seconds())
	return nil
}

// followed is how the process followed changed endpoints: the latencies, the time from the first change until the last
// was sent and was programmed, and the CPU time of both.
type followed struct {
	of               histogram
	sent, programmed time.Duration
	cpuSent, cpu     time.Duration
}

// follow changes endpoints at a rate per second, of one Service after the other.
func (b *bench) follow(ctx context.Context, changes int, rate float64) (f followed, err error) {
	before, err := readHistogram(programming)
	if err != nil {
		return f, err
	}
	cpuBefore, err := b.p.cpu()
	if err != nil {
		return f, err
	}
	start := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for n := 0; n < changes; {
		select {
		case <-ctx.Done():
			return f, ctx.Err()
		case <-tick.C:
		}
		for due := int(min(float64(changes), time.Since(start).Seconds()*rate)); n < due; n++ {
			b.changeEndpoint(n % b.services)
		}
	}
	f.sent = time.Since(start)
	cpuAfter, err := b.p.cpu()
	if err != nil {
		return f, err
	}
	f.cpuSent = cpuAfter - cpuBefore
	// Two changes of a Service in one reconcile count once.
	var last time.Time
	err = b.until(ctx, 20*time.Millisecond, "programmed", func() (bool, string) {
		after, err := readHistogram(programming)
		if err != nil {
			return false, err.Error()
		}
		if now := after.minus(before); f.of == nil || now.count() > f.of.count() {
			f.of, last = now, time.Now()
		}
		return f.of.count() >= changes || time.Since(last) > 2*time.Second, fmt.Sprintf("%d of %d changes", f.of.count(), changes)
	})
	if err != nil {
		return f, err
	}
	f.programmed = last.Sub(start)
	cpuAfter, err = b.p.cpu()
	f.cpu = cpuAfter - cpuBefore
	return f, err
}

// changeEndpoint replaces one endpoint of Service i.
func (b *bench) changeEndpoint(i int) {
	b.changed[i]++
	b.api.replace("endpointslices", i, endpointSlice(i, b.changed[i]))
}

// bucket is a bucket of a histogram of Prometheus: how many observations were at most le.
type bucket struct {
	le    float64
	count int
}

type histogram []bucket

// readHistogram returns a histogram without labels.
func readHistogram(name string) (h histogram, err error) {
	page, ok := get("/metrics")
	if !ok {
		return nil, fmt.Errorf("read /metrics: %s", page)
	}
	for line := range strings.Lines(page) {
		rest, found := strings.CutPrefix(line, name+`_bucket{le="`)
		if !found {
			continue
		}
		le, count, _ := strings.Cut(strings.TrimSpace(rest), `"} `)
		var b bucket
		if b.le, err = strconv.ParseFloat(le, 64); err != nil {
			return nil, err
		}
		if b.count, err = strconv.Atoi(count); err != nil {
			return nil, err
		}
		h = append(h, b)
	}
	if len(h) == 0 {
		return nil, fmt.Errorf("no histogram %s", name)
	}
	return h, nil
}

// minus returns the observations since before.
func (h histogram) minus(before histogram) histogram {
	since := make(histogram, len(h))
	for i, b := range h {
		since[i] = bucket{b.le, b.count - before[i].count}
	}
	return since
}

func (h histogram) count() int { return h[len(h)-1].count }

// quantile interpolates within a bucket, as histogram_quantile of Prometheus does.
func (h histogram) quantile(q float64) float64 {
	rank, last := q*float64(h.count()), bucket{}
	for _, b := range h {
		if float64(b.count) >= rank && b.count > last.count {
			if math.IsInf(b.le, 1) {
				return last.le
			}
			return last.le + (b.le-last.le)*(rank-float64(last.count))/float64(b.count-last.count)
		}
		last = b
	}
	return last.le
}
