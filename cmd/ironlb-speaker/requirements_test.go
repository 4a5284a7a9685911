package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nft"
	"github.com/ironlb/ironlb/speaker/forwarding"
)

// A permanent lack of the node ends the process with an error that names what to install; one that may be fixed does
// not.
func TestRequirements(t *testing.T) {
	unsupported := errors.New("Could not process rule: Operation not supported")
	for _, c := range []struct {
		name, release, version string
		noCommand, probe       error
		message                []string // empty: it starts
	}{
		{name: "good", release: "6.1.0-44-amd64", version: "nftables v1.0.6 (Lester Gooch #5)"},
		{name: "no nft", release: "6.1.0", noCommand: nft.ErrNoCommand, message: []string{"install the package nftables"}},
		{name: "old nft", release: "6.1.0", version: "nftables v1.0.0 (Fearless Fosdick)",
			message: []string{"nftables v1.0.0", "1.0.1 or later"}},
		{name: "older nft", release: "6.1.0", version: "nftables v0.9.8 (x)", message: []string{"v0.9.8", "1.0.1 or later"}},
		{name: "an nft of tomorrow", release: "6.1.0", version: "nftables v2.0.0 (x)"},
		{name: "old kernel", release: "5.4.0-42-generic", version: "nftables v1.0.6 (x)", probe: unsupported,
			message: []string{"kernel 5.4.0-42-generic is too old", "Linux 5.9 or later", "Operation not supported"}},
		{name: "old kernel with a backport", release: "4.18.0-553.el8", version: "nftables v1.0.4 (x)"},
		{name: "no right yet", release: "6.1.0", version: "nftables v1.0.6 (x)",
			probe: errors.New("Operation not permitted")},
	} {
		err := requirements{
			release: func() (string, error) { return c.release, nil },
			version: func(context.Context) (string, error) { return c.version, c.noCommand },
			probe:   func(context.Context) error { return c.probe },
		}.check(t.Context(), slog.New(slog.DiscardHandler))
		if (err != nil) != (len(c.message) > 0) {
			t.Errorf("%s: error %v, want one: %t", c.name, err, len(c.message) > 0)
		}
		for _, message := range c.message {
			if err == nil || !strings.Contains(err.Error(), message) {
				t.Errorf("%s: error %v does not contain %q", c.name, err, message)
			}
		}
	}
}

// The probe passes with the rules of this kernel, leaves nothing, and names what is refused.
func TestProbeFilter(t *testing.T) {
	s := netspace.New(t)
	for _, detect := range []forwarding.DetectLocal{{}, {Mode: forwarding.InterfaceNamePrefix, Interface: "cali"}} {
		c := newConfig()
		c.DetectLocal = detect
		s.Must(t, func() error {
			if err := c.probeFilter(t.Context()); err != nil {
				return err
			}
			out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
			if len(out) != 0 {
				t.Errorf("it leaves %s", out)
			}
			return err
		})
	}
	real, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	script := `#!/bin/sh
case " $* " in *" -f "*) input=$(cat);; *) exec ` + real + ` "$@";; esac
case "$input" in *"reject with tcp reset"*)
	echo 'Error: Could not process rule: Operation not supported' >&2; exit 1;;
esac
printf '%s\n' "$input" | ` + real + ` "$@"
`
	if err := os.WriteFile(filepath.Join(bin, "nft"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	s.Must(t, func() error {
		err := newConfig().probeFilter(t.Context())
		if err == nil || !strings.Contains(err.Error(), "Operation not supported") {
			t.Errorf("error %v, want the error of the kernel", err)
		}
		return nil
	})
}

// The command ends with an error if nft is missing, before it contacts the API server.
func TestNoNFT(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	cmd := command()
	cmd.SetArgs([]string{"--node-name=n"})
	if err := cmd.ExecuteContext(t.Context()); !errors.Is(err, nft.ErrNoCommand) {
		t.Errorf("error %v, want %v", err, nft.ErrNoCommand)
	}
}
