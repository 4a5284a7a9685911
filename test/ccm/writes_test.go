package ccm

import (
	"slices"
	"testing"

	"github.com/ironlb/ironlb/test/ccm/rig"
)

// TestWritesPerService counts the writes of ironlb-ccm for a Service that is served at once, and for one that must wait
// first: three and five, Events included.
func TestWritesPerService(t *testing.T) {
	f := use(t, "writes")
	ctx := f.ctx
	f.advertised("one", "2001:db8:1::1")
	f.must(f.AddNodes(ctx, 2))
	p := f.start(alone)
	last, _, err := f.Settled(ctx)
	f.must(err)
	// writes returns the writes for Services since the last call, without the pool's counts.
	writes := func() rig.Writes {
		t.Helper()
		now, _, err := f.Settled(ctx)
		f.must(err)
		own := now.Since(last).Of()
		last = now
		for k := range own {
			if !slices.Contains([]string{"services", "services/status", "events", "virtualips", "virtualips/status"}, k.Resource) {
				delete(own, k)
			}
		}
		return own
	}
	expect := func(what, want string) {
		t.Helper()
		if got := writes().String(); got != want {
			t.Errorf("%s cost %s, want %s", what, got, want)
		}
	}

	f.create("first", nil)
	f.served("first")
	expect("a Service that is served at once", "create events 1, patch services/status 1, create virtualips 1")
	f.create("second", nil)
	f.becomes("second", "PoolExhausted")
	expect("one that waits", "create events 1, patch services/status 1")
	f.delete("first")
	f.served("second")
	got := writes()
	if n := got[rig.Write{Verb: "patch", Resource: "services/status"}]; n != 2 { // the first one's finalizer, the second one's address
		t.Errorf("the end of the one and the service of the other cost %d patches of Services, want 2", n)
	}
	delete(got, rig.Write{Verb: "patch", Resource: "services/status"})
	delete(got, rig.Write{Verb: "delete", Resource: "virtualips"}) // unless it was deleted earlier
	if n := got.Sum(); n != 2 {
		t.Errorf("and %v, want an Event and a VirtualIP", got)
	}
	f.stop(p)
}
