package main

import (
	"bytes"
	"encoding/xml"
	"flag"
	"os"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

// golden compares with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := "testdata/" + name
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
	}
}

// report returns ginkgo's report of four specs and a failed BeforeSuite.
func report(t *testing.T) ([]Result, []string) {
	t.Helper()
	file, err := os.Open("testdata/report.json")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	results, problems, err := readReport(file)
	if err != nil {
		t.Fatal(err)
	}
	return results, problems
}

func TestReadReport(t *testing.T) {
	results, problems := report(t)
	if len(results) != 4 || len(problems) != 2 {
		t.Fatalf("got %d results, %d problems; want 4 and 2: %v %v", len(results), len(problems), results, problems)
	}
	first := results[0]
	if want := "[sig-network] Services should serve a basic endpoint from pods [Conformance]"; first.Name != want {
		t.Errorf("name %q; want %q", first.Name, want)
	}
	if got := strings.Join(first.Labels, " "); got != "Conformance sig-network" {
		t.Errorf("labels %q; want Conformance sig-network", got)
	}
	if first.Took != 2500*time.Millisecond {
		t.Errorf("took %v; want 2.5s", first.Took)
	}
	if want := "no answer (network/service.go:7)"; results[1].State != "failed" || results[1].Message != want {
		t.Errorf("got %s %q; want failed %q", results[1].State, results[1].Message, want)
	}
	if want := "LoadBalancer uses 'Proxy' IPMode"; results[2].State != "skipped" || results[2].Message != want {
		t.Errorf("got %s %q; want skipped %q", results[2].State, results[2].Message, want)
	}
}

// The report of a part has every spec of upstream; those outside the part are not results.
func TestResultsOf(t *testing.T) {
	results, _ := report(t)
	part := []Spec{results[2].Spec, {Name: "[sig-network] Services should be found"}}
	if got := resultsOf(part, results); len(got) != 1 || got[0].Name != part[0].Name {
		t.Errorf("got %v; want the result of %s", got, part[0].Name)
	}
}

func TestAlone(t *testing.T) {
	for labels, want := range map[string]bool{"Conformance": false, "Serial": true, "Slow Disruptive": true, "": false} {
		if got := (Spec{Labels: strings.Fields(labels)}).alone(); got != want {
			t.Errorf("labels %q: got %v", labels, got)
		}
	}
}

// The outcome has a row for every planned spec: one that did not pass, was skipped, or is missing is a failure.
func example(t *testing.T) Outcome {
	results, problems := report(t)
	var run []Spec
	for _, r := range results {
		run = append(run, r.Spec)
	}
	run = append(run, Spec{Name: "[sig-network] Services should be found"})
	p := Plan{Configuration: Configuration{Name: "x", About: "an example"}, Run: run, Skip: []Skipped{{Spec{Name: "[sig-network] SCTP"}, "no SCTP"}}}
	o := evaluate(p, results, problems)
	o.Took, o.Start = 90*time.Second, time.Minute
	return o
}

func TestOutcome(t *testing.T) {
	o := example(t)
	if passed, failed := o.count(); passed != 1 || failed != 4 {
		t.Errorf("%d passed, %d failed; want 1 and 4", passed, failed)
	}
	if o.ok() {
		t.Error("an outcome with failures is ok")
	}
	for i, want := range []string{"passed", "failed", "skipped", "failed", missing} {
		if o.Results[i].State != want {
			t.Errorf("%s: %s; want %s", o.Results[i].Name, o.Results[i].State, want)
		}
	}
	o = evaluate(Plan{Run: o.Run[:1]}, o.Results[:1], nil)
	if !o.ok() {
		t.Error("an outcome whose only spec passed is not ok")
	}
	if o.Problems = []string{"aborted"}; o.ok() {
		t.Error("an outcome with a problem outside specs is ok")
	}
}

func TestTable(t *testing.T) {
	var table bytes.Buffer
	if err := writeTable(&table, []Outcome{example(t)}); err != nil {
		t.Fatal(err)
	}
	golden(t, "table.txt", table.Bytes())
}

