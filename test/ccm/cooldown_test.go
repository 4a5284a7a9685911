package ccm

import (
	"context"
	"testing"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/eventually"
)

// TestCoolDown: the next leader does not give a freed address of a pool with reuseAfter to another Service, whether the
// previous leader was stopped right after it freed the address, or was killed.
func TestCoolDown(t *testing.T) {
	f := use(t, "cooldown")
	serve := func(name, want string) {
		t.Helper()
		f.create(name, nil)
		f.becomes(name, "Allocated", want)
	}
	f.must(f.AddNodes(f.ctx, 1))
	f.apply(`{apiVersion: ironlb.io/v1alpha1, kind: IPAddressPool, metadata: {name: web},
		spec: {addresses: ["2001:db8:1::4/126"], reuseAfter: 1h}}`)

	first := f.start(alone)
	serve("a", "2001:db8:1::4")
	f.end("a")
	f.stop(first)
	second := f.start(alone)
	serve("b", "2001:db8:1::5")
	f.end("b")
	eventually.Nil(t, patience, "two addresses to cool down", func(context.Context) error {
		var obj v1alpha1.IPAddressPool
		f.read("ipaddresspools/web", &obj)
		return eventually.Unless(len(obj.Status.CoolingDown) == 2, "the pool's status is %+v", obj.Status)
	})
	f.must(second.Kill())
	f.start(alone)
	serve("c", "2001:db8:1::6")
	serve("a", "2001:db8:1::4")
}
