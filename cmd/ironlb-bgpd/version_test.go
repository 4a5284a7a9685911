package main

import (
	"bytes"
	"testing"

	"github.com/ironlb/ironlb/cmd/internal/version"
)

// TestVersion: --version prints this program's version and commit.
func TestVersion(t *testing.T) {
	var out bytes.Buffer
	cmd := command()
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--version"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "ironlb-bgpd version "+version.String()+"\n"; got != want {
		t.Errorf("--version prints %q, want %q", got, want)
	}
}
