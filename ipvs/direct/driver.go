package direct

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
	"github.com/ironlb/ironlb/ipvs/nftopen"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
	"github.com/ironlb/ironlb/ipvs/routewatch"
)

// TableName is the name of the tables, of the families ip and ip6.
const TableName = "ironlb-direct"

// groups have a notification for each change of the tunnels and of their underlay.
var groups = []int{unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR}

// Config are the parameters of a Driver.
type Config struct {
	// Port is the UDP port of the tunnels, the same on all nodes and of no other vxlan device.
	Port uint16
	// MTU of the tunnels; 0 derives it from the routes to the peers.
	MTU int
}

// Driver is the first tier of one network namespace. It is safe for concurrent use.
type Driver struct {
	cfg  Config
	nft  knftables.Interface
	send func(*nftbatch.Batch) error
	link *netlink.Handle
	// filter is the table filterTable.
	filter *nftbatch.Owned

	mu     sync.Mutex
	watch  *nftwatch.Watch
	events *routewatch.Watch // of interfaces, their addresses and neighbors
	// known means that the fields below equal the kernel's content. foreign reports a change by another program since.
	known, foreign bool
	// guarded are the families with a guard of this process.
	guarded [nftwatch.NumFamilies]bool
	frame   frame
	tables  [nftwatch.NumFamilies]table
	tunnels tunnels
	pods    ipvs.PodSources
	// probedIPv4 is set if the last probe found that only IPv6 is missing.
	probedIPv4 bool
}

// New finds the program nft and opens the network namespace of the calling thread, which must be the same for each
// call. It changes nothing. It fails with a [Problem].
func New(cfg Config) (*Driver, error) {
	nft, err := nftopen.Open("", "") // each object names its own table
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, &Problem{NoCommand, errors.New("program nft not found: install the package nftables")}
	case err != nil:
		return nil, &Problem{NoRules, fmt.Errorf("open nftables (needs CAP_NET_ADMIN and nf_tables): %w", err)}
	}
	d := &Driver{cfg: cfg, nft: nft, send: (*nftbatch.Batch).Send}
	if d.watch, err = nftwatch.Open(TableName); err != nil {
		return nil, &Problem{NoRules, err}
	}
	if d.link, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		d.watch.Close()
		return nil, fmt.Errorf("open the route netlink socket: %w", err)
	}
	if d.events, err = routewatch.Open(groups...); err != nil {
		d.watch.Close()
		d.link.Close()
		return nil, err
	}
	if d.filter, err = nftbatch.OpenOwned(filterTable); err != nil {
		d.watch.Close()
		d.link.Close()
		d.events.Close()
		return nil, err
	}
	return d, nil
}

// Close ends the driver. Programmed state stays, except for the filter of the tunnels that precedes the rules.
func (d *Driver) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watch.Close()
	d.link.Close()
	d.events.Close()
	d.filter.Close()
}

// MTU returns the MTU of the tunnels, 0 if there are none.
func (d *Driver) MTU() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.frame.mtu
}

