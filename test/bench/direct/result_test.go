package main

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab/probe"
)

func measured(mode string, requests int, took time.Duration, owner uint64) sample {
	return sample{
		group: group{size: 1000, connections: "new"}, mode: mode, owner: owner, others: 3 * owner, duration: took,
		load: probe.Load{
			Requests: requests, InTime: requests - requests/10, Failed: 1,
			P50: 1500 * time.Microsecond, P99: 12345 * time.Microsecond, Max: time.Second,
		},
		cpu: cpuTime{user: time.Second, kernel: 3 * time.Second},
	}
}

func TestRow(t *testing.T) {
	want := fmt.Sprintf("BenchmarkDirect/size=1kB/connections=new/forwarding=direct-%d\t20000\t111111 ns/op\t9000 req/s\t1.50 p50-ms\t12.3 p99-ms\t1000 max-ms"+
		"\t200 cpu-us/op\t150 kernel-us/op\t2500 owner-B/op\t7500 others-B/op\t1 failed", runtime.GOMAXPROCS(0))
	if have := measured(direct, 20_000, 2*time.Second, 50_000_000).row(); have != want {
		t.Errorf("have %s\nwant %s", have, want)
	}
}

// TestTable: medians of the rounds, and ratios of the values of one round.
func TestTable(t *testing.T) {
	samples := []sample{
		measured(pod, 1000, time.Second, 4_000_000), measured(direct, 2000, time.Second, 4_000_000), // 2, and 0.5
		measured(pod, 2000, time.Second, 8_000_000), measured(direct, 1000, time.Second, 1_000_000), // 0.5, and 0.25
		measured(pod, 1500, time.Second, 6_000_000), measured(direct, 1500, time.Second, 6_000_000), // 1, and 1
		{group: group{size: 1_000_000, connections: "kept"}, mode: pod, duration: time.Second, load: probe.Load{Requests: 1, InTime: 1}},
	}
	var out strings.Builder
	if err := table(&out, samples); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| 1kB | new | req/s | 1350 | 1350 | 1.00 (0.50 to 2.00) |",
		"| 1kB | new | owner-B/op | 4000 | 2000 | 0.50 (0.25 to 1.00) |",
		"| 1kB | new | p99-ms | 12.3 | 12.3 | 1.00 (1.00 to 1.00) |",
		"| 1MB | kept | req/s | 1.00 | | |", // not measured with direct
	} {
		found := false
		for line := range strings.Lines(out.String()) {
			found = found || strings.Join(strings.Fields(line), " ") == want
		}
		if !found {
			t.Errorf("no line %q in\n%s", want, out.String())
		}
	}
}

func TestMedianAndNumbers(t *testing.T) {
	for _, c := range []struct{ have, want string }{
		{middle([]float64{3, 1, 2}), "2.00"}, {middle([]float64{4, 1, 2, 3}), "2.50"}, {middle(nil), ""},
		{number(0), "0"}, {number(0.01234), "0.0123"}, {number(99.96), "100.0"}, {number(123456.7), "123457"},
		{byteSize(1000), "1kB"}, {byteSize(1_000_000), "1MB"}, {byteSize(1500), "1500B"}, {byteSize(20_000), "20kB"}, {byteSize(100_000_000), "100MB"},
		{ratio([]float64{2, 4}, []float64{1, 1}), "0.38 (0.25 to 0.50)"}, {ratio([]float64{2}, nil), ""},
		{ratio([]float64{2}, []float64{1}), "0.50"},
	} {
		if c.have != c.want {
			t.Errorf("have %q, want %q", c.have, c.want)
		}
	}
}

func TestParseCPU(t *testing.T) {
	const stat = "14908 (labpod) (x) S 1 14908 1 0 -1 4194560 101 102 103 104 30 20 7 8 20 0 9 0 500 2 3\n"
	d, err := parseCPU(stat)
	if want := (cpuTime{user: 300 * time.Millisecond, kernel: 200 * time.Millisecond}); err != nil || d != want {
		t.Errorf("%+v, %v, want %+v", d, err, want)
	}
	if sum := d.plus(d).plus(d).minus(d); sum != d.plus(d) {
		t.Errorf("%+v", sum)
	}
	for _, bad := range []string{"", "1 (a) S 1 2\n", "1 (a) S 1 1 1 0 -1 4 1 2 3 4 x 20 7 8\n"} {
		if _, err := parseCPU(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestParseLink(t *testing.T) {
	n, err := parseLink([]byte(`[{"ifname":"eth0","stats64":{"rx":{"bytes":1000,"packets":3},"tx":{"bytes":30,"packets":2}}}]`))
	if err != nil || n != 1030 {
		t.Errorf("%d bytes, %v", n, err)
	}
	for _, bad := range []string{"", "[]", `[{"ifname":"eth0"}]`} {
		if _, err := parseLink([]byte(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestParse(t *testing.T) {
	o, err := parse([]string{"-modes", "direct", "-sizes", "2000", "-connections", "kept"})
	if err != nil || len(o.sizes) != 1 || o.sizes[0] != 2000 || o.modes[0] != direct || perConnection[o.connections[0]] < 2 {
		t.Errorf("%+v, %v", o, err)
	}
	for _, bad := range []string{"-modes=kube-proxy", "-sizes=1", "-sizes=1kB", "-connections=some", "-rounds=0", "-duration=1ms", "-concurrency=0"} {
		if _, err := parse([]string{bad}); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}
