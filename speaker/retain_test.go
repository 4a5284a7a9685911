package speaker

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// A restarted speaker hands over nothing: the kernel answers until the next process does, with the same claims.
func TestRetains(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := held(t)
		claim := r.claim(vip1)
		r.speaker.Retain()
		r.speaker.Leave()
		if err := <-r.done; err != nil {
			t.Fatal(err)
		}
		r.fixture.mu.Lock()
		if !has(r.retained, vip1) || len(r.announced) != 1 {
			t.Errorf("retained %v, announced %v", r.retained, r.announced)
		}
		r.fixture.mu.Unlock()
		if state := r.detector.state(); state.Claims[vip1.String()] != claim || state.Leaving || r.detector.retained != retainFor+retainMore {
			t.Errorf("published %+v, retained for %v", state, r.detector.retained)
		}
		r.fixture.restart()
		again := startWith(t, r.fixture, r.cluster, options)
		defer again.stop()
		again.detector.set(func(d *fixtureDetector) { d.observer = true })
		synctest.Wait()
		if again.detector.settled != 0 || len(r.retained) != 1 {
			t.Errorf("settled %d times before it was decided, retained %v", again.detector.settled, r.retained)
		}
		again.detector.set(func(d *fixtureDetector) { d.observer = false })
		synctest.Wait()
		if len(r.retained) != 0 || len(r.announced) != 1 || again.detector.settled != 1 {
			t.Errorf("retained %v, announced %v, settled %d times", r.retained, r.announced, again.detector.settled)
		}
		if log := again.log.String(); !strings.Contains(log, "msg=release address="+vip1.String()+" answered=true") {
			t.Errorf("log:\n%s", log)
		}
	})
}

// A retained address that another node owns by now is released, and so is one without a VirtualIP.
func TestReleases(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "b", "a") // b owns it
		f := newFixture(t)
		stray := netip.MustParseAddr("203.0.113.99")
		f.retained = map[netip.Addr]struct{}{vip1: {}, stray: {}}
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		r.wantPlanned(t)
		synctest.Wait()
		if len(f.retained) != 0 || r.detector.settled != 1 {
			t.Errorf("retained %v, settled %d times", f.retained, r.detector.settled)
		}
	})
}

// Addresses that cannot be retained are handed over.
func TestHandsOverWhatItCannotRetain(t *testing.T) {
	for name, harm := range map[string]func(*run){
		"not asked":      func(*run) {},
		"asked long ago": func(r *run) { r.speaker.Retain(); time.Sleep(retainWithin + time.Second) },
		"the kernel does not": func(r *run) {
			r.fixture.mu.Lock()
			r.failRetain = map[netip.Addr]bool{vip1: true}
			r.fixture.mu.Unlock()
			r.speaker.Retain()
		},
		"the node shuts down": func(r *run) {
			r.touch(func(v *view.View) view.Touched {
				node := v.Nodes["a"]
				node.Stopping = true
				v.Nodes["a"] = node
				return view.Touched{Nodes: map[string]struct{}{"a": {}}}
			})
			synctest.Wait()
			r.speaker.Retain()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				r := held(t)
				harm(r)
				r.speaker.Leave()
				synctest.Wait()
				if c := r.claim(vip1); c.State != view.HandingOver || c.Successor != "b" || len(r.retained) != 0 || r.detector.retained != 0 {
					t.Errorf("got claim %+v, retained %v for %v", c, r.retained, r.detector.retained)
				}
				r.detector.set(func(d *fixtureDetector) {
					d.override = map[string]view.Claim{vip1.String(): {State: view.Held, Rank: 1}}
				})
				if err := <-r.done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
