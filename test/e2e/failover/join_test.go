package failover

import (
	"context"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/rare"
)

// TestNodeJoins: with three nodes and three VirtualIPs each node owns one. A joining fourth node takes none of them,
// and gets the next new one.
func TestNodeJoins(t *testing.T) {
	rare.Test(t)
	s := watched(t, 4)
	fourth := s.vips[3]
	s.vips = s.vips[:3]
	for _, v := range s.vips {
		s.serve(v)
	}
	before := s.settled("at the start")
	if held := before.held(cluster.Nodes[:candidates]); !even(held) {
		t.Errorf("three new VirtualIPs are spread %v over three nodes", held)
	}

	joins := cluster.Node(candidates)
	since := time.Now()
	if err := joins.StartSpeaker(t.Context(), "--config", speakerConfig()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := joins.StopSpeaker(); err != nil {
			t.Error(err)
		}
	})
	if err := label(t.Context(), joins, `"may-answer"`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := label(context.Background(), joins, "null"); err != nil {
			t.Error(err)
		}
	})
	for _, v := range s.vips {
		listed(t, v, joins, true)
	}
	s.stayed(since, before, s.settledFor(watch, "after "+joins.Name+" joined"))

	s.serve(fourth)
	s.vips = append(s.vips, fourth)
	after := s.settled("with one more")
	if got := after[fourth.service]; got != joins {
		t.Errorf("the fourth VirtualIP is on %s, want %s, which had none: %v", got.Name, joins.Name, after)
	}
}
