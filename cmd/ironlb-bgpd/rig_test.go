package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/bgp"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/eventually"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
	"github.com/ironlb/ironlb/test/lab/router"
)

// asProgram makes the test binary act as ironlb-bgpd.
const asProgram = "TEST_AS_IRONLB_BGPD"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	flag.Parse()
	if !given("test.parallel") {
		flag.Set("test.parallel", "16") // they wait for routers, not for a CPU
	}
	os.Exit(m.Run())
}

// given reports whether a flag is on the command line.
func given(name string) (found bool) {
	flag.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

var (
	password   = "open-sesame"
	routerAddr = addr("192.0.2.254")
	vips       = []netip.Prefix{prefix("203.0.113.1/32"), prefix("203.0.113.2/32")}
	// timers of BFD that tolerate a machine busy with other tests; quick ones are for time measurements.
	timers = view.BFD{Receive: 300 * time.Millisecond, Transmit: 300 * time.Millisecond, Multiplier: 3}
	quick  = view.BFD{Receive: 100 * time.Millisecond, Transmit: 100 * time.Millisecond, Multiplier: 3}
)

// rig is a node with ironlb-bgpd, a speaker (this test) and a router.
type rig struct {
	t       *testing.T
	ctx     context.Context
	node    *netspace.Space
	far     *netspace.Space // of the router
	place   router.Place
	router  router.Router
	monitor *router.Monitor
	socket  string
	flags   []string
	process *process.Process
}

// newRig starts the router and ironlb-bgpd.
func newRig(t *testing.T, kind string, withBFD bool, flags ...string) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx, node: netspace.New(t), flags: flags}
	far := netspace.New(t)
	netspace.Join(t, r.node, "eth0", "192.0.2.1/24", far, "eth0", routerAddr.String()+"/24")
	r.far, r.place = far, router.In(t, far)
	var bfd view.BFD
	if withBFD {
		bfd = timers
	}
	var err error
	if r.router, err = router.Kinds[kind](ctx, r.place, config(bfd)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.router.Stop() })
	if r.monitor, err = r.place.Monitor(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.monitor.Stop() })
	r.sees("the router listens", func() (bool, error) { // GoBGP pauses for five seconds after a refusal
		s, err := r.router.Sessions(ctx)
		return s["node"].State != "" && s["node"].State != "Idle", err
	})
	dir, err := os.MkdirTemp("", "bgpd") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r.socket = filepath.Join(dir, "bgpd", "bgpd.sock")
	r.start()
	t.Cleanup(func() {
		if err := r.process.Kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("ironlb-bgpd:\n%s", process.Tail(r.process.Log, 100))
			t.Logf("router:\n%s", r.router.Log())
		}
	})
	return r
}

// config returns the router's configuration, with the node as its neighbor.
func config(bfd view.BFD) router.Config {
	n := router.Neighbor{Name: "node", Address: addr("192.0.2.1"), ASN: 65001, Password: password,
		BFD: router.BFDTimers{Interval: bfd.Receive, Multiplier: int(bfd.Multiplier)}}
	return router.Config{ASN: 65002, ID: routerAddr, Neighbors: []router.Neighbor{n}}
}

// privileges are those of the container in deploy/ironlb.yaml.
var privileges = []string{"setpriv", "--bounding-set", "-all,+sys_nice", "--no-new-privs", "--"}

// start starts ironlb-bgpd in the node's namespace, with the privileges that it has in a Pod.
func (r *rig) start() {
	r.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	near := router.In(r.t, r.node)
	argv := slices.Concat([]string{"nsenter", "--net=" + near.Namespace, "--"}, privileges, []string{exe, "--socket", r.socket}, r.flags)
	r.process, err = process.Start(r.ctx, host.Native{}, "ironlb-bgpd", filepath.Join(near.Logs, "bgpd.log"), host.Cmd{Argv: argv, Env: []string{asProgram + "=1"}})
	if err != nil {
		r.t.Fatal(err)
	}
}

// speaker is the speaker's BGP client.
type speaker struct {
	*bgp.Client
	trigger chan struct{}
	stop    func()
}

func (r *rig) speaker() *speaker {
	r.t.Helper()
	s := &speaker{trigger: make(chan struct{}, 1)}
	s.Client = bgp.NewClient(bgp.ClientOptions{Socket: r.socket, Log: slog.New(slog.NewTextHandler(r.t.Output(), nil)), Wake: func() {
		select {
		case s.trigger <- struct{}{}:
		default:
		}
	}})
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx)
	}()
	s.stop = func() {
		cancel()
		<-ended
	}
	r.t.Cleanup(s.stop)
	return s
}

