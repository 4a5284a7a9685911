package ccm

import (
	"context"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/ccm/rig"
	"github.com/ironlb/ironlb/test/eventually"
)

// TestWritesPerService counts the writes of ironlb-ccm for a Service that is served at once, and for one that must wait
// first: three and five, Events included.
func TestWritesPerService(t *testing.T) {
	const namespace = "writes"
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	f := unmanagedCCM{T: t, Rig: rig.Start(t, rig.Config{Audit: true}), ctx: ctx, namespace: namespace}
	f.must(f.Apply(ctx, `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: one}
spec: {addresses: ["2001:db8:1::1"]}
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: all}
spec: {}
`))
	f.must(f.AddNodes(ctx, 2))
	f.must(f.Namespace(ctx, namespace))
	p, err := f.StartCCM(ctx, firstPort, "--leader-elect=false")
	f.must(err)
	f.must(p.WaitReady(ctx, time.Minute))
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
	eventually.True(f, patience, "the first is served", func() bool { return len(ingress(f.get("first"))) == 1 })
	expect("a Service that is served at once", "create events 1, patch services/status 1, create virtualips 1")
	f.create("second", nil)
	eventually.True(f, patience, "the second waits", func() bool { return f.reason("second") == "PoolExhausted" })
	expect("one that waits", "create events 1, patch services/status 1")
	f.must(f.services().Delete(ctx, "first", metav1.DeleteOptions{}))
	eventually.True(f, patience, "the second is served", func() bool { return len(ingress(f.get("second"))) == 1 })
	got := writes()
	if n := got[rig.Write{Verb: "patch", Resource: "services/status"}]; n != 2 { // the first one's finalizer, the second one's address
		t.Errorf("the end of the one and the service of the other cost %d patches of Services, want 2", n)
	}
	delete(got, rig.Write{Verb: "patch", Resource: "services/status"})
	delete(got, rig.Write{Verb: "delete", Resource: "virtualips"}) // unless it was deleted earlier
	if n := got.Sum(); n != 2 {
		t.Errorf("and %v, want an Event and a VirtualIP", got)
	}
	f.must(p.Stop(10 * time.Second))
}
