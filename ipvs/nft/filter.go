// Package nft maintains its own nftables tables, one for IPv4 and one for IPv6, as specified by an [ipvs.Filter], and
// an accept rule in existing iptables chains. It touches nothing else.
package nft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"sync"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// TableName is the name of the package's tables, of the families ip and ip6.
const TableName = "ironlb"

// ErrNoCommand is wrapped by New if the program nft is missing.
var ErrNoCommand = errors.New("nft not found: install the package nftables")

// Filter is the package's tables in one network namespace. It is safe for concurrent use.
type Filter struct {
	// DropPing makes virtual addresses ignore ICMP echo requests. It takes effect with the next Build.
	DropPing bool

	mu      sync.Mutex
	changes *nftwatch.Watch
	tables  [len(families)]*table
}

// New finds the program nft and checks that it may be used. It changes nothing. A kernel without IPv6 is not an error
// as long as no IPv6 element is wanted.
//
// Every later call acts on the network namespace of the calling thread.
func New() (*Filter, error) {
	f := &Filter{}
	for i, family := range families {
		f.tables[i] = openTable(family)
	}
	err := f.tables[0].absent
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("open nftables: %w", ErrNoCommand)
	case err != nil:
		return nil, fmt.Errorf("open nftables (needs CAP_NET_ADMIN and a kernel with nf_tables): %w", err)
	}
	if f.changes, err = nftwatch.Open(TableName); err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return f, nil
}

// Close stops watching. The tables stay.
func (f *Filter) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes.Close()
}

// run carries out an own transaction of nft on a table.
func (f *Filter) run(ctx context.Context, t *table, tx *knftables.Transaction) error {
	return f.counted(t, func() error { return t.nft.Run(ctx, tx) })
}

// counted carries out an own transaction on a table, and detects any foreign one that touched the tables meanwhile.
func (f *Filter) counted(t *table, transact func() error) error {
	f.notice(nil)
	if err := transact(); err != nil {
		return err
	}
	f.notice(t)
	return nil
}

// notice detects foreign transactions since the last call; the own one, if any, was on the given table.
func (f *Filter) notice(ours *table) {
	counts, err := f.changes.Count()
	for i, t := range f.tables {
		if err != nil {
			t.suspect = true
			continue
		}
		if t == ours {
			counts[i]--
		}
		if counts[i] != 0 {
			t.spoiled = true
		}
	}
}

// check refuses elements that no table can hold.
func (f *Filter) check(e ipvs.Element) error {
	if wrong := validate(e); wrong != "" {
		return fmt.Errorf("element %v: %s", e, wrong)
	}
	return f.tables[familyOf(e)].usable()
}