func TestJUnit(t *testing.T) {
	var file bytes.Buffer
	if err := writeJUnit(&file, example(t)); err != nil {
		t.Fatal(err)
	}
	golden(t, "junit.xml", file.Bytes())
	var read junitSuite
	if err := xml.Unmarshal(file.Bytes(), &read); err != nil {
		t.Fatal(err)
	}
	if read.Tests != len(read.Cases) || read.Failures != 6 || read.Skipped != 1 {
		t.Errorf("tests=%d cases=%d failures=%d skipped=%d; want as many tests as cases, 6 failures, 1 skipped", read.Tests, len(read.Cases), read.Failures, read.Skipped)
	}
}

// Upstream accepts lost requests during a rolling update; here a lost request is a failure.
func TestUpdates(t *testing.T) {
	const round = "I1122 lb.go:1] Load Balancer total HTTP requests: 1000\nNetwork errors: %N\nHTTP errors: %H\nSuccess rate: 100.00%\n"
	rounds := func(network, http string) string {
		return strings.NewReplacer("%N", "0", "%H", "0").Replace(round) + strings.NewReplacer("%N", network, "%H", http).Replace(round)
	}
	for _, test := range []struct {
		output, state, message string
		rate                   float64
	}{
		{rounds("0", "0"), "passed", "", 100},
		{rounds("1", "0"), "failed", "1 network errors and 0 HTTP errors of 2000 requests: a success rate of 99.950%, and 100% is required", 99.95},
		{`I1123 lb.go:1371] Got error testing for reachability of http://203.0.113.3:80/echo?msg=hello: Get "http://203.0.113.3:80/echo?msg=hello": ` +
			"read tcp 198.51.100.200:1->203.0.113.3:80: read: connection reset by peer\n" + rounds("1", "0"), "failed",
			"1 network errors and 0 HTTP errors of 2000 requests: a success rate of 99.950%, and 100% is required\n1: connection reset by peer", 99.95},
		{rounds("0", "4"), "failed", "0 network errors and 4 HTTP errors of 2000 requests: a success rate of 99.800%, and 100% is required", 99.8},
		{"Network errors: 0\nHTTP errors: 0\n", "failed", "the log has 0 counts of requests", 0},
		{strings.ReplaceAll(rounds("0", "0"), "HTTP errors", "HTTP faults"), "failed", "the log has 2 counts of requests, 2 of network errors and 0 of HTTP errors", 0},
		{"", "failed", "the log has 0 counts of requests", 0},
	} {
		spec := Spec{Name: "[sig-network] LoadBalancers should not have " + rollingUpdate + " with externalTrafficPolicy=Local [Slow]"}
		o := evaluate(Plan{Run: []Spec{spec}}, []Result{{Spec: spec, State: "passed", Output: test.output}}, nil)
		if r := o.Results[0]; r.State != test.state || !strings.HasPrefix(r.Message, test.message) {
			t.Errorf("%q: got %s %q; want %s %q", test.output, r.State, r.Message, test.state, test.message)
		}
		if test.rate > 0 && (len(o.Updates) != 1 || o.Updates[0].Rate() != test.rate || o.Updates[0].Rounds != 2) {
			t.Errorf("%q: got %+v; want 2 rounds and a rate of %v", test.output, o.Updates, test.rate)
		}
	}
}

// Progress counts specs in ginkgo's output, however it is split into writes.
func TestProgress(t *testing.T) {
	p := &progress{}
	p.start(5)
	for _, b := range []byte("Running Suite\nSSS•SS•\n------------------------------\n• [FAILED] [12.3 seconds]\n• [SLOW TEST] [6 seconds]\nname\n• [TIMEDOUT] [9 seconds]\n") {
		p.Write([]byte{b})
	}
	ended, failed, total := p.count()
	if ended != 5 || failed != 2 || total != 5 {
		t.Errorf("%d ended, %d failed, %d in total; want 5, 2 and 5", ended, failed, total)
	}
}
