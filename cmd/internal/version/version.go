// Package version returns the version and the commit that a program was built from.
package version

import (
	"fmt"
	"runtime/debug"
)

// Set by the linker: -X github.com/ironlb/ironlb/cmd/internal/version.tag=v0.1.0, and commit likewise. The Makefile and
// the specs in deploy/images do that.
var tag, commit string

// unknown is used if the build recorded nothing.
const unknown = "unknown"

// String returns the version and the commit, as in "v0.1.0 (commit 0123...)". For a plain "go build" it returns those
// that go records.
func String() string {
	v, c := tag, commit
	if info, ok := debug.ReadBuildInfo(); ok {
		if v == "" && info.Main.Version != "" {
			v = info.Main.Version
		}
		if c == "" {
			c = recorded(info.Settings)
		}
	}
	if v == "" {
		v = unknown
	}
	if c == "" {
		c = unknown
	}
	return fmt.Sprintf("%s (commit %s)", v, c)
}

// recorded returns the commit as go records it, with "-dirty" as git describes a changed checkout.
func recorded(settings []debug.BuildSetting) string {
	var revision, suffix string
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			suffix = "-dirty"
		}
	}
	if revision == "" {
		return ""
	}
	return revision + suffix
}
