package allocation

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// only replaces the pool's addresses by one address.
func (f *conflictFixture) only(address string) {
	f.t.Helper()
	r, err := pools.ParseRanges([]string{address})
	if err != nil {
		f.t.Fatal(err)
	}
	f.Ledger.SetPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
}

// settles serves s from the state of the API server, and expects the shown address and the value recorded as carried
// out.
func (f *conflictFixture) settles(address, recorded string) {
	f.t.Helper()
	f.sync(f.get("s"))
	svc := f.get("s")
	f.Expect(ccmtest.IP(*svc), address)
	done := ""
	if c := meta.FindStatusCondition(svc.Status.Conditions, "ironlb.io/Reallocated"); c != nil {
		done = c.Message
	}
	f.Expect(done, recorded)
}

func reallocate(value string) func(*v1.Service) {
	return ccmtest.Annotate("ironlb.io/reallocate", value)
}

// TestReallocateOnce: each value of the annotation gives up an address that no pool accepts once, also across a
// restart.
func TestReallocateOnce(t *testing.T) {
	f := newConflictFixture(t, "203.0.113.4/32")
	f.create("s", reallocate("true"))
	f.settles("203.0.113.4", "")
	f.only("203.0.113.5/32")
	f.settles("203.0.113.5", "true")
	f.only("203.0.113.6/32")
	f.settles("203.0.113.5", "true")
	svc := f.get("s")
	c := meta.FindStatusCondition(svc.Status.Conditions, v1alpha1.ConditionAllocated)
	want := `set annotation ironlb.io/reallocate to another value than "true"`
	if c == nil || !strings.Contains(c.Message, want) {
		t.Errorf("got %+v, want %s", c, want)
	}

	next := newConflictFixture(t, "203.0.113.6/32")
	next.Ledger = NewLedger(f.Ledger.log, defaults)
	next.Ledger.Requeue, next.Ledger.PoolsChanged = f.Ledger.Requeue, f.Ledger.PoolsChanged
	next.Lb.Registrar.ledger = next.Ledger
	next.only("203.0.113.6/32")
	next.Adopt(svc)
	if err := next.Api.Tracker().Add(svc); err != nil {
		t.Fatal(err)
	}
	next.version = 100
	next.settles("203.0.113.5", "true")
	next.change("s", reallocate("2026-11-23"))
	next.settles("203.0.113.6", "2026-11-23")
}

// TestReallocateAgain: the record is deleted with the annotation; then the same value is another request.
func TestReallocateAgain(t *testing.T) {
	f := newConflictFixture(t, "203.0.113.4/32")
	f.create("s", reallocate("true"))
	f.settles("203.0.113.4", "")
	f.only("203.0.113.5/32")
	f.settles("203.0.113.5", "true")
	f.change("s", func(svc *v1.Service) { delete(svc.Annotations, "ironlb.io/reallocate") })
	f.settles("203.0.113.5", "")
	f.only("203.0.113.6/32")
	f.settles("203.0.113.5", "")
	f.change("s", reallocate("false"))
	f.settles("203.0.113.5", "")
	f.change("s", reallocate("true"))
	f.settles("203.0.113.6", "true")
	f.sync(f.change("s", clusterIP))
	if left := f.get("s").Status.Conditions; len(left) > 0 {
		t.Errorf("residual: %+v", left)
	}
}

// TestReallocateByAnOlderCopy: an older copy of the Service does not carry out the request a second time.
func TestReallocateByAnOlderCopy(t *testing.T) {
	f := newConflictFixture(t, "203.0.113.4/32")
	f.create("s", reallocate("true"))
	f.settles("203.0.113.4", "")
	old := f.get("s")
	f.only("203.0.113.5/32")
	f.settles("203.0.113.5", "true")
	f.only("203.0.113.6/32")
	f.sync(old)
	f.settles("203.0.113.5", "true")
}
