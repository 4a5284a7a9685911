package member_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
)

// The datagrams of a dead node, recorded before its death, do not keep it alive for new processes, nor do its claims.
func TestReplayToNewProcess(t *testing.T) {
	w := newWorld(t, 3)
	a, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
	b.record = true
	w.settle()
	w.publish(a, claims(3))
	w.run(20*time.Second, nil)
	recorded := slices.DeleteFunc(slices.Clone(b.traffic), func(p member.Packet) bool { return p.Source != a.addr && p.Source != a.lan })
	a.off = true
	w.run(time.Second, nil)
	w.boot(b, 2)
	w.boot(c, 2)
	w.watch = func(m *machine) {
		if p := m.members.Peers[a.name]; p.Alive {
			t.Fatalf("at %v the dead node is alive for %s: %+v", w.now.Sub(epoch), m.name, p)
		}
	}
	for _, p := range recorded {
		for _, m := range []*machine{b, c} {
			m.waiting = append(m.waiting, arrived{w.now, p})
		}
		w.run(20*time.Second/time.Duration(len(recorded)), nil)
	}
	if !b.receives(c) || !c.receives(b) {
		t.Error("the others do not receive each other")
	}
}

// Nor do the datagrams of a node that relayed it, whether that one is alive or not.
func TestReplayOfRelay(t *testing.T) {
	for _, alive := range []bool{true, false} {
		t.Run(fmt.Sprint("relay alive ", alive), func(t *testing.T) { replayOfRelay(t, alive) })
	}
}

func replayOfRelay(t *testing.T, alive bool) {
	w := newWorld(t, 3)
	dead, relays, misses := w.nodes[0], w.nodes[1], w.nodes[2]
	misses.record = true
	w.settle()
	w.publish(dead, claims(3))
	w.drop = func(from, to *machine, _ string) bool { return from == dead && to == misses }
	w.run(10*time.Second, nil)
	if !misses.receives(dead) {
		t.Fatal("not relayed")
	}
	recorded := misses.traffic
	dead.off, relays.off = true, !alive
	w.run(time.Second, nil)
	w.boot(misses, 2)
	w.watch = func(m *machine) {
		if p := m.members.Peers[dead.name]; m == misses && (p.Alive || len(p.Claims) > 0) {
			t.Fatalf("at %v the dead node is alive: %+v", w.now.Sub(epoch), p)
		}
	}
	for _, p := range recorded {
		p.OnLink = !alive // a path without datagrams of the node that is alive
		misses.waiting = append(misses.waiting, arrived{w.now, p})
		w.run(5*time.Second/time.Duration(len(recorded)), nil)
	}
}

// A datagram without a valid tag changes nothing, also if it has the header of an earlier one.
func TestUnverifiedChangesNothing(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.nodes[0], w.nodes[1]
	b.record = true
	w.settle()
	w.run(time.Second, nil)
	a.off = true
	w.run(100*time.Millisecond, nil)
	forged := slices.Clone(b.traffic[len(b.traffic)-1].Data)
	forged[len(forged)-1] ^= 1
	before := b.Next()
	for _, group := range []bool{true, false} {
		in := member.Packet{Iface: "eth0", Source: a.addr, OnLink: true, Group: group, Data: forged}
		if drop := b.Receive(w.now, b.raw(w), in); drop != member.DropTag {
			t.Errorf("group %v: %q", group, drop)
		}
	}
	if after := b.Next(); !after.Equal(before) {
		t.Errorf("due at %v, before at %v", after, before)
	}
}

// Processes that start together challenge one another once, and request evidence of few.
func TestStartTogether(t *testing.T) {
	const nodes = 40
	w := newWorld(t, nodes)
	w.run(250*time.Millisecond, nil)
	sent := uint64(0)
	for _, m := range w.nodes {
		sent += m.Counts().Sent
	}
	t.Logf("%d datagrams", sent)
	if sent > 10*nodes*nodes {
		t.Errorf("%d nodes sent %d datagrams", nodes, sent)
	}
}
