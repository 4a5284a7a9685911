package member_test

import (
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/rare"
)

// reportsAsymmetry reports whether a node has recorded that others do not receive it on the LAN.
func (m *machine) reportsAsymmetry(others ...*machine) bool {
	for _, o := range others {
		if _, asymmetric := m.members.Peers[o.name].Asymmetric["eth0"]; o != m && !asymmetric {
			return false
		}
	}
	return true
}

// reportsReceived reports whether a node has recorded no node that does not receive it.
func (m *machine) reportsReceived() bool {
	for _, p := range m.members.Peers {
		if len(p.Asymmetric) > 0 {
			return false
		}
	}
	return true
}

// A node on an asymmetric link detects that another node does not receive it, as soon as that one counts it as dead;
// and detects the recovery as soon.
func TestOneWay(t *testing.T) {
	w := newWorld(t, 2)
	w.settle()
	a, b := w.nodes[0], w.nodes[1]
	w.drop = func(from, to *machine, _ string) bool { return from == a && to == b }
	w.must("dead to one", time.Second, func() bool { return !b.receives(a) })
	w.must("known by the other", 200*time.Millisecond, func() bool { return a.reportsAsymmetry(b) })
	w.run(5*time.Second, nil)
	if !a.receives(b) || !a.reportsAsymmetry(b) || len(b.members.Peers[a.name].Asymmetric) > 0 {
		t.Errorf("a: %+v, b: %+v", a.members.Peers, b.members.Peers)
	}
	w.drop = nil
	w.must("received and known", 300*time.Millisecond, func() bool { return b.receives(a) && a.reportsReceived() })

	// A new node is received by none at first, which means nothing. A new node that receives nothing is detected.
	w.boot(a, 2)
	w.watch = func(m *machine) {
		if m == a && !a.reportsReceived() {
			t.Fatal("a new node counts the link to the other as asymmetric")
		}
	}
	w.settle()
	w.watch = nil
	w.drop = func(from, to *machine, _ string) bool { return from == a && to == b }
	w.boot(b, 2)
	w.must("known again", 2*time.Second, func() bool { return a.reportsAsymmetry(b) })
}

// A node that receives none of many others, more than a heartbeat has room for, is recorded as such by all of them, and
// by none soon after it receives again.
func TestAsymmetricLinkAmongMany(t *testing.T) {
	w := newWorld(t, rare.Rounds(20, 60))
	w.settle()
	mute, others := w.nodes[7], append(w.nodes[:7:7], w.nodes[8:]...)
	all := func(is func(*machine) bool) func() bool {
		return func() bool {
			for _, m := range others {
				if !is(m) {
					return false
				}
			}
			return true
		}
	}
	w.drop = func(_, to *machine, _ string) bool { return to == mute }
	w.must("known", time.Second, all(func(m *machine) bool { return m.reportsAsymmetry(mute) }))
	w.watch = func(m *machine) {
		if m != mute && !m.reportsAsymmetry(mute) {
			t.Fatalf("%s does not report it any more", m.name)
		}
	}
	w.run(3*time.Second, nil)
	w.drop, w.watch = nil, nil
	w.must("received", 300*time.Millisecond+member.Standard.Dead, all((*machine).reportsReceived))
}

// A LAN is split while the node network works: each side counts the other as dead there, and reports of the other side
// by the node network do not change that.
func TestSplitLAN(t *testing.T) {
	w := newWorld(t, 7)
	w.settle()
	side := map[*machine]bool{w.nodes[0]: true, w.nodes[3]: true, w.nodes[5]: true}
	w.drop = func(from, to *machine, iface string) bool { return iface == "eth0" && side[from] != side[to] }
	apart := func() bool {
		for _, m := range w.nodes {
			for _, o := range w.nodes {
				if m != o && m.receives(o) != (side[m] == side[o]) {
					return false
				}
			}
		}
		return true
	}
	w.must("apart", time.Second, apart)
	w.watch = func(m *machine) {
		if !apart() || len(m.members.Isolated) > 0 {
			t.Fatalf("%s: %+v", m.name, m.members)
		}
	}
	w.run(time.Minute, nil)
	w.drop, w.watch = nil, nil
	w.must("settled", time.Second, w.settled)
}

// No request reaches a node that receives nothing: it repeats its claims, however many they are.
func TestClaimsOnAsymmetricLink(t *testing.T) {
	w := newWorld(t, 5)
	w.loss = 0.05
	w.settle()
	mute := w.nodes[2]
	w.drop = func(_, to *machine, _ string) bool { return to == mute }
	w.must("asymmetric", time.Second, func() bool { return mute.receivesNone(w.nodes...) })
	w.publish(mute, claims(2000))
	w.must("known", 10*time.Second, func() bool { // a round takes 1.2 s, and may lose some of it
		for _, m := range w.nodes {
			if p := m.members.Peers[mute.name]; m != mute && (len(p.Claims) != 2000 || !p.Synced) {
				return false
			}
		}
		return true
	})
}

