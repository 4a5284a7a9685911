package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Outcome is the result of a configuration.
type Outcome struct {
	Plan
	Results  []Result      // of Plan.Run, in its order
	Updates  []Update      // the clients' results of rolling updates
	Problems []string      // outside specs: the cluster did not start, the suite was aborted
	Start    time.Duration // until IronLB was installed
	Took     time.Duration // total
}

const missing = "missing" // state of a spec without a result

// evaluate returns a result for each spec of the plan. A rolling update with lost requests is a failure.
func evaluate(p Plan, ran []Result, problems []string) Outcome {
	o := Outcome{Plan: p, Problems: problems}
	byName := map[string]Result{}
	for _, r := range ran {
		byName[r.Name] = r
	}
	for _, spec := range p.Run {
		r, ok := byName[spec.Name]
		if !ok {
			r = Result{Spec: spec, State: missing, Message: "the suite has no result of it"}
		}
		if strings.Contains(spec.Name, rollingUpdate) && r.State == "passed" {
			update, err := readUpdate(r)
			if err == nil {
				o.Updates = append(o.Updates, update)
				err = update.err()
			}
			if err != nil {
				r.State, r.Message = "failed", err.Error()
			}
		}
		o.Results = append(o.Results, r)
	}
	return o
}

// count returns the number of specs that passed, and of those that did not.
func (o Outcome) count() (passed, failed int) {
	for _, r := range o.Results {
		if r.State == "passed" {
			passed++
		} else {
			failed++
		}
	}
	return passed, failed
}

func (o Outcome) ok() bool {
	_, failed := o.count()
	return failed == 0 && len(o.Problems) == 0
}

// rollingUpdate is in the names of the tests that count requests during rolling updates. Upstream accepts a loss of
// some percent; IronLB accepts none.
const rollingUpdate = "connectivity disruption during rolling update"

// Update is a client's result of the rolling updates of one spec.
type Update struct {
	Spec
	Rounds                    int
	Requests, Network, HTTP   uint64         // total requests, and errors among them
	Causes                    map[string]int // of network errors, as far as the test logs them
	networkRounds, httpRounds int
}

var updateLine = regexp.MustCompile(`(Load Balancer total HTTP requests|Network errors|HTTP errors): (\d+)`)

// causeLine ends with the error: "read tcp 198.51.100.200:55158->203.0.113.3:80: read: connection reset by peer".
var causeLine = regexp.MustCompile(`Got error testing for reachability of .*: (.+)`)

// readUpdate reads the test's log lines after each rolling update.
func readUpdate(r Result) (Update, error) {
	u := Update{Spec: r.Spec, Causes: map[string]int{}}
	for _, m := range causeLine.FindAllStringSubmatch(r.Output, -1) {
		u.Causes[m[1]]++
	}
	for _, m := range updateLine.FindAllStringSubmatch(r.Output, -1) {
		n, err := strconv.ParseUint(m[2], 10, 64)
		if err != nil {
			return u, err
		}
		switch m[1] {
		case "Network errors":
			u.Network += n
			u.networkRounds++
		case "HTTP errors":
			u.HTTP += n
			u.httpRounds++
		default:
			u.Requests += n
			u.Rounds++
		}
	}
	if u.Rounds == 0 || u.Requests == 0 || u.networkRounds != u.Rounds || u.httpRounds != u.Rounds {
		return u, fmt.Errorf("the log has %d counts of requests, %d of network errors and %d of HTTP errors; want as many of each, and some requests: "+
			"adapt readUpdate to this version of the test", u.Rounds, u.networkRounds, u.httpRounds)
	}
	return u, nil
}

// Rate returns the share of answered requests, in percent.
func (u Update) Rate() float64 {
	return 100 * (1 - float64(u.Network+u.HTTP)/float64(u.Requests))
}

func (u Update) err() error {
	if u.Network+u.HTTP == 0 {
		return nil
	}
	var causes []string
	for _, cause := range slices.Sorted(maps.Keys(u.Causes)) {
		causes = append(causes, fmt.Sprintf("\n%d: %s", u.Causes[cause], cause))
	}
	return fmt.Errorf("%d network errors and %d HTTP errors of %d requests: a success rate of %.3f%%, and 100%% is required%s",
		u.Network, u.HTTP, u.Requests, u.Rate(), strings.Join(causes, ""))
}
