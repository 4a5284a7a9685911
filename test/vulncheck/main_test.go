package main

import (
	"strings"
	"testing"
)

const (
	config   = `{"config":{"scan_level":"symbol"}}`
	called   = `{"osv":{"id":"GO-1","summary":"crash"}}{"finding":{"osv":"GO-1","fixed_version":"v2","trace":[{"module":"m","version":"v1","function":"F"}]}}`
	imported = `{"finding":{"osv":"GO-2","trace":[{"module":"m","version":"v1"}]}}`
)

// TestCheck: called vulnerabilities are accepted with a reason, and accepted ones are called.
func TestCheck(t *testing.T) {
	for _, test := range []struct{ name, findings, accepted, want string }{
		{"none", config, "", ""},
		{"called", config + called + called, "", "GO-1: crash (m v1, fixed in v2)"},
		{"accepted", config + called, "# comment\n\nGO-1 no fix yet\n", ""},
		{"without a reason", config + called, "GO-1\n", "GO-1 is accepted without a reason"},
		{"not called", config + imported, "", ""},
		{"accepted, not called", config + imported, "GO-2 reason", "GO-2 is accepted, but no program calls it: remove it from the list"},
		{"no scan", "", "", "govulncheck reported no scan of symbols"},
		{"scan of modules", `{"config":{"scan_level":"module"}}`, "", "govulncheck reported no scan of symbols"},
		{"cut", config + `{"finding":`, "", "read the output of govulncheck: unexpected EOF"},
	} {
		have := ""
		if err := check(strings.NewReader(test.findings), test.accepted); err != nil {
			have = err.Error()
		}
		if have != test.want {
			t.Errorf("%s: have %q, want %q", test.name, have, test.want)
		}
	}
}
