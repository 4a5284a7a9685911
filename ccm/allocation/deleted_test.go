package allocation

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/ccm/servicerecord"
)

// cached sets up a cache for the shop's controllers and returns it.
func (s *shop) cached() cache.Indexer {
	all := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	s.Lb.Registrar.services = corelisters.NewServiceLister(all)
	return all
}

// TestDeletedDuringTheStart: a Service that shows its address is deleted. The deletion is handled while the start still
// uses an older copy, which needs no write. What the Service held is freed.
func TestDeletedDuringTheStart(t *testing.T) {
	for name, check := range map[string]func(*shop, *v1.Service){
		"settled": func(s *shop, svc *v1.Service) { s.Lb.Registrar.settled(s.t.Context(), svc) },
		"served":  func(s *shop, svc *v1.Service) { s.serve(svc) },
	} {
		t.Run(name, func(t *testing.T) {
			before := newShop(t, "203.0.113.4/32")
			before.sync(before.create("s"))
			svc := before.get("s")

			s := newShop(t, "203.0.113.4/32")
			s.cached()
			s.Ledger.serviceDeleted(t.Context(), servicerecord.KeyOf(svc), svc.UID)
			check(s, svc)
			if s.Ledger.hasEntry(svc) {
				t.Error("the ledger has it")
			}
			s.sync(s.create("t"))
			s.shown("t", "203.0.113.4")
		})
	}
}

// TestUnconfirmed: a Service that is listed at the start and never appears in the cache is released once it is deleted,
// but not while the cache only lags.
func TestUnconfirmed(t *testing.T) {
	s := newShop(t, "203.0.113.4/31")
	all := s.cached()
	for _, name := range []string{"s", "late"} {
		s.sync(s.create(name))
	}
	gone, late := s.get("s"), s.get("late")
	r := s.Lb.Registrar
	left := r.unconfirmed([]v1.Service{*gone, *late})
	if err := s.Api.Tracker().Delete(servicesResource, "default", "s"); err != nil {
		t.Fatal(err)
	}
	if left = r.releaseUnconfirmed(t.Context(), left); len(left) != 1 || left[0].Name != "late" {
		t.Fatalf("%d to check again", len(left))
	}
	if s.Ledger.hasEntry(gone) || !s.Ledger.hasEntry(late) {
		t.Errorf("entries: %v of the deleted one, %v of the other", s.Ledger.hasEntry(gone), s.Ledger.hasEntry(late))
	}
	if err := all.Add(late); err != nil {
		t.Fatal(err)
	}
	if left = r.releaseUnconfirmed(t.Context(), left); len(left) != 0 || !s.Ledger.hasEntry(late) {
		t.Errorf("%d to check again", len(left))
	}
}
