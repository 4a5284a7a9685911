package allocation

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/ccm/servicerecord"
)

// cached sets up a cache for the fixture's controllers and returns it.
func (f *conflictFixture) cached() cache.Indexer {
	all := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	f.Lb.Registrar.services = corelisters.NewServiceLister(all)
	return all
}

// TestDeletedDuringTheStart: a Service that shows its address is deleted. The deletion is handled while the start still
// uses an older copy, which needs no write. What the Service held is freed.
func TestDeletedDuringTheStart(t *testing.T) {
	for name, check := range map[string]func(*conflictFixture, *v1.Service){
		"settled": func(f *conflictFixture, svc *v1.Service) { f.Lb.Registrar.settled(f.t.Context(), svc) },
		"served":  func(f *conflictFixture, svc *v1.Service) { f.serve(svc) },
	} {
		t.Run(name, func(t *testing.T) {
			before := newConflictFixture(t, "203.0.113.4/32")
			before.sync(before.create("s"))
			svc := before.get("s")

			f := newConflictFixture(t, "203.0.113.4/32")
			f.cached()
			f.Ledger.serviceDeleted(t.Context(), servicerecord.KeyOf(svc), svc.UID)
			check(f, svc)
			if f.Ledger.hasEntry(svc) {
				t.Error("the ledger has it")
			}
			f.sync(f.create("t"))
			f.shown("t", "203.0.113.4")
		})
	}
}

// TestUnconfirmed: a Service that is listed at the start and never appears in the cache is released once it is deleted,
// but not while the cache only lags.
func TestUnconfirmed(t *testing.T) {
	f := newConflictFixture(t, "203.0.113.4/31")
	all := f.cached()
	for _, name := range []string{"s", "late"} {
		f.sync(f.create(name))
	}
	gone, late := f.get("s"), f.get("late")
	r := f.Lb.Registrar
	left := r.unconfirmed([]v1.Service{*gone, *late})
	if err := f.Api.Tracker().Delete(servicesResource, "default", "s"); err != nil {
		t.Fatal(err)
	}
	if left = r.releaseUnconfirmed(t.Context(), left); len(left) != 1 || left[0].Name != "late" {
		t.Fatalf("%d to check again", len(left))
	}
	if f.Ledger.hasEntry(gone) || !f.Ledger.hasEntry(late) {
		t.Errorf("entries: %v of the deleted one, %v of the other", f.Ledger.hasEntry(gone), f.Ledger.hasEntry(late))
	}
	if err := all.Add(late); err != nil {
		t.Fatal(err)
	}
	if left = r.releaseUnconfirmed(t.Context(), left); len(left) != 0 || !f.Ledger.hasEntry(late) {
		t.Errorf("%d to check again", len(left))
	}
}
