package member_test

import (
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
)

// Two clusters with the default name share a LAN and their key, as copied manifests do; nodes of both have the same
// names. Neither cluster is affected.
func TestTwoClusters(t *testing.T) {
	w := newWorld(t, 6)
	for i, m := range w.nodes {
		m.name = []string{"a", "b", "c"}[i%3]
		if i == 5 {
			m.name = "d" // absent in the other cluster
		}
	}
	first, second := w.nodes[:3], w.nodes[3:]
	for i, m := range w.nodes {
		cluster := uint64(1 + i/3)
		own := first
		if cluster == 2 {
			own = second
		}
		w.nodes = own // those are its Nodes
		w.boot(m, 1+uint64(i), func(c *member.Config) { c.Authorities = []uint64{cluster} })
		w.nodes = append(first[:3:3], second...)
	}
	w.run(time.Minute, nil)
	for i, m := range w.nodes {
		own := first
		if i >= 3 {
			own = second
		}
		if !m.receives(own...) || len(m.members.Peers) != 2 || m.members.Observer || m.Counts().FalseDeaths > 0 {
			t.Errorf("%d, %s: %+v", i, m.name, m.members)
		}
		if m.drops[member.DropCluster] == 0 || m.drops[member.DropName] > 0 {
			t.Errorf("%d, %s: dropped %v", i, m.name, m.drops)
		}
	}
}

// The certificate authority is rotated while speakers restart one by one: no node is missed.
func TestAuthorityRotated(t *testing.T) {
	w := newWorld(t, 4, func(c *member.Config) { c.Authorities = []uint64{1} })
	w.settle()
	for step, bundle := range [][]uint64{{1, 2}, {2, 1}, {2}, {2, 3}, {3}} {
		for i, m := range w.nodes {
			switch {
			case i%2 == 0: // it follows the file
				m.SetAuthorities(bundle)
			default:
				for _, s := range m.Goodbye(0) {
					w.send(m, []member.Send{s})
				}
				w.boot(m, uint64(10*step+i+2), func(c *member.Config) { c.Authorities = bundle })
			}
			w.must("settled", 5*time.Second, w.settled)
		}
	}
	for _, m := range w.nodes { // replaced at once: nodes read the new file at different times
		m.SetAuthorities([]uint64{4})
		w.run(5*time.Second, nil)
	}
	for _, m := range w.nodes {
		if m.drops[member.DropCluster] > 0 || m.Counts().FalseDeaths > 0 {
			t.Errorf("%s: %v, %+v", m.name, m.drops, m.Counts())
		}
	}
}

// A speaker without a certificate authority and those with one receive each other.
func TestAuthorityUnknown(t *testing.T) {
	w := newWorld(t, 3)
	w.boot(w.nodes[0], 2, func(c *member.Config) { c.Authorities = []uint64{1} })
	w.settle()
}
