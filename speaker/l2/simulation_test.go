package l2

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/ownership"
)

// simulated is a system with a virtual clock, for tests that take minutes; wire_test.go tests the kernel.
type simulated struct {
	links   []link
	subnets map[int][]netip.Prefix
	fails   error

	mu      sync.Mutex
	begin   time.Time
	sockets map[int]*simulatedSocket // by interface
}

func (s *simulated) observe() (*network, error) {
	n := &network{links: s.links, ours: map[mac]struct{}{}, subnets: s.subnets}
	for _, l := range s.links {
		n.ours[l.mac] = struct{}{}
	}
	return n, nil
}

func (s *simulated) open(l link, family int) (socket, error) {
	if s.fails != nil {
		return nil, s.fails
	}
	socket := &simulatedSocket{of: s, codec: codecs[family], in: make(chan []byte), done: make(chan struct{})}
	s.sockets[l.index] = socket
	return socket, nil
}

// simulatedSocket records what is sent; its occupants are hosts that have addresses.
type simulatedSocket struct {
	of    *simulated
	codec codec
	in    chan []byte
	done  chan struct{}

	sent     map[string][]time.Duration // by probe, control, announcement, answer
	probed   map[netip.Addr]struct{}    // probed addresses
	occupant map[netip.Addr]mac
	// delay is the delay of the occupants' answers for the control address.
	delay time.Duration
}

func (s *simulatedSocket) pass(addrSet) error { return nil }
func (s *simulatedSocket) router() bool       { return false }
func (s *simulatedSocket) close()             { close(s.done) }

func (s *simulatedSocket) read(buf []byte) (int, error) {
	select {
	case frame := <-s.in:
		return copy(buf, frame), nil
	case <-s.done:
		return 0, unix.EBADF
	}
}

func (s *simulatedSocket) send(frame []byte) error {
	m, err := s.codec.parse(frame)
	if err != nil {
		return err
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	kind := "answer"
	switch {
	case m.probe() && m.target == controlAddrs[familyOf(m.target)]:
		kind = "control"
	case m.probe():
		kind = "probe"
	case m.dst == broadcast:
		kind = "announcement"
	}
	if s.sent == nil {
		s.sent, s.probed = map[string][]time.Duration{}, map[netip.Addr]struct{}{}
	}
	if m.probe() {
		s.probed[m.target] = struct{}{}
	}
	s.sent[kind] = append(s.sent[kind], time.Since(s.of.begin))
	if by, taken := s.occupant[m.target]; taken && m.probe() {
		answer := must(s.codec.answer(station{mac: by}, m))
		if kind == "control" && s.delay > 0 {
			time.AfterFunc(s.delay, func() { s.receive(answer) })
		} else {
			go s.receive(answer)
		}
	}
	return nil
}

// occupy replaces the hosts that have addresses.
func (s *simulatedSocket) occupy(by map[netip.Addr]mac) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.occupant = by
}

// count returns how many frames of a kind were sent.
func (s *simulatedSocket) count(kind string) int {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return len(s.sent[kind])
}

func (s *simulatedSocket) receive(frame []byte) {
	select {
	case s.in <- frame:
	case <-s.done:
	}
}

// simulation runs a test with an announcer on a simulated system, in a bubble.
func simulation(t *testing.T, links int, test func(t *testing.T, a *Announcer, sys *simulated, wakes func() int)) {
	synctest.Test(t, func(t *testing.T) {
		sys := &simulated{sockets: map[int]*simulatedSocket{}, begin: time.Now()}
		for i := range links {
			sys.links = append(sys.links, link{index: i + 1, name: []string{"eth0", "eth1"}[i], mac: mac{2, 0, 0, 0, 1, byte(i)}})
		}
		var mu sync.Mutex
		n := 0
		a := New(Config{Log: slog.New(slog.DiscardHandler), Refresh: -1, Wake: func() { mu.Lock(); n++; mu.Unlock() }})
		a.system = sys
		stop := runs(t, a)
		test(t, a, sys, func() int { mu.Lock(); defer mu.Unlock(); k := n; n = 0; return k })
		stop()
	})
}

