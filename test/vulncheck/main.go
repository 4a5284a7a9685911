// Command vulncheck reads the JSON output of govulncheck and fails on a vulnerability that a program calls and that the
// list of accepted ones lacks, and on an accepted one that no program calls. See `make vulncheck`.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// message is one of govulncheck's messages: https://pkg.go.dev/golang.org/x/vuln/internal/govulncheck.
type message struct {
	Config *struct {
		ScanLevel string `json:"scan_level"`
	} `json:"config"`
	OSV *struct {
		ID      string `json:"id"`
		Summary string `json:"summary"`
	} `json:"osv"`
	Finding *struct {
		OSV          string  `json:"osv"`
		FixedVersion string  `json:"fixed_version"`
		Trace        []frame `json:"trace"` // the vulnerable symbol is first
	} `json:"finding"`
}

type frame struct{ Module, Version, Function string }

func main() {
	accepted, err := os.ReadFile(os.Args[1])
	if err == nil {
		err = check(os.Stdin, string(accepted))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// check compares the vulnerabilities that programs call with the accepted ones, a line each: ID and reason.
func check(findings io.Reader, accepted string) error {
	reasons, called, summaries := map[string]string{}, map[string]bool{}, map[string]string{}
	var errs []error
	for line := range strings.Lines(accepted) {
		id, reason, _ := strings.Cut(strings.TrimSpace(line), " ")
		if id == "" || id == "#" {
			continue
		}
		if reason == "" {
			errs = append(errs, fmt.Errorf("%s is accepted without a reason", id))
		}
		reasons[id] = reason
	}
	scanned := false
	for d := json.NewDecoder(findings); ; {
		var m message
		if err := d.Decode(&m); err == io.EOF {
			break
		} else if err != nil {
			return fmt.Errorf("read the output of govulncheck: %w", err)
		}
		if m.Config != nil {
			scanned = m.Config.ScanLevel == "symbol"
		}
		if m.OSV != nil {
			summaries[m.OSV.ID] = m.OSV.Summary
		}
		f := m.Finding
		if f == nil || len(f.Trace) == 0 || f.Trace[0].Function == "" || called[f.OSV] {
			continue
		}
		called[f.OSV] = true
		if _, ok := reasons[f.OSV]; !ok {
			fixed := "no fix"
			if f.FixedVersion != "" {
				fixed = "fixed in " + f.FixedVersion
			}
			errs = append(errs, fmt.Errorf("%s: %s (%s %s, %s)", f.OSV, summaries[f.OSV], f.Trace[0].Module, f.Trace[0].Version, fixed))
		}
	}
	if !scanned {
		return errors.New("govulncheck reported no scan of symbols")
	}
	for _, id := range slices.Sorted(maps.Keys(reasons)) {
		if !called[id] {
			errs = append(errs, fmt.Errorf("%s is accepted, but no program calls it: remove it from the list", id))
		}
	}
	return errors.Join(errs...)
}
