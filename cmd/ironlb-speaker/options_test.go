package main

import (
	"io"
	"net/netip"
	"strings"
	"testing"
)

// TestFlags: an invalid flag is refused before anything is started, and the message names the flag.
func TestFlags(t *testing.T) {
	for _, c := range []struct{ args, words string }{
		{"--secure-metrics-bind-address=:7950", `"--secure-metrics-bind-address" flag: it must be an address of this node`},
		{"--secure-metrics-bind-address=0.0.0.0:7950", "it must be an address of this node"},
		{"--secure-metrics-bind-address=[::]:7950", "it must be an address of this node"},
		{"--secure-metrics-bind-address=192.0.2.1", "it must be an address of this node"},
		{"--secure-metrics-bind-address=192.0.2.1:0", "it must be an address of this node"},
		{"--secure-metrics-bind-address=node:7950", "it must be an address of this node"},
		{"--secure-metrics-bind-address=192.0.2.1:7950 --tls-cert-file=a", "give both or none"},
		{"--secure-metrics-bind-address=192.0.2.1:7950 --tls-private-key-file=a", "give both or none"},
		{"--tls-cert-file=a --tls-private-key-file=b", "with --secure-metrics-bind-address only"},
		{"--profiling --metrics-bind-address=192.0.2.1:7950", "--profiling with --metrics-bind-address 192.0.2.1:7950"},
		{"--profiling --metrics-bind-address=:7950", "on the loopback interface only"},
		{"--bgp-socket=bgpd.sock", "--bgp-socket"},
	} {
		cmd := command()
		cmd.SetArgs(append(strings.Fields(c.args), "--node-name=a"))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
}

// TestNodeAddress: brackets are optional for IPv4, because the manifest does not know the family of the node's address.
func TestNodeAddress(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1:7950": "192.0.2.1:7950", "[192.0.2.1]:7950": "192.0.2.1:7950", "[2001:db8::1]:7950": "[2001:db8::1]:7950",
		"[::ffff:192.0.2.1]:1": "192.0.2.1:1", "127.0.0.1:65535": "127.0.0.1:65535",
	} {
		var have nodeAddress
		if err := have.Set(text); err != nil || have.AddrPort != netip.MustParseAddrPort(want) {
			t.Errorf("%s is %v (%v), want %s", text, have, err, want)
		}
	}
}
