package gobgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	api "github.com/osrg/gobgp/v3/api"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ironlb/ironlb/speaker/plan"
)

var (
	ipv4 = &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
	ipv6 = &api.Family{Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST}
)

// group is a set of routes with the same announcement: routes of one family with equal Route. Its mark is a large
// community of every path in it; the mark never leaves the node, because every statement of the export policy replaces
// it. The same holds for its LOCAL_PREF of 0, except for a peer with leaving set: GoBGP's policies can set any other
// value (NewLocalPrefAction in its internal/pkg/table/policy.go).
type group struct {
	id    uint64
	four  bool
	route plan.Route
	size  int
}

// groupKey identifies a group.
type groupKey struct {
	four bool
	text string
}

// routes are the paths in GoBGP.
type routes struct {
	of         map[netip.Prefix]*group
	groups     map[groupKey]*group
	statements map[statementKey]*api.Statement
}

func newRoutes() routes {
	return routes{map[netip.Prefix]*group{}, map[groupKey]*group{}, map[statementKey]*api.Statement{}}
}

func keyOf(four bool, r plan.Route) groupKey {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r)) {
		a := r[name]
		fmt.Fprintf(&text, "%s/%d/%x/%x;", name, a.LocalPref, a.Communities.Communities(), a.LargeCommunities.LargeCommunities())
	}
	return groupKey{four, text.String()}
}

func clone(r plan.Route) plan.Route { return maps.Clone(r) }

// updateRoutes updates the paths of these prefixes to the configuration.
func (d *Driver) updateRoutes(prefixes []netip.Prefix) error {
	type move struct {
		prefix netip.Prefix
		to     groupKey
	}
	var moves []move
	var gone []netip.Prefix
	for _, prefix := range prefixes {
		r, ok := d.wanted.Routes[prefix]
		if !ok || len(r) == 0 {
			gone = append(gone, prefix)
			continue
		}
		key := keyOf(prefix.Addr().Is4(), r)
		if have := d.routes.of[prefix]; have == nil || d.routes.groups[key] != have {
			moves = append(moves, move{prefix, key})
		}
	}
	moving := map[*group]map[groupKey]int{}
	for _, m := range moves {
		if have := d.routes.of[m.prefix]; have != nil {
			if moving[have] == nil {
				moving[have] = map[groupKey]int{}
			}
			moving[have][m.to]++
		}
	}
	for _, m := range moves {
		d.rename(d.routes.of[m.prefix], moving, m.to, d.wanted.Routes[m.prefix])
	}
	var errs []error
	for _, m := range moves {
		errs = append(errs, d.movePath(m.prefix, m.to))
	}
	for _, prefix := range gone {
		errs = append(errs, d.deletePath(prefix))
	}
	errs = append(errs, d.dropGroups())
	return errors.Join(errs...)
}

// rename keeps a group, and with it its paths, if all its paths move to the same new group and the difference concerns
// only peers that are not in GoBGP: then no other peer receives an update.
func (d *Driver) rename(have *group, moving map[*group]map[groupKey]int, to groupKey, r plan.Route) {
	if have == nil || moving[have][to] != have.size || d.routes.groups[to] != nil {
		return
	}
	for name := range d.peers {
		was, had := have.route[name]
		is, has := r[name]
		if had != has || was != is {
			return
		}
	}
	delete(d.routes.groups, keyOf(have.four, have.route))
	d.routes.groups[to] = have
	have.route = clone(r)
}

// movePath moves a path to a group.
func (d *Driver) movePath(prefix netip.Prefix, to groupKey) error {
	have, g := d.routes.of[prefix], d.routes.groups[to]
	if have == g && g != nil {
		return nil // renamed
	}
	if g == nil {
		d.serial++
		g = &group{id: d.serial, four: to.four, route: clone(d.wanted.Routes[prefix])}
		if err := d.addGroup(g); err != nil {
			return fmt.Errorf("announce %v: %w", prefix, err)
		}
		d.routes.groups[to] = g
	}
	path, err := g.path(prefix)
	if err == nil {
		_, err = d.server.AddPath(context.Background(), &api.AddPathRequest{TableType: api.TableType_GLOBAL, Path: path})
	}
	if err != nil {
		return fmt.Errorf("announce %v: %w", prefix, err)
	}
	if have != nil {
		have.size--
	}
	g.size++
	d.routes.of[prefix] = g
	return nil
}

func (d *Driver) deletePath(prefix netip.Prefix) error {
	g := d.routes.of[prefix]
	if g == nil {
		return nil
	}
	path, err := g.path(prefix)
	if err == nil {
		err = d.server.DeletePath(context.Background(), &api.DeletePathRequest{TableType: api.TableType_GLOBAL, Path: path})
	}
	if err != nil {
		return fmt.Errorf("withdraw %v: %w", prefix, err)
	}
	g.size--
	delete(d.routes.of, prefix)
	return nil
}

// Placeholders for the mandatory next hop; every statement sets the real one. They are addresses that no host has: the
// dummy address of RFC 7600 and one of the discard-only block of RFC 6666. GoBGP replaces an unspecified next hop by
// the session's own end, whatever its family.
const (
	dummy4 = "192.0.0.8"
	dummy6 = "100::1"
)

// path returns a path of the group.
func (g *group) path(prefix netip.Prefix) (*api.Path, error) {
	family, dummy := ipv6, dummy6
	if g.four {
		family, dummy = ipv4, dummy4
	}
	nlri, err := anypb.New(&api.IPAddressPrefix{Prefix: prefix.Addr().String(), PrefixLen: uint32(prefix.Bits())})
	if err != nil {
		return nil, err
	}
	path := &api.Path{Family: family, Nlri: nlri}
	mark := g.mark()
	origin, err1 := anypb.New(&api.OriginAttribute{Origin: 0}) // IGP
	nexthop, err2 := anypb.New(&api.NextHopAttribute{NextHop: dummy})
	large, err3 := anypb.New(&api.LargeCommunitiesAttribute{Communities: []*api.LargeCommunity{mark}})
	pref, err4 := anypb.New(&api.LocalPrefAttribute{LocalPref: 0})
	path.Pattrs = []*anypb.Any{origin, nexthop, pref, large}
	return path, errors.Join(err1, err2, err3, err4)
}

// mark returns the group's large community, of the reserved AS 0 (RFC 7607), in which no other party can assign one.
func (g *group) mark() *api.LargeCommunity {
	return &api.LargeCommunity{GlobalAdmin: 0, LocalData1: uint32(g.id >> 32), LocalData2: uint32(g.id)}
}

// countPrefixes counts the prefixes that each peer receives.
func (d *Driver) countPrefixes() {
	counts := map[string]int{}
	for _, g := range d.routes.groups {
		for name := range g.route {
			if p := d.peers[name]; p != nil {
				if _, ok := nextHopOf(p.conf, g.four); ok {
					counts[name] += g.size
				}
			}
		}
	}
	d.sessions.count(counts)
}
