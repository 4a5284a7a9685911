package main

import (
	"io"
	"strings"
	"testing"
)

// TestFlags: an invalid flag is refused before anything is started, and the message names the flag.
func TestFlags(t *testing.T) {
	for _, c := range []struct{ args, words string }{
		{"--hold=-1s", "--hold is -1s"},
		{"--peer-memory=100", "--peer-memory is 100"},
		{"--log-format=xml", "--log-format"},
		{"gobgp --log-format=xml", "--log-format"},
		{"--hold=soon", "hold"},
		{"--no-such-flag", "no-such-flag"},
		{"stray", "stray"},
		{"healthy --socket=/nonexistent/bgpd.sock --timeout=1s", "/nonexistent/bgpd.sock"},
	} {
		cmd := command()
		cmd.SetArgs(strings.Fields(c.args))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
}
