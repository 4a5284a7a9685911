package bgp

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// slowDriver fails and delays as configured.
type slowDriver struct {
	report func(plan.BGPReport)
	slow   chan struct{} // Apply waits for it

	mu    sync.Mutex
	fails int // number of failures
	did   []plan.BGPChange
	downs []string
	left  bool
}

func (d *slowDriver) Apply(c plan.BGPChange) error {
	if d.slow != nil {
		<-d.slow
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.did = append(d.did, c)
	if d.fails--; d.fails >= 0 {
		return errors.New("as the test wants")
	}
	return nil
}

func (d *slowDriver) Down(peer, _ string) {
	if peer == "stuck" {
		<-d.slow
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.downs = append(d.downs, peer)
}

func (d *slowDriver) Up(string) {}

func (d *slowDriver) Leave(context.Context, bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = true
	return errors.New("as the test wants")
}

func (d *slowDriver) applied() []plan.BGPChange {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.did)
}

func (d *slowDriver) hasLeft() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.left
}

func (d *slowDriver) down() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.downs)
}

// parent starts Serve with the driver, and returns the parent's side.
func parent(t *testing.T, d *slowDriver) (*Conn, chan error) {
	ours, theirs := net.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(t.Context(), theirs, slog.New(slog.DiscardHandler), func(report func(plan.BGPReport)) Driver {
			d.report = report
			return d
		})
	}()
	c := NewConn(ours)
	if h, err := c.Answer(Process); err != nil || h.Role != Child {
		t.Fatalf("it sends Hello as %+v (%v)", h, err)
	}
	return c, ended
}

func send(t *testing.T, c *Conn, m Message) {
	t.Helper()
	if err := c.Send(m); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

var full = plan.BGPChange{Full: true, RouterID: addr("192.0.2.1"), Peers: map[string]*plan.Peer{"a": {Address: addr("192.0.2.254")}}}

// TestAppliedAgain: after a failure the full set is applied again, with increasing pauses. A new change does not wait
// for that.
func TestAppliedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowDriver{fails: 3}
		c, ended := parent(t, d)
		began := time.Now()
		send(t, c, Message{Change: &full})
		if len(d.applied()) != 1 || !d.applied()[0].Full {
			t.Fatalf("applied is %+v", d.applied())
		}
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if len(d.applied()) != 2 || !d.applied()[1].Full || len(d.applied()[1].Peers) != 1 {
			t.Errorf("after %v applied is %+v", time.Since(began), d.applied())
		}
		send(t, c, Message{Change: &plan.BGPChange{RouterID: full.RouterID, Peers: map[string]*plan.Peer{"b": {Address: addr("192.0.2.253")}}}})
		if len(d.applied()) != 3 || d.applied()[2].Full || len(d.applied()[2].Peers) != 1 {
			t.Errorf("with something new applied is %+v", d.applied())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(d.applied()) != 4 || !d.applied()[3].Full || len(d.applied()[3].Peers) != 2 {
			t.Errorf("at last applied is %+v", d.applied())
		}
		c.Close()
		if err := <-ended; err == nil {
			t.Error("it did not end with its parent")
		}
	})
}

// TestAppliedIsReported: a serial is reported when its change and all before it are applied, not while a failure
// persists.
func TestAppliedIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowDriver{fails: 1}
		c, ended := parent(t, d)
		reports := make(chan uint64, 10)
		go func() {
			for {
				m, err := c.Receive()
				if err != nil {
					close(reports)
					return
				}
				reports <- m.Report.Applied
			}
		}()
		set := func(serial uint64, full bool, want ...uint64) {
			t.Helper()
			name := string(rune('a' + serial))
			send(t, c, Message{Change: &plan.BGPChange{
				Full: full, RouterID: addr("192.0.2.1"), Serial: serial, Peers: map[string]*plan.Peer{name: {Address: addr("192.0.2.254")}},
			}})
			for _, w := range want {
				if got := <-reports; got != w {
					t.Errorf("%d is applied, want %d", got, w)
				}
			}
			if len(reports) > 0 {
				t.Errorf("%d is applied, want nothing", <-reports)
			}
		}
		set(4, true)
		set(5, false) // it is applied, but the earlier failure persists
		if time.Sleep(2 * firstApplyRetry); <-reports != 5 {
			t.Error("that all was applied is not reported")
		}
		set(6, false, 6)
		set(0, false)
		set(7, true, 7)
		c.Close()
		<-ended
		if _, more := <-reports; more {
			t.Error("something else is reported")
		}
	})
}

// TestDownMeanwhile: a session goes down while changes are applied; the changes are merged.
func TestDownMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowDriver{slow: make(chan struct{})}
		c, ended := parent(t, d)
		send(t, c, Message{Change: &full})
		send(t, c, Message{Change: &plan.BGPChange{RouterID: full.RouterID, Peers: map[string]*plan.Peer{"a": nil}}})
		send(t, c, Message{Change: &plan.BGPChange{RouterID: full.RouterID, Peers: map[string]*plan.Peer{"b": {Address: addr("192.0.2.253")}}}})
		send(t, c, Message{Down: &Down{Peer: "a", Why: "x"}})
		if !slices.Equal(d.down(), []string{"a"}) || len(d.applied()) != 0 {
			t.Errorf("down are %v, applied is %+v", d.down(), d.applied())
		}
		close(d.slow)
		synctest.Wait()
		if len(d.applied()) != 2 || len(d.applied()[1].Peers) != 2 {
			t.Errorf("applied is %+v", d.applied())
		}
		send(t, c, Message{Leave: &Leave{}})
		if err := <-ended; err != nil || !d.hasLeft() {
			t.Errorf("it left: %v, and ended with %v", d.hasLeft(), err)
		}
	})
}

// TestLeaveWaits: Leave waits for the change that is being applied.
func TestLeaveWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowDriver{slow: make(chan struct{})}
		c, ended := parent(t, d)
		send(t, c, Message{Change: &full})
		send(t, c, Message{Leave: &Leave{}})
		if d.hasLeft() {
			t.Error("it left while a change was applied")
		}
		close(d.slow)
		if err := <-ended; err != nil || !d.hasLeft() {
			t.Errorf("it left: %v, and ended with %v", d.hasLeft(), err)
		}
	})
}

// TestHangs: a driver that hangs ends the process, and the parent starts another one.
func TestHangs(t *testing.T) {
	for name, first := range map[string]func(t *testing.T, c *Conn){
		"apply": func(t *testing.T, c *Conn) { send(t, c, Message{Change: &full}) },
		"down":  func(t *testing.T, c *Conn) { send(t, c, Message{Down: &Down{Peer: "stuck", Why: "x"}}) },
		"leave": func(t *testing.T, c *Conn) {
			send(t, c, Message{Change: &full})
			send(t, c, Message{Leave: &Leave{}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &slowDriver{slow: make(chan struct{})}
				defer close(d.slow)
				c, ended := parent(t, d)
				began := time.Now()
				first(t, c)
				err := <-ended
				if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "GoBGP hangs") || took != hangLimit {
					t.Errorf("after %v it ends with %v", took, err)
				}
			})
		})
	}
}

// TestReports go up to the parent.
func TestReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowDriver{}
		c, ended := parent(t, d)
		send(t, c, Message{Change: &full})
		d.report(plan.BGPReport{Sessions: map[string]*plan.Session{"a": {State: plan.SessionActive}}})
		m, err := c.Receive()
		if err != nil || m.Report == nil || m.Report.Sessions["a"].State != plan.SessionActive {
			t.Errorf("the parent receives %+v (%v)", m, err)
		}
		c.Close()
		<-ended
	})
}
