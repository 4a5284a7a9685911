package member_test

import (
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
)

// receives keeps what Received reports on a node.
func receives(w *world, m *machine) (has func(o *machine) bool) {
	var last map[string]struct{}
	before := w.watch
	w.watch = func(n *machine) {
		if before != nil {
			before(n)
		}
		if n == m {
			if now, changed := n.Received(); changed {
				last = now.Nodes
			}
		}
	}
	return func(o *machine) bool { _, is := last[o.name]; return is }
}

// TestReceived: only datagrams count that come from the node itself by the network of its InternalIP.
func TestReceived(t *testing.T) {
	const most = 700 * time.Millisecond
	for name, drop := range map[string]func(from, to *machine, iface string) bool{
		"its power":    func(from, to *machine, _ string) bool { return from.name == "node-2" || to.name == "node-2" },
		"node network": func(from, _ *machine, iface string) bool { return from.name == "node-2" && iface == "eth1" },
		"only to one":  func(from, to *machine, _ string) bool { return from.name == "node-2" && to.name == "node-1" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4)
			has := receives(w, w.nodes[0])
			w.settle()
			w.run(10*time.Second, func() bool { return !has(w.nodes[1]) })
			if !has(w.nodes[1]) {
				t.Fatal("it is not received")
			}
			w.drop = drop
			took := w.must("not received", most, func() bool { return !has(w.nodes[1]) })
			if took < 300*time.Millisecond {
				t.Errorf("not received after %v", took)
			}
			if alive := w.nodes[0].members.Peers["node-2"].Alive; alive != (name != "its power") {
				t.Errorf("alive: %v", alive)
			}
			if !has(w.nodes[2]) {
				t.Error("node-3 is not received")
			}
			w.drop = nil
			w.must("received again", most, func() bool { return has(w.nodes[1]) })
		})
	}
}

// TestReceivedStall: a stall of this node makes no other node silent, and this node reports that it is an observer.
func TestReceivedStall(t *testing.T) {
	w := newWorld(t, 4)
	m := w.nodes[0]
	has := receives(w, m)
	w.settle()
	w.run(time.Second, nil)
	w.watch = func(n *machine) {
		now, changed := n.Received()
		if _, is := now.Nodes["node-2"]; n == m && changed && !is && !now.Observer {
			t.Errorf("at %v: %v", w.now.Sub(epoch), now.Nodes)
		}
	}
	for _, stall := range []time.Duration{50, 150, 250, 350, 500, 2000} {
		m.late = func() time.Duration { m.late = nil; return stall * time.Millisecond }
		w.run(5*time.Second, nil)
	}
	if !has(w.nodes[1]) {
		t.Error("it was not received before")
	}
}

// TestReceivedReplaced: a speaker that is replaced is not received, though its node counts as alive.
func TestReceivedReplaced(t *testing.T) {
	w := newWorld(t, 4)
	has := receives(w, w.nodes[0])
	w.settle()
	w.run(time.Second, nil)
	m := w.nodes[1]
	w.send(m, m.Goodbye(time.Minute))
	m.off = true
	w.must("not received", time.Second, func() bool { return !has(m) })
	if p := w.nodes[0].members.Peers[m.name]; !p.Alive || !p.Away {
		t.Errorf("%+v", p)
	}
	w.boot(m, 2, func(c *member.Config) { c.Retained = true })
	w.must("received", time.Second, func() bool { return has(m) })
}
