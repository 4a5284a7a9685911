package speaker

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
)

// filterTries bounds the number of pieces into which a rejected filter change is split.
const filterTries = 40

// wantsElement reports whether the plan contains the element and it does not belong to an address of the node itself.
func (s *Speaker) wantsElement(e ipvs.Element) bool {
	return has(s.desired.Filter, e) && !(e.Key.Addr.IsValid() && has(s.known.blocked, e.Key.Addr))
}

// addElements adds the missing elements, and builds the filter if it is not in force.
func (s *Speaker) addElements(ctx context.Context, todo *work) {
	if !s.known.whole {
		s.buildFilter(ctx)
		return
	}
	var changes []ipvs.FilterChange
	for e := range todo.elements {
		if s.wantsElement(e) && !has(s.known.filter, e) {
			changes = append(changes, ipvs.FilterChange{Element: e})
		}
	}
	s.updateFilter(ctx, changes)
}

// removeElements removes unneeded elements. Elements of an address or virtual server that could not be removed stay as
// long as it does. They record that it is owned by IronLB.
func (s *Speaker) removeElements(ctx context.Context, todo *work) {
	if !s.known.whole {
		return
	}
	var changes []ipvs.FilterChange
	for e := range todo.elements {
		switch {
		case s.wantsElement(e) || !has(s.known.filter, e) || s.keepsElement(e):
		case s.needed(e):
			s.failed.elements[e] = struct{}{}
		default:
			changes = append(changes, ipvs.FilterChange{Element: e, Delete: true})
		}
	}
	s.updateFilter(ctx, changes)
}

// needed reports whether an unwanted element belongs to an address or virtual server that still exists.
func (s *Speaker) needed(e ipvs.Element) bool {
	if e.Key.Port != 0 {
		return has(s.known.table.have, e.Key) && !s.wantsKey(e.Key)
	}
	if e.Set != ipvs.Addresses {
		return false
	}
	for key := range s.known.table.keys[e.Key.Addr] {
		if !s.wantsKey(key) {
			return true
		}
	}
	return has(s.known.addrs, e.Key.Addr)
}

// buildFilter rebuilds the filter from its contents and the desired elements. If that fails, it retries without IPv6,
// which a kernel may lack.
func (s *Speaker) buildFilter(ctx context.Context) {
	want := ipvs.Filter{}
	maps.Copy(want, s.known.filter)
	for e := range s.desired.Filter {
		if s.wantsElement(e) {
			want[e] = struct{}{}
		}
	}
	written, err := s.cfg.Node.Filter.Build(ctx, want)
	if err != nil {
		s.fail(err)
		s.failed.all = true
		six := len(want)
		maps.DeleteFunc(want, func(e ipvs.Element, _ struct{}) bool { return !e.Is4() })
		if six == len(want) {
			return
		}
		if written, err = s.cfg.Node.Filter.Build(ctx, want); err != nil {
			return
		}
	}
	s.known.filter, s.lastFilter, s.known.whole = want, want, true
	s.log("set filter", "elements", written, "reason", s.reason)
}

// updateFilter changes some elements. If that fails because another program changed the tables, it rebuilds them at
// once.
func (s *Speaker) updateFilter(ctx context.Context, changes []ipvs.FilterChange) {
	if len(changes) == 0 {
		return
	}
	ipvs.SortFilterChanges(changes)
	written, err := s.update(ctx, changes)
	if err != nil {
		if intact, checkErr := s.cfg.Node.Filter.Check(ctx); checkErr == nil && !intact {
			s.known.whole = false
			s.failed.all = true // observe what else was changed
			s.buildFilter(ctx)
			return
		}
		// A rejected element must not block the others. IPv6 elements are the likeliest ones: the kernel may lack IPv6.
		slices.SortStableFunc(changes, func(a, b ipvs.FilterChange) int { return family(a) - family(b) })
		tries := filterTries
		written, err = s.halves(ctx, changes, err, &tries)
		s.fail(err)
	}
	if written > 0 {
		s.log("set filter", "elements", written, "reason", s.reason)
	}
}

// update applies changes, all or none.
func (s *Speaker) update(ctx context.Context, changes []ipvs.FilterChange) (written int, err error) {
	if written, err = s.cfg.Node.Filter.Update(ctx, changes); err != nil {
		return 0, err
	}
	for _, c := range changes {
		if c.Delete {
			delete(s.known.filter, c.Element)
		} else {
			s.known.filter[c.Element] = struct{}{}
		}
	}
	return written, nil
}

// halves splits changes that failed together and applies the parts, recursively. A change that fails alone stays
// pending.
func (s *Speaker) halves(ctx context.Context, changes []ipvs.FilterChange, cause error, tries *int) (written int, err error) {
	if len(changes) == 1 || *tries < 2 || ctx.Err() != nil {
		for _, c := range changes {
			s.failed.elements[c.Element] = struct{}{}
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
		n, err := s.update(ctx, part)
		if err != nil {
			n, err = s.halves(ctx, part, err, tries)
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
func (s *Speaker) lacking() map[ipvs.Key]bool {
	if len(s.failed.elements) == 0 {
		return nil
	}
	out := map[ipvs.Key]bool{}
	for e := range s.failed.elements {
		if s.wantsElement(e) && ofVirtual(e) {
			out[e.Key] = true
		}
	}
	return out
}
