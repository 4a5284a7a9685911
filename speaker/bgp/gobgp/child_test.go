//go:debug multipathtcp=0

package gobgp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/lab/host"
	lab "github.com/ironlb/ironlb/test/lab/process"
)

// childEnv makes the test binary a process with a driver: GoBGP connects from its own threads, so only a separate
// process can run in a namespace.
const childEnv = "IRONLB_TEST_GOBGP"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := child(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	if !given("test.parallel") {
		flag.Set("test.parallel", "16") // they wait for routers, not for a processor
	}
	os.Exit(m.Run())
}

// given reports whether a flag is on the command line.
func given(name string) (found bool) {
	flag.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

// peerChange is the argument of Apply.
type peerChange struct {
	Full   bool
	Peer   routes.Peer
	Routes map[netip.Prefix]*view.Attributes
}

// order is a command for a child; one field is set.
type order struct {
	Change      *peerChange
	Down        []string      // name, why
	Busy        bool          // Down while a change is being applied that does not end
	Lose        string        // add this peer to GoBGP once more, in a way that it rejects
	InitialPace time.Duration // how long routers are tried at GoBGP's own pace
	Leave       bool
	Removed     bool
	Paths       bool // answer with the number of paths in GoBGP's table, and the prefixes from the peer
	Exported    bool // answer with the result of GoBGP's paths and policies
}

// answer is a child's output; one field is set.
type answer struct {
	Session *routes.Session
	// Done is the end of an order, with its error.
	Done     *string
	Paths    int
	Came     map[string][]string // prefixes, by the peer's address
	Exported map[netip.Prefix]*view.Attributes
}

func child(in io.Reader, out io.Writer) error {
	var mu sync.Mutex
	send := func(a answer) {
		mu.Lock()
		defer mu.Unlock()
		json.NewEncoder(out).Encode(a) // the reader may have ended
	}
	d := New(Options{Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Report: func(s routes.Session) { send(answer{Session: &s}) }})
	for dec := json.NewDecoder(in); ; {
		var o order
		if err := dec.Decode(&o); err != nil {
			return err
		}
		var err error
		var a answer
		switch {
		case o.Change != nil:
			err = d.Apply(o.Change.Full, o.Change.Peer, o.Change.Routes)
		case o.Busy:
			d.mu.Lock()
			d.Down(o.Down[1])
			d.mu.Unlock()
		case o.Down != nil:
			d.Down(o.Down[1])
		case o.Lose != "":
			d.mu.Lock()
			d.peer.conf.Address = netip.Addr{}
			d.readd()
			d.mu.Unlock()
		case o.InitialPace != 0:
			d.session.mu.Lock()
			d.session.initialPace = o.InitialPace
			d.session.mu.Unlock()
		case o.Leave, o.Removed:
			err = d.Leave(context.Background(), o.Removed)
		case o.Paths:
			a.Paths, a.Came, err = d.paths()
		case o.Exported:
			a.Exported, err = d.exported()
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		a.Done = &text
		send(a)
	}
}

// paths returns the prefixes received from the peer, accepted or not, and the number of paths in GoBGP from all
// sources.
func (d *Driver) paths() (n int, came map[string][]string, err error) {
	came = map[string][]string{}
	for _, f := range []*api.Family{ipv4, ipv6} {
		if d.peer != nil {
			peer := d.peer.conf.Address.String()
			err = errors.Join(err, d.server.ListPath(context.Background(), &api.ListPathRequest{TableType: api.TableType_ADJ_IN, Name: peer, Family: f},
				func(to *api.Destination) { came[peer] = append(came[peer], to.Prefix) }))
		}
		t, tableErr := d.server.GetTable(context.Background(), &api.GetTableRequest{TableType: api.TableType_GLOBAL, Family: f})
		err = errors.Join(err, tableErr)
		n += int(t.GetNumPath())
	}
	return n, came, err
}

// process is a driver in a separate process.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	ended chan struct{}
	err   error // once ended is closed
	done  chan answer
}

// node has a driver for each peer, as ironlb-bgpd.
type node struct {
	space *netspace.Space
	log   string
	pace  time.Duration
	ended chan struct{} // closed when a process has ended by itself

	wanted routes.BGP
	peers  map[string]*process

	mu       sync.Mutex
	killed   bool
	sessions map[string]routes.Session
	changed  chan struct{}
}

// startNode returns a node in a namespace. Its processes are killed when the test ends.
func startNode(t testing.TB, space *netspace.Space) *node {
	t.Helper()
	n := &node{space: space, log: t.TempDir() + "/driver.log", ended: make(chan struct{}), peers: map[string]*process{},
		sessions: map[string]routes.Session{}, changed: make(chan struct{})}
	t.Cleanup(func() {
		n.kill()
		if t.Failed() {
			t.Logf("drivers:\n%s", lab.Tail(n.log, 60))
		}
	})
	return n
}

// child starts the process of a peer.
func (n *node) child(t testing.TB, name string) *process {
	t.Helper()
	p := &process{ended: make(chan struct{}), done: make(chan answer, 1)}
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), int(n.space.NS)), "--", self)
	p.cmd.Env = append(os.Environ(), childEnv+"=1")
	p.cmd.Stderr = log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.in, err = p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := host.StartLasting(p.cmd); err != nil {
		t.Fatal(err)
	}
	n.peers[name] = p
	go func() {
		n.read(name, p, out)
		p.err = p.cmd.Wait()
		close(p.ended)
		n.mu.Lock()
		defer n.mu.Unlock()
		if !n.killed {
			n.killed = true
			close(n.ended)
		}
	}()
	if n.pace != 0 {
		if _, err := p.try(order{InitialPace: n.pace}); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (n *node) read(name string, p *process, out io.Reader) {
	for dec := json.NewDecoder(bufio.NewReaderSize(out, 1<<20)); ; {
		var a answer
		if err := dec.Decode(&a); err != nil {
			return
		}
		if a.Done != nil {
			p.done <- a
			continue
		}
		n.mu.Lock()
		n.sessions[name] = *a.Session
		close(n.changed)
		n.changed = make(chan struct{})
		n.mu.Unlock()
	}
}

// kill ends the processes like a crash.
func (n *node) kill() {
	n.mu.Lock()
	n.killed = true
	n.mu.Unlock()
	for _, p := range n.peers {
		p.cmd.Process.Kill()
	}
	for _, p := range n.peers {
		<-p.ended
	}
}

// remove ends the process of a removed peer.
func (n *node) remove(t testing.TB, name string) {
	t.Helper()
	p := n.peers[name]
	if _, err := p.try(order{Removed: true}); err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	before := n.killed
	n.killed = true // it does not end by itself
	n.mu.Unlock()
	p.cmd.Process.Kill()
	<-p.ended
	delete(n.peers, name)
	n.mu.Lock()
	n.killed = before
	delete(n.sessions, name)
	n.mu.Unlock()
}

// order sends an order to the drivers that it concerns and returns their answers as one.
func (n *node) order(t testing.TB, o order) answer {
	t.Helper()
	a, err := n.try(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (n *node) try(o order) (all answer, err error) {
	all = answer{Came: map[string][]string{}}
	if o.InitialPace != 0 {
		n.pace = o.InitialPace
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	for name, p := range n.peers {
		if o.Down != nil && o.Down[0] != name || o.Lose != "" && o.Lose != name || o.Leave && n.wanted.Peers[name].GracefulRestart {
			continue
		}
		group.Go(func() {
			a, failed := p.try(o)
			mu.Lock()
			defer mu.Unlock()
			err = errors.Join(err, failed)
			all.Paths += a.Paths
			maps.Copy(all.Came, a.Came)
		})
	}
	group.Wait()
	return all, err
}

// exported returns the routes of each prefix in the drivers.
func (n *node) exported(t testing.TB) map[netip.Prefix]routes.Route {
	t.Helper()
	out := map[netip.Prefix]routes.Route{}
	for name, p := range n.peers {
		a, err := p.try(order{Exported: true})
		if err != nil {
			t.Fatal(err)
		}
		for prefix, attributes := range a.Exported {
			if out[prefix] == nil {
				out[prefix] = routes.Route{}
			}
			if attributes != nil {
				out[prefix][name] = *attributes
			}
		}
	}
	return out
}

func (p *process) try(o order) (answer, error) {
	if err := json.NewEncoder(p.in).Encode(o); err != nil {
		return answer{}, err
	}
	select {
	case a := <-p.done:
		if *a.Done != "" {
			return a, fmt.Errorf("driver: %s", *a.Done)
		}
		return a, nil
	case <-p.ended:
		return answer{}, fmt.Errorf("the driver ended: %v", p.err)
	case <-time.After(patience):
		return answer{}, fmt.Errorf("the driver does not answer")
	}
}

func (n *node) apply(t testing.TB, c routes.Change) {
	t.Helper()
	if err := n.change(t, c); err != nil {
		t.Fatal(err)
	}
}

// change passes each part of a change to its driver, all at the same time.
func (n *node) change(t testing.TB, c routes.Change) error {
	t.Helper()
	n.wanted.Apply(c)
	for name := range n.peers {
		if _, still := n.wanted.Peers[name]; !still {
			n.remove(t, name)
		}
	}
	failed := make(chan error)
	for name, p := range n.wanted.Peers {
		part := &peerChange{Full: c.Full, Peer: p, Routes: map[netip.Prefix]*view.Attributes{}}
		part.Peer.RouterID = n.wanted.RouterIDOf(name)
		child := n.peers[name]
		if child == nil {
			child, part.Full = n.child(t, name), true
		}
		of := c.Routes
		if part.Full {
			of = n.wanted.Routes
		}
		for prefix := range of {
			if a, has := n.wanted.Routes[prefix][name]; has {
				part.Routes[prefix] = &a
			} else if !part.Full {
				part.Routes[prefix] = nil
			}
		}
		go func() {
			_, err := child.try(order{Change: part})
			failed <- err
		}()
	}
	var err error
	for range n.wanted.Peers {
		err = errors.Join(err, <-failed)
	}
	return err
}

// session waits until a peer's session is as wanted, and returns it.
func (n *node) session(t testing.TB, name, what string, ok func(routes.Session) bool) routes.Session {
	t.Helper()
	deadline := time.After(patience)
	for {
		n.mu.Lock()
		s, there := n.sessions[name]
		changed := n.changed
		n.mu.Unlock()
		if there && ok(s) {
			return s
		}
		select {
		case <-changed:
		case <-n.ended:
			t.Fatalf("%s of %s: a driver ended; its session was %+v", what, name, s)
		case <-deadline:
			t.Fatalf("not within %v: %s of %s; its session is %+v", patience, what, name, s)
		}
	}
}

func (n *node) up(t testing.TB, name string) routes.Session {
	t.Helper()
	return n.session(t, name, "up", func(s routes.Session) bool { return s.State == routes.SessionEstablished })
}

// fails waits until a session does not come up for this reason.
func (n *node) fails(t testing.TB, name string, why view.Reason) routes.Session {
	t.Helper()
	s := n.session(t, name, "reason "+string(why), func(s routes.Session) bool { return s.State != routes.SessionEstablished && s.Reason == why })
	if s.Message == "" {
		t.Errorf("%s of %s has no message", why, name)
	}
	t.Logf("%s: %s: %s", name, s.Reason, s.Message)
	return s
}

// has returns the current session of a peer.
func (n *node) has(name string) (routes.Session, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.sessions[name]
	return s, ok
}
