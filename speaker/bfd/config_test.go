package bfd

import (
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

func TestOf(t *testing.T) {
	one := routes.Peer{Address: addr("192.0.2.9"), Source: addr("192.0.2.1"), BFD: view.BFD{Receive: time.Second, Transmit: 2 * time.Second, Multiplier: 3}}
	if got, want := Of(one), (Config{Peer: one.Address, Local: one.Source, Timers: one.BFD}); got != want {
		t.Errorf("one hop: %+v, want %+v", got, want)
	}
	several := one
	several.BFD.MinimumTTL = 250
	if got := Of(several); !got.MultiHop || got.minimumTTL() != 250 || got.Timers != several.BFD {
		t.Errorf("several hops: %+v", got)
	}
}

func TestCheck(t *testing.T) {
	good := Config{Peer: addr("2001:db8::1"), Timers: fast}
	with := func(change func(*Config)) Config {
		c := good
		change(&c)
		return c
	}
	for words, c := range map[string]Config{
		"": good,
		"not a unicast address: give one IPv4 or IPv6 address": with(func(c *Config) { c.Peer = addr("::") }),
		"needs its interface":                             with(func(c *Config) { c.Peer = addr("fe80::1") }),
		"a link-local address is not routed":              with(func(c *Config) { c.Peer, c.MultiHop = addr("fe80::1%eth0"), true }),
		"of the other family":                             with(func(c *Config) { c.Local = addr("192.0.2.1") }),
		"the local address :: is not":                     with(func(c *Config) { c.Local = addr("::") }),
		"the multiplier is 0":                             with(func(c *Config) { c.Timers.Multiplier = 0 }),
		"the receive interval 0s is not":                  with(func(c *Config) { c.Timers.Receive = 0 }),
		"the transmit interval 2h0m0s is not from 1ms to": with(func(c *Config) { c.Timers.Transmit = 2 * time.Hour }),
	} {
		err := c.Check()
		if words == "" && err != nil || words != "" && (err == nil || !strings.Contains(err.Error(), words)) {
			t.Errorf("%+v: %v, want %q", c, err, words)
		}
	}
}