func announce(t *testing.T, a *Announcer, set map[netip.Addr]ownership.Announcement) []string {
	t.Helper()
	held, err := a.Announce(set)
	if err != nil {
		t.Fatal(err)
	}
	if len(held) > 1 {
		t.Fatalf("held %v", held)
	}
	for _, on := range held {
		return on
	}
	return nil
}

// The other host keeps the address: it is probed again a second after each of the first conflicts, then every three
// seconds, so that it is held within seconds once the host is gone. The conflict is reported once.
func TestProbingBacksOff(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, wakes func() int) {
		set := map[netip.Addr]ownership.Announcement{vip: probe("eth0")}
		announce(t, a, set)
		on := sys.sockets[1]
		on.occupy(map[netip.Addr]mac{vip: asker})
		elapse(time.Minute)
		sys.mu.Lock()
		probes := slices.Clone(on.sent["probe"])
		sys.mu.Unlock()
		var gaps []time.Duration
		for i := 1; i < len(probes); i++ {
			gaps = append(gaps, (probes[i] - probes[i-1]).Round(time.Second/2))
		}
		soon, late := 0, 0
		for _, g := range gaps {
			switch g {
			case time.Second:
				soon++
			case 3 * time.Second:
				late++
			}
		}
		if soon != maxConflicts-1 || late < 15 || late > 17 || len(on.sent["announcement"]) > 0 {
			t.Errorf("probed at %v, %d announcements", probes, len(on.sent["announcement"]))
		}
		since := a.Conflicts()[vip].Since
		if !since.Before(sys.begin.Add(time.Second)) || a.Conflicts()[vip].MAC != "02:00:00:00:00:09" {
			t.Errorf("conflicts %+v", a.Conflicts())
		}
		if wakes() == 0 {
			t.Error("not woken")
		}
		// The host is gone: detected by the next probe.
		sys.mu.Lock()
		on.occupant = nil
		sys.mu.Unlock()
		elapse(4 * time.Second)
		if got := announce(t, a, set); len(got) != 1 || len(a.Conflicts()) > 0 {
			t.Errorf("held on %v, conflicts %v", got, a.Conflicts())
		}
	})
}

// slowSocket delays sending.
type slowSocket struct {
	simulatedSocket
	begun, release chan struct{}
	sent           atomic.Bool
}

func (s *slowSocket) send([]byte) error {
	close(s.begun)
	<-s.release
	s.sent.Store(true)
	return nil
}

// Once give-up has returned, the address is not answered for. It waits for an answer in progress, whose thread may
// stall just before it sends, while the next owner already announces.
func TestNoAnswerAfterGivingUp(t *testing.T) {
	socket := &slowSocket{begun: make(chan struct{}), release: make(chan struct{})}
	r := &responder{link: link{name: "eth0", mac: mac{2, 0, 0, 0, 1}}, codec: arpCodec{}, socket: socket, of: New(Config{Log: slog.New(slog.DiscardHandler)})}
	r.duties.Store(&duties{held: addrSet{vip: {}}})
	arpRequest := message{dst: broadcast, group: broadcast, from: asker, sender: host, target: vip}
	handled := make(chan struct{})
	go func() { r.handle(arpRequest); close(handled) }()
	<-socket.begun
	time.AfterFunc(20*ms, func() { close(socket.release) })
	r.become(duties{})
	if !socket.sent.Load() {
		t.Error("given up while an answer was on its way")
	}
	<-handled
	r.handle(arpRequest) // a second answer would close begun again, and panic
}

