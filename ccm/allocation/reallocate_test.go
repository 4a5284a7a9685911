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
func (s *shop) only(address string) {
	s.t.Helper()
	r, err := pools.ParseRanges([]string{address})
	if err != nil {
		s.t.Fatal(err)
	}
	s.Ledger.SetPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
}

// settles serves s from the state of the API server, and expects the shown address and the value recorded as carried
// out.
func (s *shop) settles(address, recorded string) {
	s.t.Helper()
	s.sync(s.get("s"))
	svc := s.get("s")
	s.Expect(ccmtest.IP(*svc), address)
	done := ""
	if c := meta.FindStatusCondition(svc.Status.Conditions, "ironlb.io/Reallocated"); c != nil {
		done = c.Message
	}
	s.Expect(done, recorded)
}

func reallocate(value string) func(*v1.Service) {
	return ccmtest.Annotate("ironlb.io/reallocate", value)
}

// TestReallocateOnce: each value of the annotation gives up an address that no pool accepts once, also across a
// restart.
func TestReallocateOnce(t *testing.T) {
	s := newShop(t, "203.0.113.4/32")
	s.create("s", reallocate("true"))
	s.settles("203.0.113.4", "")
	s.only("203.0.113.5/32")
	s.settles("203.0.113.5", "true")
	s.only("203.0.113.6/32")
	s.settles("203.0.113.5", "true")
	svc := s.get("s")
	c := meta.FindStatusCondition(svc.Status.Conditions, v1alpha1.ConditionAllocated)
	want := `set annotation ironlb.io/reallocate to another value than "true"`
	if c == nil || !strings.Contains(c.Message, want) {
		t.Errorf("got %+v, want %s", c, want)
	}

	next := newShop(t, "203.0.113.6/32")
	next.Ledger = NewLedger(s.Ledger.log, defaults)
	next.Ledger.Wake, next.Ledger.PoolsChanged = s.Ledger.Wake, s.Ledger.PoolsChanged
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
	s := newShop(t, "203.0.113.4/32")
	s.create("s", reallocate("true"))
	s.settles("203.0.113.4", "")
	s.only("203.0.113.5/32")
	s.settles("203.0.113.5", "true")
	s.change("s", func(svc *v1.Service) { delete(svc.Annotations, "ironlb.io/reallocate") })
	s.settles("203.0.113.5", "")
	s.only("203.0.113.6/32")
	s.settles("203.0.113.5", "")
	s.change("s", reallocate("false"))
	s.settles("203.0.113.5", "")
	s.change("s", reallocate("true"))
	s.settles("203.0.113.6", "true")
	s.sync(s.change("s", clusterIP))
	if left := s.get("s").Status.Conditions; len(left) > 0 {
		t.Errorf("residual: %+v", left)
	}
}

// TestReallocateByAnOlderCopy: an older copy of the Service does not carry out the request a second time.
func TestReallocateByAnOlderCopy(t *testing.T) {
	s := newShop(t, "203.0.113.4/32")
	s.create("s", reallocate("true"))
	s.settles("203.0.113.4", "")
	old := s.get("s")
	s.only("203.0.113.5/32")
	s.settles("203.0.113.5", "true")
	s.only("203.0.113.6/32")
	s.sync(old)
	s.settles("203.0.113.5", "true")
}