// Build makes the tables equal to the filter, whatever exists, and returns the number of elements written. A table with
// the definition that an earlier Build gave it gets the differences. A table of an earlier process, or with other
// rules, is replaced in one transaction: packets meet the old rules or the new ones.
//
// A family without elements has no table.
func (f *Filter) Build(ctx context.Context, want ipvs.Filter) (int, error) {
	var wanted [len(families)]ipvs.Filter
	for i := range wanted {
		wanted[i] = make(ipvs.Filter)
	}
	for e := range want {
		if err := f.check(e); err != nil {
			return 0, fmt.Errorf("build nftables tables %s: %w", TableName, err)
		}
		wanted[familyOf(e)][e] = struct{}{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	elements := 0
	var errs []error
	for i, t := range f.tables {
		if t.nft == nil {
			t.built, t.have = true, wanted[i] // empty
			continue
		}
		n, err := f.build(ctx, t, wanted[i])
		elements += n
		if err != nil {
			errs = append(errs, fmt.Errorf("build %v: %w", t, err))
		}
	}
	return elements, errors.Join(errs...)
}

func (f *Filter) build(ctx context.Context, t *table, want ipvs.Filter) (int, error) {
	f.notice(nil) // earlier changes do not count, since the table is made equal to the filter
	built, spoiled, suspect := t.built, t.spoiled, t.suspect
	t.built, t.spoiled, t.suspect = false, false, false
	elements, groups := reduce(want)
	written, err := f.write(ctx, t, elements)
	if err != nil {
		t.built, t.spoiled, t.suspect = built, spoiled || t.spoiled, suspect || t.suspect
		return 0, err
	}
	if t.definition, err = definition(t.family); err != nil {
		return 0, fmt.Errorf("read it back: %w", err)
	}
	f.notice(nil)
	t.trusted, t.ping = !t.spoiled && !t.suspect, !f.DropPing
	t.built, t.have, t.groups = true, want, groups
	return written, nil
}

// Update applies changes to the built tables, per family in one transaction that contains only elements, and returns
// the number of elements written. A family with an error is unchanged. Check reports whether another program has
// changed it, so that it must be rebuilt. Changes that are already in place are skipped: after an error the same
// changes can be retried, also in parts.
//
// Order required of the caller: additions before virtual servers are added, deletions after they are removed. A virtual
// server is then never without its rules.
func (f *Filter) Update(ctx context.Context, changes []ipvs.FilterChange) (int, error) {
	var parts [len(families)][]ipvs.FilterChange
	for _, c := range changes {
		if err := f.check(c.Element); err != nil {
			return 0, fmt.Errorf("update nftables tables %s: %w", TableName, err)
		}
		i := familyOf(c.Element)
		parts[i] = append(parts[i], c)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	elements := 0
	var errs []error
	for i, t := range f.tables {
		n, err := f.update(ctx, t, parts[i])
		elements += n
		if err != nil {
			errs = append(errs, fmt.Errorf("update %v: %w", t, err))
		}
	}
	return elements, errors.Join(errs...)
}

func (f *Filter) update(ctx context.Context, t *table, changes []ipvs.FilterChange) (int, error) {
	if !t.built {
		return 0, errNotBuilt
	}
	changes = t.missing(changes)
	switch {
	case len(changes) == 0:
		return 0, nil
	case len(t.have) == 0: // there is no table yet
		want := make(ipvs.Filter, len(changes))
		for _, c := range changes {
			if !c.Delete {
				want[c.Element] = struct{}{}
			}
		}
		return f.build(ctx, t, want)
	}
	written := t.groups.change(changes)
	if len(written) != 0 {
		if err := f.edit(ctx, t, written); err != nil {
			_, t.groups = reduce(t.have)
			return 0, err
		}
	}
	t.record(changes)
	return len(written), nil
}

// Check reports whether the kernel's tables are as built and updated since. If they are not, Update fails until the
// next Build; any foreign change is sufficient. A table is listed only if notifications were lost, so that a Check
// costs a system call.
func (f *Filter) Check(ctx context.Context) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notice(nil)
	intact := true
	for _, t := range f.tables {
		if t.built && !t.spoiled && t.suspect {
			same, err := t.intact(ctx)
			if err != nil {
				return false, fmt.Errorf("list %v: %w", t, err)
			}
			t.suspect, t.spoiled = false, !same
		}
		t.built = t.built && !t.spoiled
		intact = intact && t.built
	}
	return intact, nil
}

// List returns the content of the sets in the kernel's tables, nothing if there are none. Prefixes contained in others
// are left out. After a restart its Addresses identify adopted state: an address is added before its first virtual
// server and deleted after its last.
func (f *Filter) List(ctx context.Context) (ipvs.Filter, error) {
	all := make(ipvs.Filter)
	for _, t := range f.tables {
		if t.nft == nil {
			continue
		}
		have, err := list(ctx, t.family)
		if err != nil {
			return nil, fmt.Errorf("list %v: %w", t, err)
		}
		maps.Copy(all, have.elements)
	}
	return all, nil
}

// Remove deletes the tables. It succeeds if there are none.
func (f *Filter) Remove(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, t := range f.tables {
		t.built = false
		if t.nft == nil {
			continue
		}
		if err := f.run(ctx, t, t.removal()); err != nil {
			errs = append(errs, fmt.Errorf("delete %v: %w", t, err))
		}
	}
	return errors.Join(errs...)
}