// An address of two interfaces is held when probes on both are unanswered; a host on one of them prevents it on both.
func TestProbesOnAllInterfaces(t *testing.T) {
	simulation(t, 2, func(t *testing.T, a *Announcer, sys *simulated, wakes func() int) {
		set := map[netip.Addr]ownership.Announcement{vip: probe("eth0", "eth1")}
		announce(t, a, set)
		elapse(240 * ms)
		if got := announce(t, a, set); got != nil || wakes() > 0 {
			t.Errorf("held on %v too soon", got)
		}
		elapse(20 * ms)
		if wakes() == 0 {
			t.Error("not woken")
		}
		if got := announce(t, a, set); !slices.Equal(got, []string{"eth0", "eth1"}) {
			t.Errorf("held on %v", got)
		}
		announce(t, a, nil)
		set = map[netip.Addr]ownership.Announcement{host: probe("eth0", "eth1")}
		announce(t, a, set)
		sys.mu.Lock()
		sys.sockets[2].occupant = map[netip.Addr]mac{host: asker}
		sys.mu.Unlock()
		elapse(900 * ms)
		if got := announce(t, a, set); got != nil || a.Conflicts()[host].Interface != "eth1" {
			t.Errorf("held on %v, conflicts %v", got, a.Conflicts())
		}
	})
}

// An interface that is removed during probing does not delay the address, and an added one does not skip the probes.
func TestInterfacesChangeWhileProbing(t *testing.T) {
	simulation(t, 2, func(t *testing.T, a *Announcer, sys *simulated, _ func() int) {
		both := sys.links
		set := map[netip.Addr]ownership.Announcement{vip: probe("eth0", "eth1")}
		sys.links = both[:1]
		announce(t, a, set)
		elapse(200 * ms)
		sys.links = both
		a.Refresh()
		announce(t, a, set)
		elapse(200 * ms) // eth0 is done, eth1 is not
		if got := announce(t, a, set); got != nil {
			t.Errorf("held on %v although eth1 is still probed", got)
		}
		sys.links = both[:1]
		a.Refresh()
		announce(t, a, set)
		synctest.Wait()
		if got := announce(t, a, set); !slices.Equal(got, []string{"eth0"}) {
			t.Errorf("held on %v once eth1 is gone", got)
		}
	})
}

// A held address that another host uses is defended at once, but not again while uses go on, and again once there was
// none for ten seconds (RFC 5227, 2.4 (c)). The conflict ends when no use was received for a while.
func TestDefenceIsLimited(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, wakes func() int) {
		set := map[netip.Addr]ownership.Announcement{vip: on("eth0")}
		announce(t, a, set)
		elapse(10 * time.Second)
		on := sys.sockets[1]
		before := len(on.sent["announcement"])
		use := must(arpCodec{}.announcement(station{mac: asker}, vip, asRequest))
		for range 60 { // one each half second
			on.receive(use)
			elapse(500 * ms)
		}
		want := []time.Duration{10 * time.Second}
		if got := on.sent["announcement"][before:]; !slices.Equal(got, want) {
			t.Errorf("defended at %v, want %v", got, want)
		}
		if wakes() != 1 || len(a.Conflicts()) != 1 {
			t.Errorf("woken more than once, or conflicts %v", a.Conflicts())
		}
		elapse(conflictEndsAfter)
		if wakes() != 1 || len(a.Conflicts()) != 0 {
			t.Errorf("not woken once, or conflicts %v", a.Conflicts())
		}
		on.receive(use) // at 46 s, 6.5 s after the last one
		elapse(defendInterval)
		on.receive(use)
		elapse(time.Second)
		want = append(want, 56*time.Second)
		if got := on.sent["announcement"][before:]; !slices.Equal(got, want) {
			t.Errorf("defended at %v, want %v", got, want)
		}
		if got := announce(t, a, set); len(got) != 1 {
			t.Errorf("held on %v", got)
		}
	})
}

