package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// writeTable writes a row for each configuration, then the specs that did not pass, the clients' results of rolling
// updates, and the specs that were not run by their reasons.
func writeTable(w io.Writer, outcomes []Outcome) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "configuration\tpassed\tfailed\tskipped\tstart\tseconds\t")
	for _, o := range outcomes {
		passed, failed := o.count()
		fmt.Fprintf(t, "%s: %s\t%d\t%d\t%d\t%.0f\t%.0f\t\n", o.Name, o.About, passed, failed+len(o.Problems), len(o.Skip), o.Start.Seconds(), o.Took.Seconds())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, o := range outcomes {
		writeFailures(w, o)
	}
	writeUpdates(w, outcomes)
	writeSkips(w, outcomes)
	return nil
}

func writeFailures(w io.Writer, o Outcome) {
	for _, p := range o.Problems {
		fmt.Fprintf(w, "\n%s: FAILED %s\n", o.Name, p)
	}
	for _, r := range o.Results {
		if r.State == "passed" || r.State == missing && o.none() {
			continue
		}
		fmt.Fprintf(w, "\n%s: %s %s (%s)\n  %s\n", o.Name, strings.ToUpper(r.State), r.Name, r.Took.Round(time.Second),
			strings.ReplaceAll(strings.TrimSpace(r.Message), "\n", "\n  "))
	}
}

// none reports whether no spec has a result: the problem of the configuration explains it.
func (o Outcome) none() bool {
	return len(o.Problems) > 0 && !slices.ContainsFunc(o.Results, func(r Result) bool { return r.State != missing })
}

func writeUpdates(w io.Writer, outcomes []Outcome) {
	for _, o := range outcomes {
		for _, u := range o.Updates {
			fmt.Fprintf(w, "\n%s: %s\n  %d rolling updates, %d requests, %d network errors, %d HTTP errors: %.3f%%\n",
				o.Name, u.Name, u.Rounds, u.Requests, u.Network, u.HTTP, u.Rate())
		}
	}
}

// writeSkips writes each reason once, with its specs and configurations.
func writeSkips(w io.Writer, outcomes []Outcome) {
	byReason := map[string]map[string][]string{}
	for _, o := range outcomes {
		for _, s := range o.Skip {
			if byReason[s.Reason] == nil {
				byReason[s.Reason] = map[string][]string{}
			}
			byReason[s.Reason][s.Name] = append(byReason[s.Reason][s.Name], o.Name)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(byReason)) {
		fmt.Fprintf(w, "\nskipped: %s\n", strings.TrimSpace(reason))
		for _, name := range slices.Sorted(maps.Keys(byReason[reason])) {
			fmt.Fprintf(w, "  %s: %s\n", strings.Join(byReason[reason][name], " "), name)
		}
	}
}
