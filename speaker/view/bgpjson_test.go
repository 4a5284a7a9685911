package view_test

import (
	"encoding/json"
	"testing"

	"github.com/ironlb/ironlb/speaker/view"
)

func TestCommunitySetJSON(t *testing.T) {
	for text, want := range map[string]struct {
		set   view.CommunitySet
		again string // as written, if it can be parsed
		bad   bool
	}{
		"[]":                                 {again: "null"},
		"[4259840100]":                       {set: view.NewCommunitySet(65000<<16 | 100), again: "[4259840100]"},
		"[4294901760,4259840100,4259840100]": {set: view.NewCommunitySet(65535<<16, 65000<<16|100), again: "[4259840100,4294901760]"},
		"[4294967296]":                       {bad: true},
		"[-1]":                               {bad: true},
		`"no-export"`:                        {bad: true},
	} {
		var got view.CommunitySet
		if err := json.Unmarshal([]byte(text), &got); (err != nil) != want.bad || err == nil && got != want.set {
			t.Errorf("%q is read as %v (%v), want %v", text, got.Communities(), err, want.set.Communities())
		}
		if b, err := json.Marshal(got); !want.bad && (err != nil || string(b) != want.again) {
			t.Errorf("%q is written as %q (%v), want %q", text, b, err, want.again)
		}
	}
}

func TestLargeCommunitySetJSON(t *testing.T) {
	want := view.NewLargeCommunitySet(view.LargeCommunity{Global: 65000, Local2: 3}, view.LargeCommunity{Global: 1<<32 - 1, Local1: 1, Local2: 2})
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got view.LargeCommunitySet
	if err := json.Unmarshal(text, &got); err != nil || got != want {
		t.Errorf("%s is read as %v (%v)", text, got.LargeCommunities(), err)
	}
	if err := json.Unmarshal([]byte(`[{"Global":4294967296}]`), &got); err == nil {
		t.Errorf("more than 32 bits are read as %v", got.LargeCommunities())
	}
}
