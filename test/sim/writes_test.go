package sim

import (
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/test/rare"
)

// TestWrites counts the writes to the API server in a cluster whose lists and SpeakerStatuses are limited: those after
// a death follow the moved addresses and the neighbors, not the size of the cluster, and a join changes no list. It
// makes no difference whether all speakers plan all VirtualIPs.
func TestWrites(t *testing.T) {
	const nodes, perNode, vips, neighbors = 40, 4, 160, 2 * report.Neighbors
	for _, complete := range []int{1, 0}[:rare.Rounds(1, 2)] {
		c := New(Config{Seed: 1, Nodes: nodes, VIPs: vips, Complete: complete, Profile: member.Standard})
		if _, ok := c.Until(10*time.Second, c.Owners.One); !ok {
			t.Fatal("not each VirtualIP has one owner")
		}
		c.Run(10 * time.Second)
		before := c.Written()
		c.Owners.Mark()
		dead := c.Speakers[7]
		if n := len(c.Owners.Of(dead)); n != perNode {
			t.Fatalf("%s owns %d", dead.Name, n)
		}
		dead.PowerOff()
		c.Run(10 * time.Second)
		w := c.Written().Minus(before)
		if moved := len(c.Owners.Moves); moved != perNode || w.VirtualIPs != moved || w.Lists != moved || w.Events != moved+1 {
			t.Errorf("complete %d: %d moved with %+v, want a status, a list and an Event each, and one Event", complete, moved, w)
		}
		// A neighbor finds it silent, and then unreachable. A new owner writes how many it has.
		if most := 2*neighbors + perNode; w.Speakers < neighbors || w.Speakers > most {
			t.Errorf("complete %d: %d SpeakerStatuses written, want %d to %d", complete, w.Speakers, neighbors, most)
		}
		before = c.Written()
		dead.Start()
		c.Run(10 * time.Second)
		if w := c.Written().Minus(before); w.VirtualIPs+w.Lists > 0 || w.Events != 1 {
			t.Errorf("complete %d: its return writes %+v, want one Event and SpeakerStatuses", complete, w)
		}
		before = c.Written()
		c.Join()
		c.Run(10 * time.Second)
		if w := c.Written().Minus(before); w.VirtualIPs+w.Lists+w.Events > 0 || w.Speakers > 4*neighbors {
			t.Errorf("complete %d: a join writes %+v, want SpeakerStatuses only", complete, w)
		}
	}
}
