package bgp

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
)

// full returns the complete changes that a peer's child received.
func (n *node) full(peer string) (changes []PeerChange) {
	n.t.Helper()
	file, err := os.ReadFile(n.leftOf(peer) + receivedFile)
	if err != nil {
		n.t.Fatal(err)
	}
	for line := range strings.Lines(string(file)) {
		var c PeerChange
		if err := decode([]byte(line), &c); err != nil {
			n.t.Fatal(err)
		}
		if c.Full {
			changes = append(changes, c)
		}
	}
	return changes
}

func (n *node) hasLeft(peer string) bool { return n.exists(peer, "") }

// exists reports whether the child of a peer has created the file with a suffix.
func (n *node) exists(peer, suffix string) bool {
	_, err := os.Stat(n.leftOf(peer) + suffix)
	return err == nil
}

// TestNodeDecommissioned: if the node is decommissioned, every peer is notified, including those with graceful restart.
func TestNodeDecommissioned(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	c := two()
	c.Peers["b"].GracefulRestart = false
	s.Set(c)
	is := s.established("a", 1)
	s.established("b", 1)
	s.Set(routes.Change{RouterID: c.RouterID, NodeDecommissioning: true}) // as when it is cordoned
	n.until("decommissioning is stored", func() bool { return n.daemon.wanted.NodeDecommissioning })
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n.daemon.change(two()) // a late change
	if !n.daemon.wanted.NodeDecommissioning {
		t.Error("a change is applied after the end has begun")
	}
	if !n.hasLeft("a") || !n.hasLeft("b") {
		t.Errorf("a is notified: %v, b is notified: %v", n.hasLeft("a"), n.hasLeft("b"))
	}
	if err := syscall.Kill(pid(is), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the child is still there: %v", err)
	}
}

// TestNodeStays: if the decommissioning is cancelled, routes stay at peers with graceful restart.
func TestNodeStays(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	c := two()
	c.NodeDecommissioning = true
	s.Set(c)
	s.established("a", 1)
	s.Set(routes.Change{RouterID: c.RouterID})
	n.until("the configuration is stored", func() bool { return n.daemon.wanted.RouterID.IsValid() && !n.daemon.wanted.NodeDecommissioning })
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	if n.hasLeft("a") {
		t.Error("a is notified")
	}
}

// TestNoStartAtTheEnd: during the Leave of one peer no other process starts, neither for a peer that has left nor
// for one between two processes; and the time of --hold does not expire meanwhile.
func TestNoStartAtTheEnd(t *testing.T) {
	n := startNode(t, socketPath(t), firstPause)
	s := startSpeaker(t, n.socket)
	c := two()
	c.Peers["a"].GracefulRestart = false
	c.Peers["between"], c.Peers["slow"] = peer(251), peer(252)
	c.Peers["slow"].GracefulRestart = false
	c.Routes[prefix("203.0.113.1/32")] = to("a", "b", "between", "slow")
	s.Set(c)
	for _, peer := range []string{"a", "b", "slow"} {
		s.established(peer, 1)
	}
	if err := syscall.Kill(pid(s.established("between", 1)), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.wait("it has ended", func(now map[string]routes.Session) bool { return now["between"].Reason == routes.NoBGPProcess })
	began := time.Now()
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 2*firstPause || !n.hasLeft("slow") || !n.hasLeft("a") {
		t.Errorf("after %v slow has left: %v, a has: %v", took, n.hasLeft("slow"), n.hasLeft("a"))
	}
	for peer := range c.Peers {
		if full := n.full(peer); len(full) != 1 {
			t.Errorf("the children of %s received %+v", peer, full)
		}
	}
}

// TestEndAfterRemoval: a removed peer gets its time even if the daemon ends at once.
func TestEndAfterRemoval(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	s.Set(two())
	s.established("a", 1)
	s.established("b", 1)
	s.Set(routes.Change{RouterID: addr("192.0.2.1"), Peers: map[string]*routes.Peer{"b": nil}, Routes: map[netip.Prefix]routes.Route{prefix("203.0.113.1/32"): to("a")}})
	s.wait("b is gone", func(now map[string]routes.Session) bool { return len(now) == 1 })
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	if !n.exists("b", removedFile) {
		t.Error("the child of b did not receive that its peer is removed")
	}
}

// TestLastApplied: a change that one peer has not applied yet is the limit; a change that concerns only another peer is
// not.
func TestLastApplied(t *testing.T) {
	d := NewDaemon(DaemonOptions{})
	d.wanted.Serial = 9
	for i, c := range []struct {
		children []*child
		want     uint64
	}{
		{nil, 9},
		{[]*child{{running: true}, {running: true, outbox: outbox{sent: 9, applied: 9}}}, 9},
		{[]*child{{running: true, outbox: outbox{sent: 3, applied: 3}}, {running: true, outbox: outbox{sent: 9, applied: 5}}}, 5},
		{[]*child{{outbox: outbox{sent: 8, applied: 8, todo: true}}, {running: true, outbox: outbox{sent: 8, applied: 7}}}, 7},
		{[]*child{{ended: "killed", outbox: outbox{sent: 9, applied: 1}}, {running: true}}, 9},
	} {
		clear(d.children)
		for i, is := range c.children {
			d.children[string(rune('a'+i))] = is
		}
		if got := d.lastApplied(); got != c.want {
			t.Errorf("case %d: %d is applied, want %d", i, got, c.want)
		}
	}
}