// wanted is the router as a peer that both addresses are advertised to.
func wanted(gracefulRestart, withBFD bool) routes.Change {
	p := routes.Peer{
		Address: routerAddr, Port: 179, MyASN: 65001, PeerASN: 65002, ConnectTime: time.Second, HoldTime: 90 * time.Second,
		IPv4: true, NextHop4: addr("192.0.2.1"), GracefulRestart: gracefulRestart, Password: view.Secret(password),
	}
	if gracefulRestart {
		p.RestartTime = 30 * time.Second
	}
	if withBFD {
		p.BFD = timers
	}
	c := routes.Change{Full: true, RouterID: addr("192.0.2.1"), Peers: map[string]*routes.Peer{"tor": &p}, Routes: map[netip.Prefix]routes.Route{}}
	for _, vip := range vips {
		c.Routes[vip] = routes.Route{"tor": {Communities: view.NewCommunitySet(65001<<16 | 1)}}
	}
	return c
}

// session waits until the session with the router is as expected in the speaker's view.
func (r *rig) session(s *speaker, what string, is func(routes.Session) bool) routes.Session {
	r.t.Helper()
	return r.sessionOf(s, "tor", what, is)
}

func (r *rig) sessionOf(s *speaker, peer, what string, is func(routes.Session) bool) routes.Session {
	r.t.Helper()
	for {
		now, ok := s.Sessions()[peer]
		if ok && is(now) {
			return now
		}
		select {
		case <-s.trigger:
		case <-r.ctx.Done():
			r.t.Fatalf("%s: the session is %+v", what, s.Sessions())
		}
	}
}

func established(s routes.Session) bool {
	return s.State == routes.SessionEstablished && s.Prefixes == len(vips)
}

// sees waits until a condition holds on the router.
func (r *rig) sees(what string, is func() (bool, error)) {
	r.t.Helper()
	eventually.True(r.t, 30*time.Second, what, func() bool {
		ok, err := is()
		if err != nil {
			r.t.Fatalf("%s: %v", what, err)
		}
		return ok
	})
}

// settled waits until the router has all routes in its kernel and, if wanted, BFD is up, and returns the session. With
// BFD it waits one more second: FRR recreates its BFD session when the first BGP session is up, and takes that down
// with it.
func (r *rig) settled(withBFD bool) router.Session {
	r.t.Helper()
	var session router.Session
	r.sees("the router's session and routes", func() (bool, error) {
		sessions, err := r.router.Sessions(r.ctx)
		if err != nil {
			return false, err
		}
		session = sessions["node"]
		if withBFD {
			is, err := r.bfd()
			if err != nil || is.State != "Up" || time.Since(session.Since) < 1500*time.Millisecond {
				return false, err
			}
		}
		prefixes, err := r.router.Routes(r.ctx, 4)
		return session.Established && len(prefixes) == len(vips) && r.monitored(), err
	})
	return session
}

// monitored reports whether the monitor has received the routes. Its notifications are slightly later than the kernel.
func (r *rig) monitored() bool {
	there := map[netip.Prefix]bool{}
	for _, e := range r.monitor.Events() {
		there[e.Prefix] = !e.Deleted
	}
	for _, vip := range vips {
		if !there[vip] {
			return false
		}
	}
	return true
}

func (r *rig) bfd() (router.BFDSession, error) {
	all, err := r.router.BFD(r.ctx)
	return all["192.0.2.1"], err
}

// child returns the process with GoBGP.
func (r *rig) child() int {
	r.t.Helper()
	children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", r.process.Pid()))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, file := range children {
		data, err := os.ReadFile(file)
		if pid, e := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && e == nil {
			return pid
		}
	}
	r.t.Fatalf("ironlb-bgpd (%d) has no child", r.process.Pid())
	return 0
}

// changes returns the events of the router's kernel from that index on.
func (r *rig) changes(since int) []router.Event { return r.monitor.Events()[since:] }

// cut makes the router drop all packets from the node. The node's link does not change.
func (r *rig) cut() {
	r.t.Helper()
	cmd := exec.CommandContext(r.ctx, "nsenter", "--net="+r.place.Namespace, "--", "nft", "-f", "-")
	cmd.Stdin = strings.NewReader("table ip cut {\nchain input {\ntype filter hook input priority 0\nip saddr 192.0.2.1 drop\n}\nchain output {\ntype filter hook output priority 0\nip daddr 192.0.2.1 drop\n}\n}\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("nft: %v: %s", err, out)
	}
}

// ended waits for the end of ironlb-bgpd.
func (r *rig) ended() {
	r.t.Helper()
	select {
	case <-r.process.Done():
	case <-r.ctx.Done():
		r.t.Fatal("ironlb-bgpd does not end")
	}
}

func (r *rig) signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}
