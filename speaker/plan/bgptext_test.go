package plan_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
)

func TestCommunitySetText(t *testing.T) {
	for text, want := range map[string]struct {
		set   view.CommunitySet
		again string // as written, if it can be parsed
		bad   bool
	}{
		"":                              {},
		"65000:100":                     {set: view.NewCommunitySet(65000<<16 | 100), again: "65000:100"},
		" 65535:0  65000:100 65000:100": {set: view.NewCommunitySet(65535<<16, 65000<<16|100), again: "65000:100 65535:0"},
		"65536:0":                       {bad: true},
		"65000":                         {bad: true},
		"65000:1:2":                     {bad: true},
		"65000:-1":                      {bad: true},
		"no-export":                     {bad: true},
	} {
		var got view.CommunitySet
		if err := got.UnmarshalText([]byte(text)); (err != nil) != want.bad || got != want.set {
			t.Errorf("%q is read as %v (%v), want %v", text, got.Communities(), err, want.set.Communities())
		}
		if b, err := got.MarshalText(); err != nil || string(b) != want.again {
			t.Errorf("%q is written as %q (%v), want %q", text, b, err, want.again)
		}
	}
}

func TestLargeCommunitySetText(t *testing.T) {
	for text, want := range map[string]struct {
		set   view.LargeCommunitySet
		again string
		bad   bool
	}{
		"": {},
		"4294967295:1:2 65000:0:3": {
			set:   view.NewLargeCommunitySet(view.LargeCommunity{Global: 65000, Local2: 3}, view.LargeCommunity{Global: 1<<32 - 1, Local1: 1, Local2: 2}),
			again: "65000:0:3 4294967295:1:2",
		},
		"4294967296:1:2": {bad: true},
		"1:2":            {bad: true},
		"1::2":           {bad: true},
	} {
		var got view.LargeCommunitySet
		if err := got.UnmarshalText([]byte(text)); (err != nil) != want.bad || got != want.set {
			t.Errorf("%q is read as %v (%v), want %v", text, got.LargeCommunities(), err, want.set.LargeCommunities())
		}
		if b, err := got.MarshalText(); err != nil || string(b) != want.again {
			t.Errorf("%q is written as %q (%v), want %q", text, b, err, want.again)
		}
	}
}

// No log shows a password, whatever is logged.
func TestSecretsAreNotLogged(t *testing.T) {
	var out bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		log := slog.New(h)
		log.Info("it", "secret", view.Secret("s3cret"), "peer", plan.Peer{Password: "s3cret"}, "of", view.BGPPeer{Password: "s3cret"}, "at", &plan.Peer{Password: "s3cret"})
		log.Info("none", "secret", view.Secret(""))
	}
	if text := out.String(); strings.Contains(text, "s3cret") || strings.Count(text, "***") < 8 || !strings.Contains(text, `secret=""`) {
		t.Errorf("the log is\n%s", text)
	}
}