// SetPods sets the sources that are cluster-internal, whose packets are not directed. It takes effect with the next
// Apply.
func (d *Driver) SetPods(pods ipvs.PodSources) error {
	for _, p := range pods.Prefixes {
		if !p.IsValid() || p.Addr().Is4In6() {
			return fmt.Errorf("set the Pods' networks: %w prefix %v", ipvs.ErrInvalid, p)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pods = ipvs.PodSources{
		Prefixes: ipvs.Disjoint(pods.Prefixes), Interfaces: slices.Sorted(slices.Values(pods.Interfaces)),
	}
	return nil
}

// Apply makes the node direct as wanted. changed are the virtual servers that may differ from the previous Apply, at
// the cost of those; an Apply after an error, a foreign change or a start compares everything. Without virtual servers
// it removes everything.
//
// A virtual server with an invalid slot is not directed; the error names it. The same holds for those of IPv6 where the
// tunnels cannot have IPv6. An error with a [Problem] lasts.
func (d *Driver) Apply(ctx context.Context, want ipvs.Direct, changed []ipvs.Key) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(want.Virtuals) == 0 {
		return d.remove(ctx)
	}
	if err := d.validate(want); err != nil {
		return err
	}
	if _, err := d.check(); err != nil {
		return err
	}
	full := !d.known
	d.known, d.foreign = false, false
	if full || want.Self != d.frame.self {
		if err := d.setFilter(want.Self); err != nil {
			return err
		}
	}
	frame, err := d.tunnels.ensure(d, want, full)
	if err != nil {
		return err
	}
	full = full || frame != d.frame
	d.frame = frame
	invalid, err := d.program(ctx, want, changed, full)
	if err != nil {
		return err
	}
	if err := d.tunnels.prune(d); err != nil {
		return err
	}
	d.known = !d.foreign
	return invalid
}

// validate returns why no tunnels can connect the nodes.
func (d *Driver) validate(want ipvs.Direct) error {
	if !want.Self.IsValid() || len(want.Nodes) > maxPeers {
		return fmt.Errorf("%w nodes: %v among %d", ipvs.ErrInvalid, want.Self, len(want.Nodes))
	}
	for _, addr := range want.Nodes {
		if addr.IsValid() && addr.Is4() != want.Self.Is4() {
			return &Problem{MixedFamilies, fmt.Errorf("no tunnel leads from %v to %v: give all nodes an InternalIP of one family",
				want.Self, addr)}
		}
	}
	return nil
}

// program changes the tables. invalid is the error of virtual servers that are left out.
func (d *Driver) program(ctx context.Context, want ipvs.Direct, changed []ipvs.Key, full bool) (invalid, err error) {
	if full {
		changed = slices.Collect(maps.Keys(want.Virtuals))
	}
	wants, invalid := d.wants(want, changed)
	outer := familyOf(want.Self)
	for _, i := range []int{1 - outer, outer} { // the last one lets packets into the tunnels
		switch {
		case !exists(i):
			continue
		case full || !d.tables[i].exists:
			err = d.syncTable(ctx, i, wants[i])
		default:
			err = d.editTable(ctx, i, wants[i])
		}
		// Also after an error: virtual servers are not to be dropped until it ends. An earlier process may have left one.
		if d.guarded[i] || full {
			err = errors.Join(err, d.unguard(ctx, i))
		}
		if err != nil {
			return nil, fmt.Errorf("program nftables table %s %s: %w", families[i].name, TableName, err)
		}
	}
	return invalid, nil
}

// wants returns the wanted state of each family, with the changed virtual servers. invalid is the error of those that
// cannot be directed.
func (d *Driver) wants(want ipvs.Direct, changed []ipvs.Key) (wants [nftwatch.NumFamilies]wanted, invalid error) {
	for i := range wants {
		wants[i] = wanted{
			virtuals: make(map[ipvs.Key]*[numTiers]content), closed: make(map[ipvs.Key]struct{}),
			nodes: d.tunnels.sources(want, i), pods: d.pods, frame: d.frame,
		}
	}
	peers := newPeers(want)
	var errs []error
	for _, key := range changed {
		virtuals := wants[familyOf(key.Addr)].virtuals
		virtuals[key] = nil
		directed, wanted := want.Virtuals[key]
		if !wanted {
			continue
		}
		contents, err := peers.contents(directed)
		if key.Addr.Is6() && !d.tunnels.has6 {
			err = noIPv6()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("direct %v: %w", key, err))
			continue
		}
		virtuals[key] = &contents
		if directed.Closed {
			wants[familyOf(key.Addr)].closed[key] = struct{}{}
		}
	}
	return wants, errors.Join(errs...)
}

// Check reports whether everything is as the last Apply left it. Without a change on the node it costs some system
// calls.
func (d *Driver) Check(context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.check()
}

func (d *Driver) check() (bool, error) {
	counts, err := d.watch.Count()
	if err != nil && !errors.Is(err, nftwatch.ErrLost) {
		d.known = false
		return false, err
	}
	if err != nil || counts != (nftwatch.Counts{}) {
		d.known = false
	}
	if d.known {
		intact, err := d.tunnels.intact(d)
		d.known = intact && err == nil
		return d.known, err
	}
	return false, nil
}

// Remove deletes the tables and the tunnels. It succeeds if there are none.
func (d *Driver) Remove(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known = false
	return d.remove(ctx)
}

func (d *Driver) remove(ctx context.Context) error {
	intact, err := d.check()
	if err != nil {
		return err
	}
	if intact && d.frame == (frame{}) {
		return nil
	}
	d.known, d.foreign = false, false
	if err := d.tunnels.remove(d); err != nil {
		return err
	}
	if err := errors.Join(d.removeTables(ctx), d.removeFilter()); err != nil {
		return err
	}
	d.frame, d.tables, d.tunnels, d.guarded = frame{}, [nftwatch.NumFamilies]table{}, tunnels{}, [nftwatch.NumFamilies]bool{}
	d.known = !d.foreign
	return nil
}
