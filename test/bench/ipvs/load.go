package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"
)

var (
	rate    = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	slowest = regexp.MustCompile(`99%\s+([0-9.]+)(us|ms|s)`)
	wrong   = regexp.MustCompile(`(?m)^\s*(Socket errors:.*|Non-2xx.*)$`)
)

// requests runs a client on the LAN that sends requests to the Service with the Pods, each over a new connection.
func (b *bench) requests(ctx context.Context, results io.Writer, name string) error {
	if b.load == 0 {
		return nil
	}
	url := "http://" + vip(0).String() + "/"
	out, err := b.cluster.Client.Exec(ctx, "wrk", "-t", "1", "-c", "16", "-d", fmt.Sprintf("%ds", int(b.load.Seconds())), "--latency",
		"-H", "Connection: close", url)
	if err != nil {
		return err
	}
	r, p := rate.FindStringSubmatch(out), slowest.FindStringSubmatch(out)
	if r == nil || p == nil {
		return fmt.Errorf("cannot read the output of wrk: %s", out)
	}
	perSecond, err := strconv.ParseFloat(r[1], 64)
	if err != nil {
		return err
	}
	if perSecond == 0 {
		return fmt.Errorf("no answer from %s: %s", url, out)
	}
	p99, err := time.ParseDuration(p[1] + p[2])
	if err != nil {
		return err
	}
	if errors := wrong.FindString(out); errors != "" {
		progress("%s: %s", name, errors)
	}
	fmt.Fprintf(results, "Benchmark%s\t1\t%.0f ns/op\t%.1f req/s\t%.2f p99-ms\n",
		name, 1e9/perSecond, perSecond, p99.Seconds()*1e3)
	return nil
}
