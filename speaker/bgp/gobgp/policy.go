package gobgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/server"

	"github.com/ironlb/ironlb/speaker/view"
)

// GoBGP has one export policy for all peers: a list of statements, each for one peer and one group. A path that no
// statement accepts is rejected. When a path changes, GoBGP also applies the policy to the old one, and withdraws it if
// the old one was accepted and the new one is not. So the mark is on the path, and a group's statements stay until it
// has no path left.
const (
	importPolicy = "import"
	exportPolicy = "export"
	global       = "global"
)

// defaultPref is the LOCAL_PREF of a route without one.
const defaultPref = 100

// statementKey identifies a statement for a peer (by its serial) and a group.
type statementKey struct{ peer, group uint64 }

// startPolicies creates policies that accept only paths that this process itself adds, because GoBGP applies the import
// policy to these too.
func startPolicies(ctx context.Context, s *server.BgpServer) error {
	own := &api.Statement{Name: "own", Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions: &api.Actions{RouteAction: api.RouteAction_ACCEPT}}
	err := errors.Join(
		s.AddPolicy(ctx, &api.AddPolicyRequest{Policy: &api.Policy{Name: importPolicy, Statements: []*api.Statement{own}}}),
		s.AddPolicy(ctx, &api.AddPolicyRequest{Policy: &api.Policy{Name: exportPolicy}}))
	for name, direction := range map[string]api.PolicyDirection{importPolicy: api.PolicyDirection_IMPORT, exportPolicy: api.PolicyDirection_EXPORT} {
		err = errors.Join(err, s.AddPolicyAssignment(ctx, &api.AddPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
			Name: global, Direction: direction, Policies: []*api.Policy{{Name: name}}, DefaultAction: api.RouteAction_REJECT}}))
	}
	if err != nil {
		return fmt.Errorf("make GoBGP's policies: %w", err)
	}
	return nil
}

func (g *group) setName() string { return fmt.Sprintf("group-%d", g.id) }
func (p *peer) setName() string  { return fmt.Sprintf("peer-%d", p.serial) }

func (g *group) set() *api.DefinedSet {
	m := g.mark()
	return &api.DefinedSet{DefinedType: api.DefinedType_LARGE_COMMUNITY, Name: g.setName(),
		List: []string{fmt.Sprintf("%d:%d:%d", m.GlobalAdmin, m.LocalData1, m.LocalData2)}}
}

func (p *peer) set() *api.DefinedSet {
	return &api.DefinedSet{DefinedType: api.DefinedType_NEIGHBOR, Name: p.setName(), List: []string{prefixOf(p.conf.Address)}}
}

func (d *Driver) addNeighborSet(p *peer) error {
	return d.server.AddDefinedSet(context.Background(), &api.AddDefinedSetRequest{DefinedSet: p.set()})
}

func (d *Driver) dropNeighborSet(p *peer) {
	if err := d.server.DeleteDefinedSet(context.Background(), &api.DeleteDefinedSetRequest{DefinedSet: p.set(), All: true}); err != nil {
		d.log.Error("cannot remove a peer's set from GoBGP", "peer", p.name, "error", err)
	}
}

// addGroup adds the statements of a new group, before it has a path.
func (d *Driver) addGroup(g *group) error {
	err := d.server.AddDefinedSet(context.Background(), &api.AddDefinedSetRequest{DefinedSet: g.set()})
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(g.route)) {
		if p := d.peers[name]; p != nil {
			err = errors.Join(err, d.addStatement(p, g))
		}
	}
	return err
}

// dropGroups removes the groups without a path.
func (d *Driver) dropGroups() error {
	var errs []error
	for key, g := range d.routes.groups {
		if g.size > 0 {
			continue
		}
		d.dropStatements(func(k statementKey) bool { return k.group == g.id })
		errs = append(errs, d.server.DeleteDefinedSet(context.Background(), &api.DeleteDefinedSetRequest{DefinedSet: g.set(), All: true}))
		delete(d.routes.groups, key)
	}
	return errors.Join(errs...)
}

// replaceStatements rebuilds the statements of a peer.
func (d *Driver) replaceStatements(p *peer) error {
	d.dropStatements(func(k statementKey) bool { return k.peer == p.serial })
	var errs []error
	for _, g := range d.routes.groups {
		if _, announced := g.route[p.name]; announced {
			errs = append(errs, d.addStatement(p, g))
		}
	}
	return errors.Join(errs...)
}

func (d *Driver) addStatement(p *peer, g *group) error {
	nexthop, ok := nextHopOf(p.conf, g.four)
	if !ok {
		return nil
	}
	d.serial++
	s := statement(fmt.Sprintf("statement-%d", d.serial), p, g, nexthop)
	err := d.server.AddPolicy(context.Background(), &api.AddPolicyRequest{Policy: &api.Policy{Name: exportPolicy, Statements: []*api.Statement{s}}})
	if err != nil {
		return fmt.Errorf("add a statement for peer %s to GoBGP: %w", p.name, err)
	}
	d.routes.statements[statementKey{p.serial, g.id}] = s
	return nil
}

// statement returns the export statement of a group for a peer.
func statement(name string, p *peer, g *group, nexthop *api.NexthopAction) *api.Statement {
	a := g.route[p.name]
	if p.leaving {
		a.Communities = view.NewCommunitySet(append(a.Communities.Communities(), gracefulShutdown)...)
	}
	s := &api.Statement{Name: name,
		Conditions: &api.Conditions{NeighborSet: &api.MatchSet{Name: p.setName()}, LargeCommunitySet: &api.MatchSet{Name: g.setName()}},
		Actions: &api.Actions{RouteAction: api.RouteAction_ACCEPT, Nexthop: nexthop,
			LargeCommunity: &api.CommunityAction{Type: api.CommunityAction_REPLACE, Communities: large(a)}}}
	if c := standard(a); len(c) > 0 {
		s.Actions.Community = &api.CommunityAction{Type: api.CommunityAction_REPLACE, Communities: c}
	}
	if !p.leaving { // then it is the path's own 0 (RFC 8326, 4.1); GoBGP removes either for external peers
		s.Actions.LocalPref = &api.LocalPrefAction{Value: cmp.Or(a.LocalPref, defaultPref)}
	}
	return s
}

func standard(a view.Attributes) (out []string) {
	for _, c := range a.Communities.Communities() {
		out = append(out, fmt.Sprintf("%d:%d", c>>16, c&0xffff))
	}
	return out
}

func large(a view.Attributes) (out []string) {
	for _, c := range a.LargeCommunities.LargeCommunities() {
		out = append(out, fmt.Sprintf("%d:%d:%d", c.Global, c.Local1, c.Local2))
	}
	return out
}

// dropStatements removes statements from the policy, and then deletes them: GoBGP does not do that itself.
func (d *Driver) dropStatements(which func(statementKey) bool) {
	var gone []*api.Statement
	for key, s := range d.routes.statements {
		if which(key) {
			gone = append(gone, s)
			delete(d.routes.statements, key)
		}
	}
	if len(gone) == 0 {
		return
	}
	ctx := context.Background()
	err := d.server.DeletePolicy(ctx, &api.DeletePolicyRequest{Policy: &api.Policy{Name: exportPolicy, Statements: gone}, PreserveStatements: true})
	for _, s := range gone {
		err = errors.Join(err, d.server.DeleteStatement(ctx, &api.DeleteStatementRequest{Statement: s, All: true}))
	}
	if err != nil {
		d.log.Error("cannot remove statements from GoBGP's policy", "error", err)
	}
}
