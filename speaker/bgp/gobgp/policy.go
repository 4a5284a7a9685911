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

// The export policy is a list of statements, one for each group. A path that no statement accepts is rejected. When a
// path changes, GoBGP also applies the policy to the old one, and withdraws it if the old one was accepted and the new
// one is not. So the mark is on the path, and a group's statement stays until it has no path left.
const (
	importPolicy = "import"
	exportPolicy = "export"
	global       = "global"
)

// defaultPref is the LOCAL_PREF of a route without one.
const defaultPref = 100

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

func (g *group) set() *api.DefinedSet {
	m := g.mark()
	return &api.DefinedSet{DefinedType: api.DefinedType_LARGE_COMMUNITY, Name: g.setName(),
		List: []string{fmt.Sprintf("%d:%d:%d", m.GlobalAdmin, m.LocalData1, m.LocalData2)}}
}

// addGroup adds a new group with its statement, before it has a path.
func (d *Driver) addGroup(g *group) error {
	err := d.server.AddDefinedSet(context.Background(), &api.AddDefinedSetRequest{DefinedSet: g.set()})
	if err != nil {
		return err
	}
	return d.addStatement(g)
}

// dropGroups removes the groups without a path.
func (d *Driver) dropGroups() error {
	var errs []error
	for key, g := range d.routes.groups {
		if g.size > 0 {
			continue
		}
		d.dropStatements(g)
		errs = append(errs, d.server.DeleteDefinedSet(context.Background(), &api.DeleteDefinedSetRequest{DefinedSet: g.set(), All: true}))
		delete(d.routes.groups, key)
	}
	return errors.Join(errs...)
}

// replaceStatements rebuilds the statements.
func (d *Driver) replaceStatements() error {
	groups := slices.Collect(maps.Values(d.routes.groups))
	d.dropStatements(groups...)
	var errs []error
	for _, g := range groups {
		errs = append(errs, d.addStatement(g))
	}
	return errors.Join(errs...)
}

// addStatement adds the statement of a group, if the peer has its family.
func (d *Driver) addStatement(g *group) error {
	nexthop, ok := nextHopOf(d.want, g.four)
	if !ok {
		return nil
	}
	d.serial++
	s := g.exported(fmt.Sprintf("statement-%d", d.serial), nexthop, d.leaving)
	err := d.server.AddPolicy(context.Background(), &api.AddPolicyRequest{Policy: &api.Policy{Name: exportPolicy, Statements: []*api.Statement{s}}})
	if err != nil {
		return fmt.Errorf("add a statement to GoBGP: %w", err)
	}
	g.statement = s
	return nil
}

// exported returns the export statement of a group.
func (g *group) exported(name string, nexthop *api.NexthopAction, leaving bool) *api.Statement {
	a := g.attributes
	if leaving {
		a.Communities = view.NewCommunitySet(append(a.Communities.Communities(), gracefulShutdown)...)
	}
	s := &api.Statement{Name: name,
		Conditions: &api.Conditions{LargeCommunitySet: &api.MatchSet{Name: g.setName()}},
		Actions: &api.Actions{RouteAction: api.RouteAction_ACCEPT, Nexthop: nexthop,
			LargeCommunity: &api.CommunityAction{Type: api.CommunityAction_REPLACE, Communities: large(a)}}}
	if c := standard(a); len(c) > 0 {
		s.Actions.Community = &api.CommunityAction{Type: api.CommunityAction_REPLACE, Communities: c}
	}
	if !leaving { // then it is the path's own 0 (RFC 8326, 4.1); GoBGP removes either for external peers
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

// dropStatements removes the statements of groups from the policy, and then deletes them: GoBGP does not do that
// itself.
func (d *Driver) dropStatements(groups ...*group) {
	var gone []*api.Statement
	for _, g := range groups {
		if g.statement != nil {
			gone = append(gone, g.statement)
			g.statement = nil
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
