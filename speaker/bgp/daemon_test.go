package bgp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/eventually"
)

// The role of the test's program when it is started with one of these in its environment.
const (
	leftFile  = "TEST_LEFT_FILE"    // a child; its value is a file that Leave creates
	socketEnv = "TEST_PROBE_SOCKET" // a probe
	rawSocket = "TEST_RAW_SOCKET"   // a client that sends a request and prints the answer
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(socketEnv); socket != "" {
		if _, err := QueryHealth(context.Background(), socket); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if socket := os.Getenv(rawSocket); socket != "" {
		os.Exit(sendRequest(socket))
	}
	if file := os.Getenv(leftFile); file != "" {
		err := ServeFile(context.Background(), ChildFile, slog.New(slog.DiscardHandler), func(report func(routes.Session)) Driver {
			return &echo{report: report, file: file, name: filepath.Ext(file)[1:]}
		})
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func sendRequest(socket string) int {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	_, _ = io.WriteString(conn, `{"idle":true}`+"\n") // the connection may already be closed
	_, _ = io.Copy(os.Stdout, conn)
	return 0
}

// echo replaces GoBGP in a separate process: it reports its input. One whose peer is named crash ends as a GoBGP crash
// does, hungry by a lack of memory, and hang blocks. The session with a peer named flood reaches the limit of prefixes,
// unless that is 20.
type echo struct {
	report func(routes.Session)
	name   string
	file   string // created by Leave; others, with these suffixes, have every change, or are created if the peer is removed

	mu   sync.Mutex
	have PeerChange
	down string
}

const receivedFile, removedFile = ".received", ".removed"

func (e *echo) Apply(full bool, p routes.Peer, prefixes map[netip.Prefix]*view.Attributes) error {
	c := PeerChange{Full: full, Peer: p, Routes: prefixes}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.have.add(c)
	if err := e.record(c); err != nil {
		return err
	}
	switch e.name {
	case "crash":
		go panic("an UPDATE as none should be")
		select {}
	case "hungry":
		fmt.Fprint(os.Stderr, "runtime: out of memory: cannot allocate 67108864-byte block\nfatal error: out of memory\n")
		os.Exit(2)
	case "hang":
		select {}
	}
	e.reportState()
	return nil
}

func (e *echo) record(c PeerChange) error {
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(e.file+receivedFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

func (e *echo) Down(why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down = why
	e.reportState()
}

func (e *echo) Up() { e.Down("") }

// Leave is delayed by a peer named slow.
func (e *echo) Leave(_ context.Context, removed bool) error {
	if removed {
		return os.WriteFile(e.file+removedFile, nil, 0o600)
	}
	if e.name == "slow" {
		<-time.After(2 * firstPause)
	}
	return os.WriteFile(e.file, nil, 0o600)
}

// reportState reports the session as established, with the process ID as the peer's AS.
func (e *echo) reportState() {
	s := routes.Session{State: routes.SessionEstablished, PeerASN: uint32(os.Getpid()), PeerID: e.have.Peer.RouterID, Changes: 1}
	for _, a := range e.have.Routes {
		if a != nil {
			s.Prefixes++
		}
	}
	if e.down != "" {
		s.State, s.Reason, s.Message = routes.SessionIdle, routes.BFDWentDown, e.down
	}
	if e.name == "flood" && e.have.Peer.MaxReceivedPrefixes != 20 {
		s.State, s.Reason, s.Message = routes.SessionIdle, routes.TooManyPrefixes, "too many"
	}
	e.report(s)
}

// bfdPeers replaces BFD.
type bfdPeers struct {
	mu    sync.Mutex
	peers map[string]routes.Peer
}

func (b *bfdPeers) Set(peers map[string]routes.Peer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.peers = maps.Clone(peers)
}

func (b *bfdPeers) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (b *bfdPeers) has(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.peers[name]
	return ok
}

// node is a running Daemon.
type node struct {
	t      testing.TB
	socket string
	left   string
	bfd    *bfdPeers
	daemon *Daemon
	reg    *prometheus.Registry
	stop   func() error
}

func startNode(t testing.TB, socket string, hold time.Duration) *node {
	t.Helper()
	n := &node{t: t, socket: socket, left: filepath.Join(t.TempDir(), "left"), bfd: &bfdPeers{}, reg: prometheus.NewRegistry()}
	n.daemon = NewDaemon(DaemonOptions{
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Socket: socket, Hold: hold, BFD: n.bfd, Metrics: NewMetrics(n.reg), Gatherer: n.reg,
		Child: func(peer string) *exec.Cmd {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), leftFile+"="+n.leftOf(peer))
			return cmd
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.daemon.Run(ctx) }()
	var once sync.Once
	var err error
	n.stop = func() error {
		once.Do(func() {
			cancel()
			err = <-ended
		})
		return err
	}
	t.Cleanup(func() {
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// leftOf returns the file that a peer's child creates in Leave.
func (n *node) leftOf(peer string) string { return n.left + "." + peer }

func socketPath(t testing.TB) string { return filepath.Join(t.TempDir(), "bgpd", "bgpd.sock") }

// speaker is a running Client.
type speaker struct {
	*Client
	t    testing.TB
	wake chan struct{}
	reg  *prometheus.Registry
	stop func()
}

func startSpeaker(t testing.TB, socket string) *speaker {
	t.Helper()
	s := &speaker{t: t, wake: make(chan struct{}, 1), reg: prometheus.NewRegistry()}
	s.Client = NewClient(ClientOptions{Socket: socket, Metrics: s.reg, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Wake: func() {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	s.stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(s.stop)
	return s
}

// wait waits until the sessions are as wanted, and returns them. It checks only after a wake.
func (s *speaker) wait(what string, are func(map[string]routes.Session) bool) map[string]routes.Session {
	s.t.Helper()
	limit := time.After(20 * time.Second)
	for {
		now := s.Sessions()
		if are(now) {
			return now
		}
		select {
		case <-s.wake:
		case <-limit:
			s.t.Fatalf("%s: it is not so, but %+v", what, now)
		}
	}
}

// established waits until a number of prefixes are announced to the peer, and returns its session.
func (s *speaker) established(peer string, prefixes int) routes.Session {
	s.t.Helper()
	return s.wait(fmt.Sprintf("%s has %d prefixes", peer, prefixes), func(now map[string]routes.Session) bool {
		is, ok := now[peer]
		return ok && is.State == routes.SessionEstablished && is.Prefixes == prefixes
	})[peer]
}

// TestHealthOfHanging: a child that processes no input is unhealthy, although it runs.
func TestHealthOfHanging(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	change := two()
	change.Peers["hang"] = peer(252)
	s.Set(change)
	eventually.Nil(t, 20*time.Second, "the daemon is unhealthy", func(ctx context.Context) error {
		h, err := QueryHealth(ctx, n.socket)
		as := err == nil && h.Problem == "BGPPeer hang: GoBGP runs; its configuration is not applied yet"
		return eventually.Unless(as, "its health is %+v (%v)", h, err)
	})
}

// TestLastMessages: the final error of main is the reason why the child ended.
func TestLastMessages(t *testing.T) {
	c := &crashLog{out: io.Discard}
	fmt.Fprintf(c, "level=INFO msg=x\nironlb-bgpd: GoBGP %s\nmore\n", "hangs")
	if c.text() != "ironlb-bgpd: GoBGP hangs" {
		t.Errorf("recorded is %q", c.text())
	}
}

func peer(last byte) *routes.Peer {
	return &routes.Peer{Address: netip.AddrFrom4([4]byte{192, 0, 2, last}), Port: 179, MyASN: 65001, PeerASN: 65002, IPv4: true, GracefulRestart: true}
}

func to(peers ...string) routes.Route {
	r := routes.Route{}
	for _, p := range peers {
		r[p] = view.Attributes{}
	}
	return r
}

// two returns two peers and a route to both.
func two() routes.Change {
	return routes.Change{
		Full: true, RouterID: addr("192.0.2.1"), Peers: map[string]*routes.Peer{"a": peer(253), "b": peer(254)},
		Routes: map[netip.Prefix]routes.Route{prefix("203.0.113.1/32"): to("a", "b")},
	}
}

func change(prefixes map[netip.Prefix]routes.Route) routes.Change {
	return routes.Change{RouterID: addr("192.0.2.1"), Routes: prefixes}
}

func pid(s routes.Session) int { return int(s.PeerASN) }

// TestSpeakerRestarts: the process with GoBGP stays the same and keeps everything, even while the next speaker has no
// configuration yet.
func TestSpeakerRestarts(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	s.Set(two())
	first := s.established("a", 1)
	s.Set(change(map[netip.Prefix]routes.Route{prefix("203.0.113.2/32"): to("a")}))
	s.established("a", 2)
	s.stop()

	next := startSpeaker(t, n.socket)
	if is := next.established("a", 2); pid(is) != pid(first) {
		t.Errorf("process %d has become %d", pid(first), pid(is))
	}
	next.Set(two())
	if is := next.established("a", 1); pid(is) != pid(first) {
		t.Errorf("process %d has become %d", pid(first), pid(is))
	}
	next.established("b", 1)
	next.Set(routes.Change{RouterID: addr("192.0.2.1"), Peers: map[string]*routes.Peer{"b": nil}})
	next.wait("b is gone", func(now map[string]routes.Session) bool { return len(now) == 1 })
}

// TestNoPeers: a node without peers has no GoBGP, and is healthy.
func TestNoPeers(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	s.Set(routes.Change{Full: true, RouterID: addr("192.0.2.1")})
	n.until("the configuration is stored", func() bool { return n.daemon.wanted.RouterID.IsValid() })
	if h, err := QueryHealth(t.Context(), n.socket); err != nil || h.Problem != "" {
		t.Errorf("its health is %+v (%v)", h, err)
	}
	n.until("no child is started", func() bool { return len(n.daemon.children) == 0 })
	c := two()
	c.Full = false
	s.Set(c)
	s.established("a", 1)
}

// TestProcessRestarts: a speaker reports the absence of ironlb-bgpd, and the next process receives the full
// configuration.
func TestProcessRestarts(t *testing.T) {
	socket := socketPath(t)
	s := startSpeaker(t, socket)
	s.Set(two())
	s.Set(change(map[netip.Prefix]routes.Route{prefix("203.0.113.2/32"): to("a")}))
	for range 2 {
		s.wait("there is no process", func(now map[string]routes.Session) bool {
			return len(now) == 2 && now["a"].Reason == routes.NoBGPProcess && now["a"].State == routes.SessionIdle && !now["a"].Since.IsZero()
		})
		n := startNode(t, socket, 0)
		s.established("a", 2)
		s.established("b", 1)
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGoBGPEnds: it is started again with the full configuration, and the change counters of sessions continue.
func TestGoBGPEnds(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	c := two()
	delete(c.Peers, "b")
	s.Set(c)
	first := s.established("a", 1)
	if err := syscall.Kill(pid(first), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	down := s.wait("it is noticed", func(now map[string]routes.Session) bool { return now["a"].Reason == routes.NoBGPProcess })["a"]
	if !strings.Contains(down.Message, "killed") || down.State != routes.SessionIdle {
		t.Errorf("the session is %+v", down)
	}
	if h, err := QueryHealth(t.Context(), n.socket); err != nil || !strings.Contains(h.Problem, "killed") {
		t.Errorf("meanwhile its health is %+v (%v)", h, err)
	}
	again := s.established("a", 1)
	if took := time.Since(killed); took < firstPause {
		t.Errorf("it was started again after %v", took)
	}
	if pid(again) == pid(first) || again.Changes != 2 {
		t.Errorf("it was %+v and is %+v", first, again)
	}
	if h, err := QueryHealth(t.Context(), n.socket); err != nil || h.Problem != "" {
		t.Errorf("then its health is %+v (%v)", h, err)
	}
}

// TestGoBGPPanics: the reason is reported, and neither the other peers nor BFD are affected, however often it happens.
func TestGoBGPPanics(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	c := two()
	c.Peers["a"].BFD = view.BFD{Multiplier: 3}
	c.Peers["crash"] = peer(252)
	s.Set(c)
	first := [...]routes.Session{s.established("a", 1), s.established("b", 1)}
	since := time.Time{}
	for range 2 {
		since = s.wait("it reports why", func(now map[string]routes.Session) bool {
			return strings.HasSuffix(now["crash"].Message, "panic: an UPDATE as none should be") && now["crash"].Since.After(since)
		})["crash"].Since
	}
	if !n.bfd.has("a") {
		t.Error("BFD is not configured")
	}
	if h, err := QueryHealth(t.Context(), n.socket); err != nil || h.Problem != "" {
		t.Errorf("its health is %+v (%v)", h, err)
	}
	s.Set(change(map[netip.Prefix]routes.Route{prefix("203.0.113.2/32"): to("a", "b")}))
	if again := [...]routes.Session{s.established("a", 2), s.established("b", 2)}; pid(again[0]) != pid(first[0]) || pid(again[1]) != pid(first[1]) {
		t.Errorf("they were %+v and are %+v", first, again)
	}
	s.Set(routes.Change{RouterID: addr("192.0.2.1"), Peers: map[string]*routes.Peer{"crash": nil}})
	s.wait("it is gone", func(now map[string]routes.Session) bool { return len(now) == 2 })
	n.until("it has no process", func() bool { return len(n.daemon.children)+len(n.daemon.retiring) == 2 })
}

// TestRouterID: a changed router ID restarts the process at once. One peer's own router ID does not apply to others.
func TestRouterID(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	c := two()
	c.Peers["b"].RouterID = addr("192.0.2.8")
	s.Set(c)
	a, b := s.established("a", 1), s.established("b", 1)
	if a.PeerID != c.RouterID || b.PeerID != addr("192.0.2.8") {
		t.Errorf("the sessions are %+v and %+v", a, b)
	}
	began := time.Now()
	s.Set(routes.Change{RouterID: addr("192.0.2.9")})
	again := s.wait("another process", func(now map[string]routes.Session) bool {
		return now["a"].PeerID == addr("192.0.2.9") && now["a"].Prefixes == 1
	})
	if pid(again["a"]) == pid(a) || pid(again["b"]) != pid(b) {
		t.Errorf("the sessions were %+v and %+v and are %+v", a, b, again)
	}
	if took := time.Since(began); took > firstPause {
		t.Errorf("it took %v", took)
	}
}

// TestRename: a router whose peer gets another name gets the next process only after the previous one has ended.
func TestRename(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	s.Set(two())
	first := s.established("a", 1)
	c := routes.Change{RouterID: addr("192.0.2.1"), Peers: map[string]*routes.Peer{"a": nil, "z": peer(253)}, Routes: two().Routes}
	c.Routes[prefix("203.0.113.1/32")] = to("z", "b")
	s.Set(c)
	is := s.established("z", 1)
	if err := syscall.Kill(pid(first), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is still there: %v", pid(first), err)
	}
	if pid(is) == pid(first) {
		t.Errorf("it is the same process: %+v", is)
	}
	if !n.exists("a", removedFile) {
		t.Error("the first process did not receive that its peer is removed")
	}
}

// TestHold: without a speaker the routes are withdrawn after a while, the sessions stay, and the next speaker restores
// all routes.
func TestHold(t *testing.T) {
	n := startNode(t, socketPath(t), 200*time.Millisecond)
	s := startSpeaker(t, n.socket)
	s.Set(two())
	first := s.established("a", 1)
	s.stop()
	watch := startSpeaker(t, n.socket) // connects and disconnects before or after the time is up, with an empty set
	watch.wait("a report", func(now map[string]routes.Session) bool { return len(now) == 2 })
	watch.stop()
	n.until("the routes are withdrawn", func() bool { return len(n.daemon.wanted.Routes) == 0 })
	next := startSpeaker(t, n.socket)
	if is := next.established("a", 0); pid(is) != pid(first) {
		t.Errorf("process %d has become %d", pid(first), pid(is))
	}
	next.Set(two())
	next.established("a", 1)
}

// until waits until the daemon is in a state.
func (n *node) until(what string, is func() bool) {
	n.t.Helper()
	eventually.True(n.t, 20*time.Second, what, func() bool {
		n.daemon.mu.Lock()
		defer n.daemon.mu.Unlock()
		return is()
	})
}

// TestBFD: a BFD session that goes down takes BGP down, unless the peer ended it deliberately.
func TestBFD(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	c := two()
	for _, p := range c.Peers {
		p.BFD = view.BFD{Receive: time.Second, Transmit: time.Second, Multiplier: 3}
	}
	s.Set(c)
	s.established("a", 1)
	s.established("b", 1)
	since := now()
	status := func(a, b BFDStatus) {
		a.Since, b.Since = since, since
		n.daemon.BFDChanged(map[string]BFDStatus{"a": a, "b": b})
	}
	status(BFDStatus{State: view.BFDDown}, BFDStatus{State: view.BFDInit})
	status(BFDStatus{State: view.BFDUp}, BFDStatus{State: view.BFDUp})
	s.wait("BFD is up", func(now map[string]routes.Session) bool {
		return now["a"].BFD == view.BFDUp && now["a"].BFDSince.Equal(since) && now["a"].State == routes.SessionEstablished
	})
	status(BFDStatus{State: view.BFDDown, Dead: true, Why: "silence"}, BFDStatus{State: view.BFDDown, Why: "on purpose"})
	is := s.wait("a is down", func(now map[string]routes.Session) bool { return now["a"].State == routes.SessionIdle })
	if is["a"].Reason != routes.BFDWentDown || is["a"].Message != "silence" || is["a"].BFD != view.BFDDown || is["a"].BFDMessage != "silence" {
		t.Errorf("a is %+v", is["a"])
	}
	if is["b"].State != routes.SessionEstablished || is["b"].BFD != view.BFDDown || is["b"].BFDMessage != "on purpose" {
		t.Errorf("b is %+v", is["b"])
	}
	status(BFDStatus{State: view.BFDUp}, BFDStatus{State: view.BFDDown})
	s.wait("a is tried again", func(now map[string]routes.Session) bool { return now["a"].State == routes.SessionEstablished })
}

// TestNewestSpeakerWins: the replaced speaker receives the reason, and does not reconnect at once.
func TestNewestSpeakerWins(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	old := startSpeaker(t, n.socket)
	old.Set(two())
	first := old.established("a", 1)
	next := startSpeaker(t, n.socket)
	next.established("a", 1)
	old.wait("it is notified", func(now map[string]routes.Session) bool {
		return strings.Contains(now["a"].Message, errReplaced.Error())
	})
	old.stop()
	if is := next.established("a", 1); pid(is) != pid(first) {
		t.Errorf("process %d has become %d", pid(first), pid(is))
	}
}

// TestLeave: only peers without graceful restart are notified.
func TestLeave(t *testing.T) {
	for name, restart := range map[string]bool{"graceful restart": true, "none": false} {
		t.Run(name, func(t *testing.T) {
			n := startNode(t, socketPath(t), 0)
			s := startSpeaker(t, n.socket)
			c := two()
			c.Peers["b"].GracefulRestart = restart
			s.Set(c)
			is := s.established("a", 1)
			s.established("b", 1)
			if err := n.stop(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(n.leftOf("a")); err == nil {
				t.Error("a is notified")
			}
			if _, err := os.Stat(n.leftOf("b")); (err == nil) == restart {
				t.Errorf("the polite end gives %v", err)
			}
			if err := syscall.Kill(pid(is), 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("the child is still there: %v", err)
			}
		})
	}
}

// TestFirstChangeIsFull: a speaker whose first change is incomplete is rejected.
func TestFirstChangeIsFull(t *testing.T) {
	n := startNode(t, socketPath(t), 0)
	s := startSpeaker(t, n.socket)
	s.Set(two())
	s.established("a", 1)
	s.stop()
	c, err := dial(t.Context(), n.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.send(request{Change: &routes.Change{RouterID: addr("192.0.2.1"), Peers: map[string]*routes.Peer{"a": nil}}}); err != nil {
		t.Fatal(err)
	}
	why := ""
	for err == nil { // statuses, and then the end
		var st Status
		if err = c.receive(&st); st.Refused != "" {
			why = st.Refused
		}
	}
	if !strings.Contains(why, "not complete") {
		t.Errorf("it is refused because %q", why)
	}
	next := startSpeaker(t, n.socket)
	next.established("a", 1)
}