// Of two hosts that use an address, the first is reported, and the second once the first is silent.
func TestTwoForeignHosts(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, wakes func() int) {
		announce(t, a, map[netip.Addr]ownership.Announcement{vip: on("eth0")})
		first := must(arpCodec{}.announcement(station{mac: asker}, vip, asRequest))
		second := must(arpCodec{}.announcement(station{mac: mac{2, 7}}, vip, asRequest))
		for range 20 {
			sys.sockets[1].receive(first)
			sys.sockets[1].receive(second)
			elapse(time.Second)
		}
		if c := a.Conflicts()[vip]; c.MAC != "02:00:00:00:00:09" || wakes() != 1 {
			t.Errorf("conflict %+v, or woken more than once", c)
		}
		for range 11 {
			sys.sockets[1].receive(second)
			elapse(time.Second)
		}
		if c := a.Conflicts()[vip]; c.MAC != "02:07:00:00:00:00" || c.Since.After(sys.begin.Add(time.Second)) || wakes() != 1 {
			t.Errorf("conflict %+v once the first is silent, or not woken once", c)
		}
	})
}

// After an address is given up for a conflict, it is not free while the other host has it, and free within seconds
// after that host has gone: even if the address was not requested meanwhile. After ten minutes it is not probed any
// more.
func TestConflictIsCheckedAfterGivingUp(t *testing.T) {
	for _, leaves := range []bool{true, false} {
		simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, wakes func() int) {
			announce(t, a, map[netip.Addr]ownership.Announcement{vip: probe("eth0")})
			on := sys.sockets[1]
			occupy := func(by map[netip.Addr]mac) {
				sys.mu.Lock()
				on.occupant = by
				sys.mu.Unlock()
			}
			probes := func() int {
				sys.mu.Lock()
				defer sys.mu.Unlock()
				return len(on.sent["probe"])
			}
			occupy(map[netip.Addr]mac{vip: asker})
			elapse(time.Second)
			announce(t, a, nil)
			wakes()
			elapse(5 * time.Minute)
			if len(a.Conflicts()) != 1 || wakes() > 0 {
				t.Fatalf("conflicts %v, or woken, while the other host is there", a.Conflicts())
			}
			if leaves {
				occupy(nil)
				elapse(4 * time.Second)
			} else {
				elapse(6 * time.Minute)
			}
			if len(a.Conflicts()) != 0 || wakes() != 1 {
				t.Errorf("leaves %v: conflicts %v, or not woken once", leaves, a.Conflicts())
			}
			before := probes()
			elapse(time.Minute)
			if n := probes() - before; n > 0 {
				t.Errorf("leaves %v: %d probes for a removed address", leaves, n)
			}
		})
	}
}

// An address is announced within seconds after the other host has left, also for a Service that is deleted and created
// again, before or after. The caller does what the reconcile loop does: it releases an address in conflict, and claims
// it again when the conflict ends.
func TestAnnouncedOnceFree(t *testing.T) {
	const soon, late = time.Second, 5 * time.Minute // before and after it is probed for less often
	for name, at := range map[string]struct{ deleted, created, left, most time.Duration }{
		"kept":                          {0, 0, soon, 4 * time.Second},
		"kept for long":                 {0, 0, late, 4 * time.Second},
		"created, then it leaves":       {soon, 2 * soon, 3 * soon, 4 * time.Second},
		"created, and it leaves late":   {soon, 2 * soon, late, 4 * time.Second},
		"created late":                  {soon, late, late + soon, 4 * time.Second},
		"created as it leaves":          {soon, late, late, 4 * time.Second},
		"it leaves soon, then created":  {soon, 10 * soon, 5 * soon, 500 * ms},
		"it leaves, then created":       {soon, late + 4*time.Second, late, 500 * ms},
		"created when not probed for":   {soon, probeRemovedFor + late, probeRemovedFor + late + soon, 4 * time.Second},
		"it left when not probed for":   {soon, probeRemovedFor + 2*late, probeRemovedFor + late, 500 * ms},
		"deleted late, created as soon": {late, late + 100*ms, late + 200*ms, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, wakes func() int) {
				wanted := true
				reconcile := func() {
					set := map[netip.Addr]ownership.Announcement{}
					if _, conflict := a.Conflicts()[vip]; wanted && !conflict {
						set[vip] = probe("eth0")
					}
					announce(t, a, set)
				}
				from, announced := max(at.left, at.created), time.Duration(0)
				reconcile()
				for since := time.Duration(0); announced == 0 && since <= from+at.most; since = time.Since(sys.begin) {
					before := wanted
					if wanted = since < at.deleted || since >= at.created; wanted != before || wakes() > 0 {
						reconcile()
					}
					on := sys.sockets[1] // another one after nothing was wanted
					if on.occupy(nil); since < at.left {
						on.occupy(map[netip.Addr]mac{vip: asker})
					}
					elapse(20 * ms)
					if on.count("announcement") > 0 {
						announced = time.Since(sys.begin)
					}
				}
				if announced <= from {
					t.Errorf("announced at %v, 0 for never; free and wanted since %v", announced, from)
				}
			})
		})
	}
}