// A node that was not received on the LAN while the node network worked may have answered there as well: it counts as
// returned when it is received again. A node that restarted meanwhile does not, because it began as an observer.
func TestReturnedToLAN(t *testing.T) {
	w := newWorld(t, 5)
	w.settle()
	side := map[*machine]bool{w.nodes[0]: true, w.nodes[3]: true}
	split := func(from, to *machine, iface string) bool { return iface == "eth0" && side[from] != side[to] }
	apart := func() bool {
		return w.nodes[1].receivesNone(w.nodes[0], w.nodes[3]) && !w.nodes[0].receives(w.nodes[1])
	}
	w.drop = split
	w.must("apart", time.Second, apart)
	before := w.nodes[1].members.Returned
	clear(w.nodes[1].nodes)
	w.drop = nil
	w.must("settled", time.Second, w.settled)
	if got := w.nodes[1].members.Returned - before; got != 2 {
		t.Errorf("%d have returned, want 2", got)
	}
	if _, reported := w.nodes[1].nodes[w.nodes[1].name]; !reported {
		t.Error("it was not reported")
	}

	w.drop = split
	w.must("apart again", time.Second, apart)
	before = w.nodes[1].members.Returned
	w.boot(w.nodes[0], 2)
	w.boot(w.nodes[3], 2)
	w.run(2*time.Second, nil)
	w.drop = nil
	w.must("settled again", 2*time.Second, w.settled)
	if got := w.nodes[1].members.Returned - before; got != 0 {
		t.Errorf("%d have returned, want none: they restarted", got)
	}
}

// TestAnswerIsLate: while all others are silent and no host has answered, it may be this node that is cut off: it believes
// no death for a dead time, or for two if the answer is late, as where its processes wait for a core. Otherwise it would
// announce addresses of others to their clients.
func TestAnswerIsLate(t *testing.T) {
	dead, interval := member.Standard.Dead, member.Standard.Interval
	w := newWorld(t, 3)
	w.settle()
	mute := w.nodes[0]
	isolated := func() bool { _, is := mute.members.Isolated["eth0"]; return is }
	silent := func() bool { return !mute.receives(w.nodes[1]) || !mute.receives(w.nodes[2]) }
	for _, test := range []struct {
		name string
		// at is when hosts answer, after the last heartbeat; 0: never. none is set if they answer that nobody does.
		at   time.Duration
		none bool
		// least is how long the others count as received at least, most at most.
		least, most time.Duration
	}{
		{"nothing asks", 0, false, dead - interval, dead},
		{"no answer", 0, false, 2*dead - interval, 2*dead + interval},
		{"an answer", dead / 2, false, dead - interval, dead},
		{"a late answer", dead + interval, false, dead + interval, dead + 2*interval},
		{"cut off", dead / 2, true, dead - interval, dead + interval},
		{"cut off, found late", dead + interval, true, dead + interval, dead + 2*interval},
	} {
		t.Run(test.name, func(t *testing.T) {
			w.t = t
			if test.name != "nothing asks" {
				mute.SetAnswers(map[string]view.Answers{})
			}
			w.drop = func(_, to *machine, _ string) bool { return to == mute }
			began := w.now
			lost := time.Time{}
			w.watch = func(m *machine) {
				if m != mute || w.now.Equal(began) {
					return
				}
				if since := w.now.Sub(began); test.at > 0 && since >= test.at {
					mute.SetAnswers(map[string]view.Answers{"eth0": {None: test.none, First: map[bool]time.Time{false: w.now}[test.none]}})
				}
				if silent() && lost.IsZero() {
					lost = w.now
				}
				if silent() && isolated() != test.none {
					t.Errorf("after %v a node counts as dead; isolated: %v", w.now.Sub(began), isolated())
				}
			}
			w.must("all are silent", 3*dead, func() bool { return mute.receivesNone(w.nodes...) })
			if took := lost.Sub(began); took < test.least || took > test.most+20*time.Millisecond {
				t.Errorf("a node counted as dead after %v, want %v to %v", took, test.least, test.most)
			}
			mute.SetAnswers(map[string]view.Answers{})
			w.drop, w.watch = nil, nil
			w.must("settled", 3*time.Second, func() bool { return w.settled() && !isolated() })
			w.run(time.Second, nil)
		})
	}
}
