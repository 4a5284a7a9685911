package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// slowDriver fails and delays as configured.
type slowDriver struct {
	report func(routes.Session)
	slow   chan struct{} // Apply waits for it

	mu    sync.Mutex
	fails int // number of failures
	did   []PeerChange
	downs []string
	left  bool
}

func (d *slowDriver) Apply(full bool, p routes.Peer, prefixes map[netip.Prefix]*view.Attributes) error {
	if d.slow != nil {
		<-d.slow
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.did = append(d.did, PeerChange{Full: full, Peer: p, Routes: prefixes})
	if d.fails--; d.fails >= 0 {
		return errors.New("as the test wants")
	}
	return nil
}

func (d *slowDriver) Down(why string) {
	if why == "stuck" {
		<-d.slow
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.downs = append(d.downs, why)
}

func (d *slowDriver) Up() {}

func (d *slowDriver) Leave(context.Context, bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = true
	return errors.New("as the test wants")
}

func (d *slowDriver) applied() []PeerChange {
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
func parent(t *testing.T, d *slowDriver) (*conn, chan error) {
	ours, theirs := net.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(t.Context(), theirs, slog.New(slog.DiscardHandler), func(report func(routes.Session)) Driver {
			d.report = report
			return d
		})
	}()
	synctest.Wait()
	return newConn(ours), ended
}

func send(t *testing.T, c *conn, o order) {
	t.Helper()
	if err := c.send(o); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// with returns a change with the route of a prefix.
func with(full bool, serial uint64, last int) order {
	return order{Change: &PeerChange{Full: full, Serial: serial, Peer: *peer(254),
		Routes: map[netip.Prefix]*view.Attributes{prefix(fmt.Sprintf("203.0.113.%d/32", last)): {}}}}
}

// TestAppliedAgain: after a failure the change is applied again, with increasing pauses. A later change does not wait
// for that, and includes it.
func TestAppliedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowDriver{fails: 3}
		c, ended := parent(t, d)
		began := time.Now()
		is := func(n, prefixes int) {
			t.Helper()
			if did := d.applied(); len(did) != n || !did[n-1].Full || len(did[n-1].Routes) != prefixes {
				t.Fatalf("after %v applied is %+v, want %d, the last with %d routes", time.Since(began), did, n, prefixes)
			}
		}
		send(t, c, with(true, 1, 1))
		is(1, 1)
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		is(2, 1)
		send(t, c, with(false, 2, 2))
		is(3, 2)
		time.Sleep(time.Minute)
		synctest.Wait()
		is(4, 2)
		send(t, c, with(false, 3, 3))
		if did := d.applied(); len(did) != 5 || did[4].Full || len(did[4].Routes) != 1 {
			t.Errorf("at last applied is %+v", did)
		}
		c.Close()
		if err := <-ended; err == nil {
			t.Error("it did not end with its parent")
		}
	})
}

// TestStatus: a serial is reported when its change and all before it are applied, not while a failure persists, and not
// before the driver has reported the session.
func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowDriver{fails: 1}
		c, ended := parent(t, d)
		statuses := make(chan peerStatus, 10)
		go func() {
			defer close(statuses)
			for {
				var s peerStatus
				if c.receive(&s) != nil {
					return
				}
				statuses <- s
			}
		}()
		next := func(serial uint64) {
			t.Helper()
			synctest.Wait()
			if s := <-statuses; s.Applied != serial || s.Session.State != routes.SessionActive || len(statuses) > 0 {
				t.Errorf("the status is %+v, want of %d, and %d more", s, serial, len(statuses))
			}
		}
		send(t, c, with(true, 4, 1))
		send(t, c, with(false, 5, 2))
		if len(statuses) > 0 {
			t.Errorf("without a session the status is %+v", <-statuses)
		}
		d.report(routes.Session{State: routes.SessionActive})
		next(5)
		send(t, c, with(false, 6, 3))
		next(6)
		d.mu.Lock()
		d.fails = 1
		d.mu.Unlock()
		send(t, c, with(false, 7, 4))
		if len(statuses) > 0 {
			t.Errorf("after a failure the status is %+v", <-statuses)
		}
		time.Sleep(2 * firstApplyRetry)
		next(7)
		c.Close()
		<-ended
		if s, more := <-statuses; more {
			t.Errorf("something else is reported: %+v", s)
		}
	})
}

// TestDownMeanwhile: a session goes down while changes are applied; the changes are merged.
func TestDownMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowDriver{slow: make(chan struct{})}
		c, ended := parent(t, d)
		send(t, c, with(true, 1, 1))
		send(t, c, with(false, 2, 2))
		send(t, c, with(false, 3, 3))
		send(t, c, order{Down: "x"})
		if !slices.Equal(d.down(), []string{"x"}) || len(d.applied()) != 0 {
			t.Errorf("down are %v, applied is %+v", d.down(), d.applied())
		}
		close(d.slow)
		synctest.Wait()
		if did := d.applied(); len(did) != 2 || len(did[1].Routes) != 2 {
			t.Errorf("applied is %+v", did)
		}
		send(t, c, order{Leave: &Leave{}})
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
		send(t, c, with(true, 1, 1))
		send(t, c, order{Leave: &Leave{}})
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
	for name, first := range map[string]func(t *testing.T, c *conn){
		"apply": func(t *testing.T, c *conn) { send(t, c, with(true, 1, 1)) },
		"down":  func(t *testing.T, c *conn) { send(t, c, order{Down: "stuck"}) },
		"leave": func(t *testing.T, c *conn) {
			send(t, c, with(true, 1, 1))
			send(t, c, order{Leave: &Leave{}})
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