// Many addresses in conflict, as behind a host that answers for all of them, are probed at most ten times a second in
// total.
func TestManyConflicts(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, _ func() int) {
		set, occupant, addr := map[netip.Addr]ownership.Announcement{}, map[netip.Addr]mac{}, vip
		for range 200 {
			set[addr], occupant[addr] = probe("eth0"), asker
			addr = addr.Next()
		}
		if _, err := a.Announce(set); err != nil {
			t.Fatal(err)
		}
		sys.mu.Lock()
		sys.sockets[1].occupant = occupant
		sys.mu.Unlock()
		elapse(time.Minute)
		sys.mu.Lock()
		before := len(sys.sockets[1].sent["probe"])
		sys.mu.Unlock()
		elapse(time.Minute)
		sys.mu.Lock()
		n := len(sys.sockets[1].sent["probe"]) - before
		sys.mu.Unlock()
		if n < 300 || n > 700 || len(a.Conflicts()) != 200 {
			t.Errorf("%d probes in a minute for %d conflicts", n, len(a.Conflicts()))
		}
	})
}

// A conflict about a held address lasts as long as the other host answers for it, even if it does not use it unasked,
// and ends within seconds after that host has gone. It costs a probe every two seconds. Each answer counts as a use, so
// only the first one is defended.
func TestHeldConflictEnds(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, wakes func() int) {
		announce(t, a, map[netip.Addr]ownership.Announcement{vip: on("eth0")})
		elapse(10 * time.Second)
		on := sys.sockets[1]
		occupy := func(by map[netip.Addr]mac) {
			sys.mu.Lock()
			on.occupant = by
			sys.mu.Unlock()
		}
		occupy(map[netip.Addr]mac{vip: asker})
		on.receive(must(arpCodec{}.announcement(station{mac: asker}, vip, asRequest)))
		elapse(5 * time.Minute)
		if got := testutil.ToFloat64(a.metrics[ipv4].defences); got != 1 {
			t.Errorf("%v defences in five minutes, want 1", got)
		}
		if len(a.Conflicts()) != 1 || wakes() != 1 {
			t.Fatalf("conflicts %v, or not woken once, while the other host is there", a.Conflicts())
		}
		occupy(nil)
		elapse(conflictEndsAfter + time.Second)
		if len(a.Conflicts()) != 0 || wakes() != 1 {
			t.Errorf("conflicts %v, or not woken once, after it left", a.Conflicts())
		}
		sys.mu.Lock()
		probes := len(on.sent["probe"])
		sys.mu.Unlock()
		if probes < 140 || probes > 160 {
			t.Errorf("%d probes in five minutes", probes)
		}
	})
}

// An announcer with a failing system returns the error, holds nothing, and recovers when the system does.
func TestSystemFails(t *testing.T) {
	simulation(t, 1, func(t *testing.T, a *Announcer, sys *simulated, _ func() int) {
		sys.fails = errors.New("no")
		set := map[netip.Addr]ownership.Announcement{vip: on("eth0")}
		if held, err := a.Announce(set); !errors.Is(err, sys.fails) || len(held) > 0 {
			t.Errorf("held %v, error %v", held, err)
		}
		sys.fails = nil
		if held, err := a.Announce(set); err != nil || !maps.EqualFunc(held, map[netip.Addr][]string{vip: {"eth0"}}, slices.Equal[[]string]) {
			t.Errorf("held %v, error %v", held, err)
		}
	})
}
