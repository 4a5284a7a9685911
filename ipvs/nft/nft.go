// Package nft keeps a table of its own in nftables as an [ipvs.Firewall] says. It touches no other table.
package nft

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
)

// TableName is the name of our table, of the family ip.
const TableName = "ironlb"

// ErrNoCommand is wrapped by New when the program nft is not there.
var ErrNoCommand = errors.New("nft not found: install the package nftables")

// Firewall is our table in one network namespace. It is safe for concurrent use.
type Firewall struct {
	nft knftables.Interface

	mu      sync.Mutex
	changes *changes
	// built tells that the kernel's table was made by this process.
	built bool
	// spoiled tells that somebody else has changed it since, suspect that somebody may have since it was last listed.
	spoiled, suspect bool
	// have is the content of its sets, and shape all else of it as listed when it was built.
	have  ipvs.Firewall
	shape string
}

// New finds the program nft and tries whether it may be used. It changes nothing.
//
// Every later call acts on the network namespace of the thread that makes it.
func New() (*Firewall, error) {
	nft, err := knftables.New(knftables.IPv4Family, TableName)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("open nftables: %w", ErrNoCommand)
	case err != nil:
		return nil, fmt.Errorf("open nftables (needs CAP_NET_ADMIN and a kernel with nf_tables): %w", err)
	}
	changes, err := watchChanges()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return &Firewall{nft: nft, changes: changes}, nil
}

// Close stops watching. The table stays.
func (f *Firewall) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	unix.Close(f.changes.fd)
}

// run carries out a transaction of ours, and notices any other that touched the table meanwhile.
func (f *Firewall) run(ctx context.Context, tx *knftables.Transaction) error {
	f.notice(0)
	if err := f.nft.Run(ctx, tx); err != nil {
		return err
	}
	f.notice(1)
	return nil
}

// notice looks for transactions since the last call that are not ours.
func (f *Firewall) notice(ours int) {
	n, err := f.changes.count()
	switch {
	case err != nil:
		f.suspect = true
	case n != ours:
		f.spoiled = true
	}
}

// Apply makes the kernel's table as wanted and returns how many set elements were written.
//
// The first call builds the table in one transaction, in place of one left by an earlier process; packets meet the old
// rules or the new ones. Later calls send only the elements that differ. When that fails, because another program
// changed the table, it is built anew once.
//
// Order owed by the caller: before virtual servers are added, Apply the union of what is and what is wanted; after the
// superfluous ones are gone, what is wanted. So no virtual server is ever without its rules.
func (f *Firewall) Apply(ctx context.Context, want ipvs.Firewall) (int, error) {
	if err := validate(want); err != nil {
		return 0, fmt.Errorf("apply nftables table %s: %w", TableName, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.built {
		changes := diff(f.have, want)
		if len(changes) == 0 {
			return 0, nil
		}
		if f.run(ctx, f.update(changes)) == nil {
			f.record(changes)
			return len(changes), nil
		}
	}
	return f.build(ctx, want)
}

func (f *Firewall) build(ctx context.Context, want ipvs.Firewall) (int, error) {
	f.notice(0) // what is replaced now does not count
	f.built, f.spoiled, f.suspect = false, false, false
	contents := diff(ipvs.Firewall{}, want)
	if err := f.run(ctx, f.rebuild(contents)); err != nil {
		return 0, fmt.Errorf("build nftables table %s: %w", TableName, err)
	}
	_, shape, err := list(ctx)
	if err != nil {
		return 0, fmt.Errorf("read back nftables table %s: %w", TableName, err)
	}
	f.notice(0)
	f.built, f.shape, f.have = true, shape, want.Clone()
	return len(contents), nil
}

// record notes changes that the kernel has taken; copying the whole would cost more than the change.
func (f *Firewall) record(changes []change) {
	for _, c := range changes {
		switch c.set {
		case addressSet:
			put(f.have.Addrs, c.key.Addr, c.delete)
		case servedSet:
			put(f.have.Served, c.key, c.delete)
		case masqueradeSet:
			put(f.have.Masquerade, c.key, c.delete)
		}
	}
}

func put[K comparable](set map[K]struct{}, key K, remove bool) {
	if remove {
		delete(set, key)
	} else {
		set[key] = struct{}{}
	}
}

// Check tells whether the kernel's table is as last applied. If it is not, the next Apply builds it anew; a change that
// was not ours is reason enough, whatever it was. The table is listed only when notifications were lost, so that a Check
// costs a system call.
func (f *Firewall) Check(ctx context.Context) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.built {
		return false, nil
	}
	f.notice(0)
	switch {
	case f.spoiled:
		f.built = false
		return false, nil
	case !f.suspect:
		return true, nil
	}
	have, shape, err := list(ctx)
	if err != nil && !errors.Is(err, errForeignContent) {
		return false, fmt.Errorf("list nftables table %s: %w", TableName, err)
	}
	f.suspect = false
	f.built = err == nil && shape == f.shape && have.Equal(f.have)
	return f.built, nil
}

// List returns what the sets of the kernel's table hold, nothing when there is no such table. After a restart its
// Addrs are ours: an address is there before its first virtual server and until after its last.
func (f *Firewall) List(ctx context.Context) (ipvs.Firewall, error) {
	have, _, err := list(ctx)
	if err != nil && !errors.Is(err, errForeignContent) {
		return ipvs.Firewall{}, fmt.Errorf("list nftables table %s: %w", TableName, err)
	}
	return have, nil
}

// Remove deletes our table. It succeeds when there is none.
func (f *Firewall) Remove(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.built = false
	tx := f.nft.NewTransaction()
	tx.Add(&knftables.Table{}) // so that deleting it cannot fail
	tx.Delete(&knftables.Table{})
	if err := f.run(ctx, tx); err != nil {
		return fmt.Errorf("delete nftables table %s: %w", TableName, err)
	}
	return nil
}

func validate(want ipvs.Firewall) error {
	for addr := range want.Addrs {
		if !addr.Is4() {
			return fmt.Errorf("address %v is not IPv4", addr)
		}
	}
	for _, keys := range []map[ipvs.Key]struct{}{want.Served, want.Masquerade} {
		for key := range keys {
			if _, known := protocolNames[key.Protocol]; !known || !key.Addr.Is4() || key.Port == 0 {
				return fmt.Errorf("virtual server %v is not TCP, UDP or SCTP over IPv4", key)
			}
		}
	}
	return nil
}
