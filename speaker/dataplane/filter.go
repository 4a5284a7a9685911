package dataplane

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
)

// filterTries bounds the number of pieces into which a rejected filter change is split.
const filterTries = 40

// wantsElement reports whether the plan contains the element and it does not belong to an address of the node itself.
func (d *DataPlane) wantsElement(e ipvs.Element) bool {
	return has(d.in.Desired.Filter, e) && !(e.Key.Addr.IsValid() && has(d.known.blocked, e.Key.Addr))
}

// addElements adds the missing elements, and builds the filter if it is not in force.
func (d *DataPlane) addElements(ctx context.Context, todo *Work) {
	if !d.known.intact {
		d.buildFilter(ctx)
		return
	}
	var changes []ipvs.FilterChange
	for e := range todo.Elements {
		if d.wantsElement(e) && !has(d.known.filter, e) {
			changes = append(changes, ipvs.FilterChange{Element: e})
		}
	}
	d.updateFilter(ctx, changes)
}

// removeElements removes unneeded elements. Elements of an address or virtual server that could not be removed stay as
// long as it does. They record that it is owned by IronLB.
func (d *DataPlane) removeElements(ctx context.Context, todo *Work) {
	if !d.known.intact {
		return
	}
	var changes []ipvs.FilterChange
	for e := range todo.Elements {
		switch {
		case d.wantsElement(e) || !has(d.known.filter, e):
		case d.needed(e):
			d.failed.Elements[e] = struct{}{}
		default:
			changes = append(changes, ipvs.FilterChange{Element: e, Delete: true})
		}
	}
	d.updateFilter(ctx, changes)
}

// needed reports whether an unwanted element belongs to an address or virtual server that still exists.
func (d *DataPlane) needed(e ipvs.Element) bool {
	if e.Key.Port != 0 {
		return has(d.known.table.have, e.Key) && !d.wantsKey(e.Key)
	}
	if e.Set != ipvs.Addresses {
		return false
	}
	for key := range d.known.table.keys[e.Key.Addr] {
		if !d.wantsKey(key) {
			return true
		}
	}
	return has(d.known.addrs, e.Key.Addr)
}

// buildFilter rebuilds the filter from its contents and the desired elements. If that fails, it retries without IPv6,
// which a kernel may lack.
func (d *DataPlane) buildFilter(ctx context.Context) {
	want := ipvs.Filter{}
	maps.Copy(want, d.known.filter)
	for e := range d.in.Desired.Filter {
		if d.wantsElement(e) {
			want[e] = struct{}{}
		}
	}
	written, err := d.drivers.Filter.Build(ctx, want)
	if err != nil {
		d.fail(err)
		d.failed.All = true
		six := len(want)
		maps.DeleteFunc(want, func(e ipvs.Element, _ struct{}) bool { return !e.Is4() })
		if six == len(want) {
			return
		}
		if written, err = d.drivers.Filter.Build(ctx, want); err != nil {
			return
		}
	}
	d.known.filter, d.lastFilter, d.known.intact = want, want, true
	d.cfg.Record(slog.LevelInfo, "set filter", "elements", written, "reason", d.in.Reason)
}

// updateFilter changes some elements. If that fails because another program changed the tables, it rebuilds them at
// once.
func (d *DataPlane) updateFilter(ctx context.Context, changes []ipvs.FilterChange) {
	if len(changes) == 0 {
		return
	}
	ipvs.SortFilterChanges(changes)
	written, err := d.update(ctx, changes)
	if err != nil {
		if intact, checkErr := d.drivers.Filter.Check(ctx); checkErr == nil && !intact {
			d.known.intact = false
			d.failed.All = true // observe what else was changed
			d.buildFilter(ctx)
			return
		}
		// A rejected element must not block the others. IPv6 elements are the likeliest ones: the kernel may lack IPv6.
		slices.SortStableFunc(changes, func(a, b ipvs.FilterChange) int { return family(a) - family(b) })
		tries := filterTries
		written, err = d.halves(ctx, changes, err, &tries)
		d.fail(err)
	}
	if written > 0 {
		d.recordFilter(changes, written)
	}
}

// recordFilter records a change. Elements follow virtual servers and endpoints, except for allowed sources.
func (d *DataPlane) recordFilter(changes []ipvs.FilterChange, written int) {
	d.cfg.Record(slog.LevelDebug, "set filter", "elements", written, "reason", d.in.Reason)
	services := map[pools.ServiceKey]struct{}{}
	for _, c := range changes {
		of, planned := d.in.Desired.ServicePorts[c.Element.Key]
		if planned && (c.Element.Set == ipvs.Allowed || c.Element.Set == ipvs.Restricted) {
			services[of.Service] = struct{}{}
		}
	}
	for _, service := range slices.SortedFunc(maps.Keys(services), pools.ServiceKey.Compare) {
		d.cfg.Record(slog.LevelInfo, "set allowed sources", "service", service, "reason", d.in.Reason)
	}
}

// update applies changes, all or none.
func (d *DataPlane) update(ctx context.Context, changes []ipvs.FilterChange) (written int, err error) {
	if written, err = d.drivers.Filter.Update(ctx, changes); err != nil {
		return 0, err
	}
	for _, c := range changes {
		if c.Delete {
			delete(d.known.filter, c.Element)
		} else {
			d.known.filter[c.Element] = struct{}{}
		}
	}
	return written, nil
}

// halves splits changes that failed together and applies the parts, recursively. A change that fails alone stays
// pending.
func (d *DataPlane) halves(ctx context.Context, changes []ipvs.FilterChange, cause error, tries *int) (written int, err error) {
	if len(changes) == 1 || *tries < 2 || ctx.Err() != nil {
		for _, c := range changes {
			d.failed.Elements[c.Element] = struct{}{}
		}
		return 0, cause
	}
	cut := len(changes) / 2
	if six := slices.IndexFunc(changes, func(c ipvs.FilterChange) bool { return family(c) == 6 }); six > 0 {
		cut = six
	}
	var errs []error
	for _, part := range [][]ipvs.FilterChange{changes[:cut], changes[cut:]} {
		*tries--
		n, err := d.update(ctx, part)
		if err != nil {
			n, err = d.halves(ctx, part, err, tries)
		}
		written += n
		errs = append(errs, err)
	}
	return written, errors.Join(errs...)
}

func family(c ipvs.FilterChange) int {
	if c.Element.Is4() {
		return 4
	}
	return 6
}

// lacking returns the virtual servers for which the filter lacks an element, and the addresses, as keys without a port.
func (d *DataPlane) lacking() map[ipvs.Key]bool {
	if len(d.failed.Elements) == 0 {
		return nil
	}
	out := map[ipvs.Key]bool{}
	for e := range d.failed.Elements {
		if d.wantsElement(e) && ofVirtual(e) {
			out[e.Key] = true
		}
	}
	return out
}
