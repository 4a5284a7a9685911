package main

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// churn measures changed endpoints at a constant rate, of one Service after the other. The latency is that of the
// speaker's metric of Kubernetes' network programming latency, from the time in the EndpointSlice.
func (b *bench) churn(ctx context.Context) error {
	if b.o.churn == 0 {
		return nil
	}
	const name = "ironlb_speaker_network_programming_duration_seconds"
	before, err := readHistogram(name)
	if err != nil {
		return err
	}
	cpuBefore, err := b.p.cpu()
	if err != nil {
		return err
	}
	start := time.Now()
	changes := int(float64(b.o.rate) * b.o.churn.Seconds())
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for n := 0; n < changes; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		for due := min(changes, int(time.Since(start).Seconds()*float64(b.o.rate))); n < due; n++ {
			b.changeEndpoint(n % b.services)
		}
	}
	took := time.Since(start)
	cpuAfter, err := b.p.cpu()
	if err != nil {
		return err
	}
	// Two changes of a Service in one reconcile count once.
	var of histogram
	var last time.Time
	err = b.until(ctx, 20*time.Millisecond, "programmed", func() (bool, string) {
		after, err := readHistogram(name)
		if err != nil {
			return false, err.Error()
		}
		if now := after.minus(before); of == nil || now.count() > of.count() {
			of, last = now, time.Now()
		}
		return of.count() >= changes || time.Since(last) > 2*time.Second, fmt.Sprintf("%d of %d changes", of.count(), changes)
	})
	if err != nil {
		return err
	}
	behind := last.Sub(start) - took
	row := fmt.Sprintf("Churn/rate=%d", b.o.rate)
	b.result(row, of.count(), took/time.Duration(changes), "%.0f p50-ms\t%.0f p99-ms\t%.2f behind-s\t%.1f cpu-%%",
		1000*of.quantile(0.5), 1000*of.quantile(0.99), behind.Seconds(), 100*(cpuAfter-cpuBefore).Seconds()/took.Seconds())
	return nil
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
