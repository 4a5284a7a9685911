package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// Each row is a line of Go's benchmark format. A fault without effect on a client has a time of 0.
func TestPodResults(t *testing.T) {
	ms := time.Millisecond
	all := []podOutcome{
		{
			requests: map[string]requests{
				outsideTCP: {tried: 100, failed: 3, last: 600 * ms, late: 2 * ms}, outsideUDP: {tried: 100},
			},
			connections: connections{conns: 60, dead: 3, broken: 1, resets: []time.Duration{200 * ms, 400 * ms}},
			moves:       1,
		},
		{
			requests: map[string]requests{
				outsideTCP: {tried: 100, failed: 1, last: 200 * ms, returned: 1}, outsideUDP: {tried: 100},
			},
			connections: connections{conns: 60}, moves: 1, lost: 1,
		},
	}
	var out bytes.Buffer
	podResults(&out, "kill/standard/ipv4", all)
	want := "outside-tcp 2 400000000 ns/op 200 p50-ms 600 p99-ms 600 max-ms " +
		"2 failed-% 2 failed/op 0.5 return-failed/op 2 client-late-ms\n" +
		"outside-udp 2 0 ns/op 0 p50-ms 0 p99-ms 0 max-ms " +
		"0 failed-% 0 failed/op 0 return-failed/op 0 client-late-ms\n" +
		"established 2 200000000 ns/op 200 p50-ms 200 p99-ms 200 max-ms " +
		"400 all-max-ms 0.5 unreset/op 0.5 broken/op 0.5 lost-pods/op 1 moves/op"
	var have []string
	for line := range strings.Lines(out.String()) {
		fields := strings.Fields(strings.TrimPrefix(line, "BenchmarkPods/kill/standard/ipv4/"))
		fields[0] = fields[0][:strings.LastIndex(fields[0], "-")] // the number of CPUs
		have = append(have, strings.Join(fields, " "))
	}
	if got := strings.Join(have, "\n"); got != want {
		t.Errorf("have\n%s\nwant\n%s", got, want)
	}
}

// The clients are observed until after Kubernetes has marked a dead node not Ready. Pods count as lost only before that
// may have happened.
func TestSpan(t *testing.T) {
	o := options{grace: 40 * time.Second}
	for _, f := range podFaults {
		span, sure := f.span(o), f.sure(o)
		switch {
		case f.notReady && (span < o.grace+heartbeat/2 || sure > o.grace-heartbeat):
			t.Errorf("%s: watched for %s, certainly Ready for %s", f.name, span, sure)
		case !f.notReady && (span < 15*time.Second || sure != span):
			t.Errorf("%s: watched for %s, certainly Ready for %s", f.name, span, sure)
		}
	}
}
