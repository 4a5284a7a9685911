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
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
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

// order is a command for a child; one field is set.
type order struct {
	Change      *plan.BGPChange
	Down        []string      // name, why
	Busy        bool          // Down while a change is being applied that does not end
	Lose        string        // add this peer to GoBGP once more, in a way that it rejects
	InitialPace time.Duration // how long routers are tried at GoBGP's own pace
	Leave       bool
	Paths       bool // answer with the number of paths in GoBGP's table, and the prefixes from each peer
	Exported    bool // answer with the result of GoBGP's paths and policies
}

// answer is a child's output; one field is set.
type answer struct {
	Report *plan.BGPReport
	// Done is the end of an order, with its error.
	Done     *string
	Paths    int
	Came     map[string][]string // prefixes, by the peer's address
	Exported map[netip.Prefix]plan.Route
}

func child(in io.Reader, out io.Writer) error {
	var mu sync.Mutex
	send := func(a answer) {
		mu.Lock()
		defer mu.Unlock()
		json.NewEncoder(out).Encode(a) // the reader may have ended
	}
	d := New(Options{Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Report: func(r plan.BGPReport) { send(answer{Report: &r}) }})
	for dec := json.NewDecoder(in); ; {
		var o order
		if err := dec.Decode(&o); err != nil {
			return err
		}
		var err error
		var a answer
		switch {
		case o.Change != nil:
			err = d.Apply(*o.Change)
		case o.Busy:
			d.mu.Lock()
			d.Down(o.Down[0], o.Down[1])
			d.mu.Unlock()
		case o.Down != nil:
			d.Down(o.Down[0], o.Down[1])
		case o.Lose != "":
			d.mu.Lock()
			p := d.peers[o.Lose]
			p.conf.Address = netip.Addr{}
			d.readd(p)
			d.mu.Unlock()
		case o.InitialPace != 0:
			d.sessions.mu.Lock()
			d.sessions.initialPace = o.InitialPace
			d.sessions.mu.Unlock()
		case o.Leave:
			err = d.Leave(context.Background(), false)
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

// paths returns the prefixes received from each peer, accepted or not, and the number of paths in GoBGP from all
// sources.
func (d *Driver) paths() (n int, came map[string][]string, err error) {
	came = map[string][]string{}
	for _, f := range []*api.Family{ipv4, ipv6} {
		for _, p := range d.peers {
			peer := p.conf.Address.String()
			err = errors.Join(err, d.server.ListPath(context.Background(), &api.ListPathRequest{TableType: api.TableType_ADJ_IN, Name: peer, Family: f},
				func(to *api.Destination) { came[peer] = append(came[peer], to.Prefix) }))
		}
		t, tableErr := d.server.GetTable(context.Background(), &api.GetTableRequest{TableType: api.TableType_GLOBAL, Family: f})
		err = errors.Join(err, tableErr)
		n += int(t.GetNumPath())
	}
	return n, came, err
}

// node is a driver in a separate process.
type node struct {
	space *netspace.Space
	cmd   *exec.Cmd
	in    io.WriteCloser
	log   string
	ended chan struct{}
	err   error // once ended is closed

	mu       sync.Mutex
	sessions map[string]plan.Session
	changed  chan struct{}
	done     chan answer
}

// startNode starts a driver in a namespace. It is killed when the test ends.
func startNode(t testing.TB, space *netspace.Space) *node {
	t.Helper()
	n := &node{space: space, log: t.TempDir() + "/driver.log", ended: make(chan struct{}), sessions: map[string]plan.Session{},
		changed: make(chan struct{}), done: make(chan answer, 1)}
	log, err := os.Create(n.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n.cmd = exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), int(space.NS)), "--", self)
	n.cmd.Env = append(os.Environ(), childEnv+"=1")
	n.cmd.Stderr = log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	n.in, err = n.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := host.StartLasting(n.cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		n.read(out)
		n.err = n.cmd.Wait()
		close(n.ended)
	}()
	t.Cleanup(func() {
		n.kill()
		if t.Failed() {
			t.Logf("driver:\n%s", process.Tail(n.log, 60))
		}
	})
	return n
}

func (n *node) read(out io.Reader) {
	for dec := json.NewDecoder(bufio.NewReaderSize(out, 1<<20)); ; {
		var a answer
		if err := dec.Decode(&a); err != nil {
			return
		}
		if a.Done != nil {
			n.done <- a
			continue
		}
		n.mu.Lock()
		if a.Report.Full {
			clear(n.sessions)
		}
		for name, s := range a.Report.Sessions {
			if s == nil {
				delete(n.sessions, name)
			} else {
				n.sessions[name] = *s
			}
		}
		close(n.changed)
		n.changed = make(chan struct{})
		n.mu.Unlock()
	}
}

// kill ends the process like a crash.
func (n *node) kill() {
	n.cmd.Process.Kill()
	<-n.ended
}

// order sends an order to the driver and returns the answer.
func (n *node) order(t testing.TB, o order) answer {
	t.Helper()
	a, err := n.try(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (n *node) try(o order) (answer, error) {
	if err := json.NewEncoder(n.in).Encode(o); err != nil {
		return answer{}, err
	}
	select {
	case a := <-n.done:
		if *a.Done != "" {
			return a, fmt.Errorf("driver: %s", *a.Done)
		}
		return a, nil
	case <-n.ended:
		return answer{}, fmt.Errorf("the driver ended: %v", n.err)
	case <-time.After(patience):
		return answer{}, fmt.Errorf("the driver does not answer")
	}
}

func (n *node) apply(t testing.TB, c plan.BGPChange) {
	t.Helper()
	n.order(t, order{Change: &c})
}

// session waits until a peer's session is as wanted, and returns it.
func (n *node) session(t testing.TB, name, what string, ok func(plan.Session) bool) plan.Session {
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
			t.Fatalf("%s of %s: the driver ended: %v; its session was %+v", what, name, n.err, s)
		case <-deadline:
			t.Fatalf("not within %v: %s of %s; its session is %+v", patience, what, name, s)
		}
	}
}

func (n *node) up(t testing.TB, name string) plan.Session {
	t.Helper()
	return n.session(t, name, "up", func(s plan.Session) bool { return s.State == plan.SessionEstablished })
}

// fails waits until a session does not come up for this reason.
func (n *node) fails(t testing.TB, name string, why view.Reason) plan.Session {
	t.Helper()
	s := n.session(t, name, "reason "+string(why), func(s plan.Session) bool { return s.State != plan.SessionEstablished && s.Reason == why })
	if s.Message == "" {
		t.Errorf("%s of %s has no message", why, name)
	}
	t.Logf("%s: %s: %s", name, s.Reason, s.Message)
	return s
}

// has returns the current session of a peer.
func (n *node) has(name string) (plan.Session, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.sessions[name]
	return s, ok
}
