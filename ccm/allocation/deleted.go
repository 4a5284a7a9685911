package allocation

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/ccm/servicerecord"
)

// inCache reports whether the cache has the Service.
func (r *Registrar) inCache(svc *v1.Service) bool {
	if r.services == nil {
		return true
	}
	now, err := r.services.Services(svc.Namespace).Get(svc.Name)
	return err == nil && now.UID == svc.UID
}

// releaseDeleted frees what was assigned to a Service without a write, if its deletion has been handled before: no
// write will fail, and no event will come. If the cache still has the Service, its deletion is handled later.
func (r *Registrar) releaseDeleted(ctx context.Context, svc *v1.Service) error {
	if r.inCache(svc) {
		return nil
	}
	return r.ledger.Release(ctx, servicerecord.KeyOf(svc), svc.UID)
}

// unconfirmed returns the Services that hold something by their record and that are not in the cache. They were listed
// at the start, and may have been created and deleted without an event in the cache.
func (r *Registrar) unconfirmed(listed []v1.Service) (out []*v1.Service) {
	for i := range listed {
		if svc := &listed[i]; r.ledger.hasEntry(svc) && !r.inCache(svc) {
			out = append(out, svc)
		}
	}
	return out
}

// releaseUnconfirmed queries the API server for the Services that are not in the cache, releases the deleted ones, and
// returns the others for another check.
func (r *Registrar) releaseUnconfirmed(ctx context.Context, unconfirmed []*v1.Service) (left []*v1.Service) {
	for _, svc := range unconfirmed {
		if r.inCache(svc) {
			continue
		}
		now, err := servicerecord.Read(ctx, r.api, svc)
		if err != nil || now != nil {
			left = append(left, svc)
			continue
		}
		r.Log.Info("released a Service that was deleted during the start", "service", servicerecord.KeyOf(svc))
		_ = r.ledger.Release(ctx, servicerecord.KeyOf(svc), svc.UID) // fails only while it waits for adopted addresses
	}
	return left
}
