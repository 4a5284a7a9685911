package allocation

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/servicerecord"
)

// waiting gives the only address to s1; s2 and s3 wait for it. s1 is released, so that s2 gets the address.
func waiting(t *testing.T) (f *fixture, s2 *v1.Service) {
	f = newFixture(t, "203.0.113.4")
	f.Adopt()
	s1, s2, s3 := ccmtest.ServiceFor("s1"), ccmtest.ServiceFor("s2"), ccmtest.ServiceFor("s3")
	for _, svc := range []*v1.Service{s1, s2, s3} {
		f.Ensure(svc)
	}
	if err := f.Ledger.Release(t.Context(), servicerecord.KeyOf(s1), s1.UID); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.Woken, []string{"s2"}) {
		t.Fatalf("woken %v", f.Woken)
	}
	return f, s2
}

// TestAddressOfADeletedOne: the Service is deleted after it got the address, and before that is written.
func TestAddressOfADeletedOne(t *testing.T) {
	f, s2 := waiting(t)
	f.Ledger.serviceDeleted(t.Context(), servicerecord.KeyOf(s2), s2.UID)
	if !slices.Equal(f.Woken, []string{"s2", "s3"}) {
		t.Errorf("requeued %v", f.Woken)
	}
}

// TestWriteOfAnEarlierDecision: a Service gets an address while its decision to wait is being written. That write does
// not count as the one of the address, and the difference is not another writer's.
func TestWriteOfAnEarlierDecision(t *testing.T) {
	f, s2 := waiting(t)
	waits := f.Ledger.settings.OutcomeOf(s2, nil, "PoolExhausted", "waits")
	f.Ledger.Written(s2, nil, waits, s2)
	if _, settled := f.Ledger.current(s2); settled {
		t.Error("the decision counts as written")
	}
	f.Expect(f.Ensure(s2), "1 writes, 203.0.113.4 Proxy, Allocated")
	if _, settled := f.Ledger.current(s2); !settled {
		t.Error("the decision is written and does not count as such")
	}
}
