package main

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	const events = `{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"skip","Package":"p","Test":"TestD"}
{"Action":"output","Package":"p","Test":"TestE","Output":"    e_test.go:1: left to make test-all\n"}
{"Action":"skip","Package":"p","Test":"TestE"}
{"Action":"skip","Package":"p"}
not JSON
{"Action":"pass","Package":"a/s","Test":"TestSlow/part","Elapsed":30}
{"Action":"pass","Package":"a/s","Test":"TestSlow","Elapsed":30.2}
`
	const rest = "slow  s TestSlow                                              30s\n1 tests left to make test-all\n"
	for _, test := range []struct {
		allowed, want string
		ok            bool
	}{
		{"p TestC # reason\n", "skipped, and not listed in test/skips/allowed.txt: p TestD\n" + rest, false},
		{"# why\np TestC\np TestD # reason\n", rest, true},
	} {
		var out strings.Builder
		ok, err := check(strings.NewReader(events), test.allowed, &out)
		if err != nil || ok != test.ok || out.String() != test.want {
			t.Errorf("with %q: %v, %v, got:\n%s\nwant:\n%s", test.allowed, ok, err, out.String(), test.want)
		}
	}
}
