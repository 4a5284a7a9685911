// Package nft maintains its own nftables tables, one for IPv4 and one for IPv6, as specified by an [ipvs.Filter], and
// an accept rule in existing iptables chains. It touches nothing else.
package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"strings"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
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

// family contains the differences between the tables of IPv4 and IPv6.
type family struct {
	nft knftables.Family
	// number is the family in netlink messages.
	number byte
	// everything is the prefix of all addresses.
	everything netip.Prefix
	// words replaces the placeholders in a rule or the type of a set with the family's keywords.
	words *strings.Replacer
}

// families are in the order of the counts of nftwatch.
var families = [nftwatch.NumFamilies]family{
	nftwatch.IP: {knftables.IPv4Family, unix.NFPROTO_IPV4, netip.PrefixFrom(netip.IPv4Unspecified(), 0),
		strings.NewReplacer("ADDR", "ipv4_addr", "IP", "ip", "ICMP", "icmp")},
	nftwatch.IP6: {knftables.IPv6Family, unix.NFPROTO_IPV6, netip.PrefixFrom(netip.IPv6Unspecified(), 0),
		strings.NewReplacer("ADDR", "ipv6_addr", "IP", "ip6", "ICMP", "icmpv6")},
}

// familyOf returns the index of an element's family.
func familyOf(e ipvs.Element) int {
	if e.Is4() {
		return 0
	}
	return 1
}

// Probe checks whether nft and the kernel accept the package's rules with these elements, which must include one of
// IPv4. It changes nothing: "nft --check" makes the kernel validate a transaction and then abort it. The error has only
// the first message.
func (f *Filter) Probe(ctx context.Context, elements ipvs.Filter) error {
	t := f.tables[0]
	if err := t.usable(); err != nil {
		return err
	}
	if err := t.nft.Check(ctx, t.replacement(maps.Keys(elements), !f.DropPing)); err != nil {
		line, _, _ := strings.Cut(err.Error(), "\n")
		return fmt.Errorf("probe the rules of %v: %s", t, line)
	}
	return nil
}

// Version returns what "nft --version" prints, as "nftables v1.0.6 (Lester Gooch #5)". It wraps ErrNoCommand.
func Version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "nft", "--version").Output()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", ErrNoCommand
	case err != nil:
		return "", fmt.Errorf("nft --version: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// nftaGenID is NFTA_GEN_ID of include/uapi/linux/netfilter/nf_tables.h.
const nftaGenID = 1

// Generation returns the number that every change of nftables, by any program, increments in the network namespace of
// the calling thread. As long as it is unchanged, [Policies.Apply] has the same result. Generation fails if
// iptables-legacy is in use, which is not part of nftables.
func Generation() (uint32, error) {
	if legacy := iptablesInUse(nil); len(legacy) > 0 {
		return 0, fmt.Errorf("%s is in use, and sends no notifications of changes", legacy[0].program)
	}
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_UNSPEC, Version: nl.NFNETLINK_V0})
	answers, err := request.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN)
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of nftables: %w", err)
	}
	for _, answer := range answers {
		attrs, err := nl.ParseRouteAttr(answer[min(len(answer), nl.SizeofNfgenmsg):])
		if err != nil {
			return 0, fmt.Errorf("read the generation of nftables: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type&nl.NLA_TYPE_MASK == nftaGenID && len(a.Value) >= 4 {
				return binary.BigEndian.Uint32(a.Value), nil
			}
		}
	}
	return 0, errors.New("ask for the generation of nftables: the kernel's answer lacks it")
}
