package bgp

import (
	"errors"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// told returns the changes that a peer's child was told.
func (n *node) told(peer string) (changes []plan.BGPChange) {
	n.t.Helper()
	file, err := os.ReadFile(n.leftOf(peer) + toldFile)
	if err != nil {
		n.t.Fatal(err)
	}
	for line := range strings.Lines(string(file)) {
		m, err := decode([]byte(line), false)
		if err != nil {
			n.t.Fatal(err)
		}
		changes = append(changes, *m.Change)
	}
	return changes
}

// TestNodeGoes: where the node goes every peer is asked to look elsewhere, and then told of the end of each route, with graceful restart too.
func TestNodeGoes(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	c := two()
	c.Peers["b"].GracefulRestart = false
	s.Set(c)
	is := s.established("a", 1)
	s.established("b", 1)
	s.Set(plan.BGPChange{RouterID: c.RouterID, NodeGoes: true}) // as when it is cordoned
	n.until("it knows that the node goes", func() bool { return n.daemon.wanted.NodeGoes })
	began := time.Now()
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < drainTime+withdrawTime || took > leaveLimit {
		t.Errorf("it left within %v, want %v and little more", took, drainTime+withdrawTime)
	}
	n.daemon.change(two()) // one that comes late
	if !n.daemon.wanted.NodeGoes {
		t.Error("a change is taken after the end has begun")
	}
	route := prefix("203.0.113.1/32")
	last := plan.Attributes{LocalPref: 1, Communities: plan.NewCommunitySet(65535 << 16)}
	for peer := range c.Peers {
		changes := n.told(peer)
		if len(changes) < 3 {
			t.Fatalf("the child of %s is told %+v", peer, changes)
		}
		changes = changes[len(changes)-2:]
		want := []plan.BGPChange{
			{RouterID: c.RouterID, NodeGoes: true, Routes: map[netip.Prefix]plan.Route{route: {peer: last}}},
			{RouterID: c.RouterID, NodeGoes: true, Routes: map[netip.Prefix]plan.Route{route: nil}},
		}
		for i, got := range changes {
			if got.Whole || len(got.Peers) > 0 || got.NodeGoes != want[i].NodeGoes || got.RouterID != want[i].RouterID || !reflect.DeepEqual(got.Routes, want[i].Routes) {
				t.Errorf("step %d: the child of %s is told %+v, want %+v", i+1, peer, got, want[i])
			}
		}
	}
	if err := syscall.Kill(pid(is), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the child is still there: %v", err)
	}
}

// TestNodeGoesWithoutRoutes: there is nothing to wait for.
func TestNodeGoesWithoutRoutes(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	c := two()
	c.Routes, c.NodeGoes = nil, true
	s.Set(c)
	s.established("a", 0)
	began := time.Now()
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took >= drainTime {
		t.Errorf("it left after %v", took)
	}
}

// TestNodeStays: one that was to go, and does not any more, keeps its routes at peers with graceful restart.
func TestNodeStays(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	c := two()
	c.NodeGoes = true
	s.Set(c)
	s.established("a", 1)
	s.Set(plan.BGPChange{RouterID: c.RouterID})
	n.until("it knows that the node stays", func() bool { return n.daemon.wanted.RouterID.IsValid() && !n.daemon.wanted.NodeGoes })
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	for _, c := range n.told("a") {
		if got := c.Routes[prefix("203.0.113.1/32")]; len(c.Routes) > 0 && !reflect.DeepEqual(got, to("a")) {
			t.Errorf("the child is told %+v", c)
		}
	}
}
