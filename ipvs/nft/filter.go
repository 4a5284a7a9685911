// Package nft keeps tables of its own in nftables, one for IPv4 and one for IPv6, as an [ipvs.Filter] says, and an accept rule in
// the chains of iptables where there are any. It touches nothing else.
package nft

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// TableName is the name of our tables, of the families ip and ip6.
const TableName = "ironlb"

// ErrNoCommand is wrapped by New when the program nft is not there.
var ErrNoCommand = errors.New("nft not found: install the package nftables")

// Filter is our tables in one network namespace. It is safe for concurrent use.
type Filter struct {
	// DropPing makes virtual addresses not answer ICMP echo requests. It takes effect with the next Build.
	DropPing bool

	mu      sync.Mutex
	changes *nftwatch.Watch
	tables  [len(families)]*table
}

// New finds the program nft and tries whether it may be used. It changes nothing. A kernel without IPv6 is no error as long as
// nobody wants an IPv6 element.
//
// Every later call acts on the network namespace of the thread that makes it.
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

// run carries out a transaction of ours on a table, and notices any other that touched our tables meanwhile.
func (f *Filter) run(ctx context.Context, t *table, tx *knftables.Transaction) error {
	f.notice(nil)
	if err := t.nft.Run(ctx, tx); err != nil {
		return err
	}
	f.notice(t)
	return nil
}

// notice looks for transactions since the last call that are not ours; ours, if any, was one on the given table.
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

// check refuses what no table can hold.
func (f *Filter) check(e ipvs.Element) error {
	if wrong := validate(e); wrong != "" {
		return fmt.Errorf("element %v: %s", e, wrong)
	}
	return f.tables[familyOf(e)].usable()
}

// Build makes the tables anew, each in one transaction in place of what is there, also of what an earlier process left: packets
// meet the old rules or the new ones. It returns how many elements were written.
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
	f.notice(nil) // what is replaced now does not count
	built, spoiled, suspect := t.built, t.spoiled, t.suspect
	t.built, t.spoiled, t.suspect = false, false, false
	elements, groups := reduce(want)
	if err := f.run(ctx, t, t.replacement(elements, !f.DropPing)); err != nil {
		t.built, t.spoiled, t.suspect = built, spoiled || t.spoiled, suspect || t.suspect // as it was
		return 0, err
	}
	_, shape, err := list(ctx, t.family, true)
	if err != nil {
		return 0, fmt.Errorf("read it back: %w", err)
	}
	f.notice(nil)
	t.built, t.shape, t.have, t.groups = true, shape, want, groups
	return len(elements), nil
}

// Update carries out changes to what was built, each family's in one transaction that holds only elements, and returns how many
// it wrote. Of a family with an error nothing was changed; Check tells whether another program has changed it, so that it must be built
// anew. What is so already is left out: after an error the same changes can be tried again, also in parts.
//
// Order owed by the caller: additions before virtual servers are added, deletions after they are gone. So no virtual server is ever
// without its rules.
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
		if err := f.run(ctx, t, t.edit(written)); err != nil {
			_, t.groups = reduce(t.have)
			return 0, err
		}
	}
	t.record(changes)
	return len(written), nil
}

// Check tells whether the kernel's tables are as built and updated since. If they are not, Update fails until the next Build; a
// change that was not ours is reason enough, whatever it was. A table is listed only when notifications were lost, so that a
// Check costs a system call.
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

// List returns what the sets of the kernel's tables hold, nothing when there are none. Prefixes that others contain are not among
// it. After a restart its Addresses are ours: an address is there before its first virtual server and until after its last.
func (f *Filter) List(ctx context.Context) (ipvs.Filter, error) {
	all := make(ipvs.Filter)
	for _, t := range f.tables {
		if t.nft == nil {
			continue
		}
		have, _, err := list(ctx, t.family, false)
		if err != nil && !errors.Is(err, errForeignContent) {
			return nil, fmt.Errorf("list %v: %w", t, err)
		}
		for e := range have {
			all[e] = struct{}{}
		}
	}
	return all, nil
}

// Remove deletes our tables. It succeeds when there are none.
func (f *Filter) Remove(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, t := range f.tables {
		t.built = false
		if t.nft == nil {
			continue
		}
		if err := f.run(ctx, t, t.replacement(nil, true)); err != nil {
			errs = append(errs, fmt.Errorf("delete %v: %w", t, err))
		}
	}
	return errors.Join(errs...)
}
