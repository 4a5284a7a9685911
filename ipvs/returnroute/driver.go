package returnroute

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftopen"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
	"github.com/ironlb/ironlb/ipvs/routewatch"
)

// TableName is the name of the tables of nftables, of the families ip and ip6.
const TableName = "ironlb-return"

// Driver is the return routes of one network namespace. It is safe for concurrent use.
type Driver struct {
	// tunnels are the interfaces on which requests arrive besides that of the route.
	tunnels []string
	nft     knftables.Interface
	link    *netlink.Handle

	mu     sync.Mutex
	watch  *nftwatch.Watch
	events *routewatch.Watch // of routes, rules and interfaces
	// known means that the kernel has what have contains. indexes are the interfaces of its routes.
	known   bool
	have    []ipvs.ReturnRoute
	indexes map[int]struct{}
}

// New finds the program nft and opens the network namespace of the calling thread, which must be the same for each
// call. It changes nothing. tunnels are the interfaces on which other nodes deliver requests.
func New(tunnels ...string) (*Driver, error) {
	nft, err := nftopen.Open("", "") // each object names its own table
	if err != nil {
		return nil, fmt.Errorf("open nftables (needs the program nft, CAP_NET_ADMIN and nf_tables): %w", err)
	}
	d := &Driver{tunnels: tunnels, nft: nft}
	if d.watch, err = nftwatch.Open(TableName); err != nil {
		return nil, err
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
	return d, nil
}

// Close ends the driver. Programmed state stays.
func (d *Driver) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watch.Close()
	d.link.Close()
	d.events.Close()
}

// Apply makes the node have these return routes and no others, and returns those that are in effect. It continues after
// an error; the errors are joined. Routes that are the same as before keep their tables.
func (d *Driver) Apply(ctx context.Context, want []ipvs.ReturnRoute) (done []ipvs.ReturnRoute, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	intact, err := d.check()
	if err != nil {
		return nil, err
	}
	if intact && slices.EqualFunc(d.have, want, ipvs.ReturnRoute.Equal) {
		return slices.Clone(want), nil
	}
	d.known, d.indexes = false, make(map[int]struct{})
	alone := true
	var programmed [len(families)][]table
	var errs []error
	for i, f := range families {
		var of []ipvs.ReturnRoute
		for _, r := range want {
			if familyOf(r.Gateway) == i {
				of = append(of, r)
			}
		}
		if len(of) == 0 && !f.supported() {
			continue
		}
		tables, onlyOurs, err := d.program(ctx, i, of)
		if err != nil {
			errs = append(errs, fmt.Errorf("program the %s return routes: %w", f.title, err))
		}
		programmed[i], alone = tables, alone && onlyOurs
	}
	if err := d.events.Discard(); err != nil { // the notifications of this call
		errs = append(errs, err)
	}
	for i, f := range families {
		if len(programmed[i]) == 0 && !f.supported() {
			continue
		}
		have, err := d.list(f)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		alone = alone && have.equal(wanted(f, programmed[i]))
		for _, t := range programmed[i] {
			if err := d.verify(f, t, have); err != nil {
				errs = append(errs, err)
				continue
			}
			done = append(done, t.ReturnRoute)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return done, err
	}
	// Another program may have changed something meanwhile.
	d.known, d.have = alone, slices.Clone(want)
	return done, nil
}

// program makes the kernel have the routes of one family. It returns their tables, and whether no other program changed
// the table of nftables. The order is required: a rule needs the routes of its table, and a mark its
// rule.
func (d *Driver) program(ctx context.Context, i int, want []ipvs.ReturnRoute) (tables []table, alone bool, err error) {
	f := families[i]
	have, err := d.list(f)
	if err != nil {
		return nil, false, err
	}
	tables, errs := d.assign(want, have)
	wanted := wanted(f, tables)
	for _, r := range wanted.missingRoutes(have) {
		if err := d.link.RouteReplace(r.netlink()); err != nil {
			errs = append(errs, fmt.Errorf("add %v: %w", r, err))
		}
	}
	for _, r := range wanted.missingRules(have) {
		if err := d.link.RuleAdd(r.netlink(f)); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("add %v: %w", r, err))
		}
	}
	if alone, err = d.setRules(ctx, i, tables); err != nil {
		return nil, false, errors.Join(append(errs, err)...)
	}
	for _, r := range have.missingRules(wanted) {
		if err := d.link.RuleDel(r.netlink(f)); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("delete %v: %w", r, err))
		}
	}
	for _, r := range have.missingRoutes(wanted) {
		if err := d.link.RouteDel(r.netlink()); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("delete %v: %w", r, err))
		}
	}
	return tables, alone, errors.Join(errs...)
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
	changed, watchErr := d.events.Changed(d.concerns)
	tightened := slices.ContainsFunc(d.have, func(r ipvs.ReturnRoute) bool { return r.Gateway.Is4() && strict(r.Interface) })
	if err != nil || counts != (nftwatch.Counts{}) || changed || watchErr != nil || tightened {
		d.known = false
	}
	return d.known, watchErr
}

// Remove deletes everything that this package made, also in an earlier process. It succeeds if there is nothing.
func (d *Driver) Remove(ctx context.Context) error {
	_, err := d.Apply(ctx, nil)
	return err
}
