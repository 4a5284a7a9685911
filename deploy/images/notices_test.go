package main

import (
	"slices"
	"strings"
	"testing"
)

// allowed are the licenses of what the programs link: each permits to ship them under Apache-2.0 with the notices that
// images contain.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// TestLicenses: every module that a program of the product links has a known license of the list.
func TestLicenses(t *testing.T) {
	paths := map[string]bool{}
	for _, s := range productSpecs(t) {
		for _, p := range s.Programs {
			out, err := run(t.Context(), s.relative(p.Module), "go", "list", "-deps", "-tags="+strings.Join(p.Tags, ","), "-f", "{{with .Module}}{{.Path}}{{end}}", p.Package)
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range strings.Fields(out) {
				paths[path] = true
			}
		}
	}
	if len(paths) < 20 {
		t.Fatalf("the programs link %d modules, want at least 20", len(paths))
	}
	var names []string
	for path := range paths {
		names = append(names, path)
	}
	found, err := licenses(t.Context(), "../..", names)
	if err != nil {
		t.Fatal(err)
	}
	for path, l := range found {
		for _, id := range strings.Split(l.id, " AND ") {
			if !slices.Contains(allowed, id) {
				t.Errorf("%s has license %q: document it in docs/design/dependencies.md", path, l.id)
			}
		}
		if len(l.texts) == 0 {
			t.Errorf("%s has no text of a license", path)
		}
	}
}
