package gobgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	api "github.com/osrg/gobgp/v3/api"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ironlb/ironlb/speaker/view"
)

var (
	ipv4 = &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
	ipv6 = &api.Family{Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST}
)

// group is a set of routes with the same announcement: routes of one family with equal attributes. Its mark is a large
// community of every path in it; the mark never leaves the node, because every statement of the export policy replaces
// it. The same holds for its LOCAL_PREF of 0, unless the peer was asked to prefer other paths: GoBGP's policies can set
// any other value (NewLocalPrefAction in its internal/pkg/table/policy.go).
type group struct {
	groupKey
	id        uint64
	size      int
	statement *api.Statement // nil if the peer does not have the family
}

// groupKey identifies a group.
type groupKey struct {
	four       bool
	attributes view.Attributes
}

// paths are the paths in GoBGP.
type paths struct {
	of     map[netip.Prefix]*group
	groups map[groupKey]*group
}

func newPaths() paths { return paths{map[netip.Prefix]*group{}, map[groupKey]*group{}} }

// updateRoutes updates the paths of these prefixes to the configuration.
func (d *Driver) updateRoutes(prefixes []netip.Prefix) error {
	var errs []error
	for _, prefix := range prefixes {
		if a, ok := d.wanted[prefix]; ok {
			errs = append(errs, d.movePath(prefix, groupKey{prefix.Addr().Is4(), a}))
		}
	}
	for _, prefix := range prefixes {
		if _, ok := d.wanted[prefix]; !ok {
			errs = append(errs, d.deletePath(prefix))
		}
	}
	errs = append(errs, d.dropGroups())
	return errors.Join(errs...)
}

// movePath moves a path to a group.
func (d *Driver) movePath(prefix netip.Prefix, to groupKey) error {
	have, g := d.routes.of[prefix], d.routes.groups[to]
	if have == g && g != nil {
		return nil
	}
	if g == nil {
		d.serial++
		g = &group{groupKey: to, id: d.serial}
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

// countPrefixes counts the prefixes that the peer receives.
func (d *Driver) countPrefixes() {
	n := 0
	for _, g := range d.routes.groups {
		if _, ok := nextHopOf(d.want, g.four); ok && d.peer != nil {
			n += g.size
		}
	}
	d.session.count(n)
}
