package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/probe"
	"github.com/ironlb/ironlb/test/lab/router"
)

// tor is a router with its sessions, the base of its configuration, and a client whose requests its kernel routes.
type tor struct {
	router.Router
	name            string // kind of the router and of its BGPPeer
	place           router.Place
	machine, client *lab.Machine
	config          router.Config
}

// name6 is the name of a second BGPPeer, over IPv6, and of its sessions on the node.
func (r *tor) name6() string { return r.name + "6" }

// peer returns the spec of a BGPPeer of this router; with "6" over IPv6. more is added to it.
func (r *tor) peer(family, more string) string {
	addr := r.machine.Addr
	if family == "6" {
		addr = r.machine.Addr6
	}
	return fmt.Sprintf("{myASN: %d, peerASN: %d, peerAddress: %q, connectTime: 1s, gracefulRestart: true, %s}", nodeASN, routerASN, addr, more)
}

// neighbors6 returns sessions over IPv6 with all nodes; edit changes each.
func (r *tor) neighbors6(edit func(*router.Neighbor)) (out []router.Neighbor) {
	for _, n := range cluster.Nodes {
		neighbor := router.Neighbor{Name: n.Name + "v6", Address: n.Addr6, ASN: nodeASN}
		if edit != nil {
			edit(&neighbor)
		}
		out = append(out, neighbor)
	}
	return out
}

// configure changes the router's configuration until the end of the test.
func (r *tor) configure(t *testing.T, change func(*router.Config)) {
	t.Helper()
	c := r.config
	c.Neighbors = slices.Clone(c.Neighbors)
	change(&c)
	if err := r.Configure(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Configure(context.WithoutCancel(t.Context()), r.config); err != nil {
			t.Error(err)
		}
	})
}

// routed waits until every router's kernel routes the prefix through exactly these addresses, ascending. None: it has
// no route.
func routed(t *testing.T, prefix netip.Prefix, via ...netip.Addr) {
	t.Helper()
	for _, r := range tors {
		r.routed(t, prefix, via...)
	}
}

func (r *tor) routed(t *testing.T, prefix netip.Prefix, via ...netip.Addr) {
	t.Helper()
	family := 4
	if prefix.Addr().Is6() {
		family = 6
	}
	cluster.Await(t, patience, fmt.Sprintf("%s has %v by way of %v", r.name, prefix, via), func(ctx context.Context) error {
		routes, err := r.Routes(ctx, family)
		if err != nil {
			return err
		}
		var have []netip.Addr
		for _, route := range routes {
			if route.Prefix == prefix {
				have = append(have, route.Via...)
			}
		}
		slices.SortFunc(have, netip.Addr.Compare)
		if !slices.Equal(have, via) {
			return fmt.Errorf("it has %v", routes)
		}
		return nil
	})
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// nodes returns the addresses of all nodes in a family.
func nodes(v4 bool, but ...*lab.Node) (out []netip.Addr) {
	for _, n := range cluster.Nodes {
		switch {
		case slices.Contains(but, n):
		case v4:
			out = append(out, n.Addr)
		default:
			out = append(out, n.Addr6)
		}
	}
	return out
}

// initial waits for the initial state, and returns the sessions of each router.
func initial(t *testing.T) map[*tor]map[string]router.Session {
	t.Helper()
	cluster.Need(t)
	routed(t, host(vip), nodes(true)...)
	return established(t)
}

// established waits until each node has a session over IPv4 with every router.
func established(t *testing.T) map[*tor]map[string]router.Session {
	t.Helper()
	all := map[*tor]map[string]router.Session{}
	for _, r := range tors {
		cluster.Await(t, patience, r.name+" has a session with each node", func(ctx context.Context) (err error) {
			all[r], err = r.sessions(ctx, "")
			return err
		})
	}
	return all
}

// sessions returns the router's sessions with each node, by node name without the suffix. All must be established.
func (r *tor) sessions(ctx context.Context, suffix string) (map[string]router.Session, error) {
	all, err := r.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]router.Session{}
	for _, n := range cluster.Nodes {
		s := all[n.Name+suffix]
		if out[n.Name] = s; !s.Established {
			err = errors.Join(err, fmt.Errorf("the session with %s is %s", n.Name, s.State))
		}
	}
	return out, err
}

// up waits until the second sessions of every router are established; down until none is.
func up(t *testing.T) {
	t.Helper()
	for _, r := range tors {
		cluster.Await(t, patience, r.name+" has the second session with each node", func(ctx context.Context) error {
			_, err := r.sessions(ctx, "v6")
			return err
		})
	}
}

func down(t *testing.T) {
	t.Helper()
	for _, r := range tors {
		cluster.Await(t, patience, r.name+" has the second session with no node", func(ctx context.Context) error {
			all, err := r.Sessions(ctx)
			for _, n := range cluster.Nodes {
				if all[n.Name+"v6"].Established {
					err = errors.Join(err, errors.New(n.Name+" has one"))
				}
			}
			return err
		})
	}
}

// same checks that the sessions over IPv4 are unchanged, except those of the named nodes.
func same(t *testing.T, before map[*tor]map[string]router.Session, but ...*lab.Node) {
	t.Helper()
	now := established(t)
	for _, r := range tors {
		for _, n := range cluster.Nodes {
			is, was := now[r][n.Name], before[r][n.Name]
			if !slices.Contains(but, n) && !is.Same(was) {
				t.Errorf("%s: the session with %s is another one: since %v, it was since %v", r.name, n.Name, is.Since, was.Since)
			}
		}
	}
}

// rib waits until the router's paths of a prefix, by the neighbor's address, satisfy check.
func (r *tor) rib(t *testing.T, prefix netip.Prefix, what string, check func(map[netip.Addr]router.Path) error) {
	t.Helper()
	cluster.Await(t, patience, fmt.Sprintf("%s has %v %s", r.name, prefix, what), func(ctx context.Context) error {
		paths, err := r.RIB(ctx, prefix.String())
		if err != nil {
			return err
		}
		by := map[netip.Addr]router.Path{}
		for _, p := range paths {
			by[p.From] = p
		}
		if err := check(by); err != nil {
			return fmt.Errorf("%w; the paths: %+v", err, paths)
		}
		return nil
	})
}

// clients send requests through these routers, by TCP and by UDP, until stop, which checks that no answer is missing.
func clients(t *testing.T, addr netip.Addr, through ...*tor) (stop func()) {
	t.Helper()
	type asker struct {
		*lab.Prober
		name    string
		monitor *router.Monitor // without it, no request may be lost
	}
	var all []asker
	ask := func(r *tor, network string, port uint16, lost time.Duration, m *router.Monitor) {
		p, err := r.client.StartProbe(t.Context(), lab.Probe{Network: network, Target: netip.AddrPortFrom(addr, port), Every: 20 * time.Millisecond, Timeout: lost})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, asker{p, "client of " + r.name + " that asks by " + network, m})
	}
	for _, r := range through {
		m, err := r.place.Monitor(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Stop() })
		ask(r, "tcp", 80, lab.Lost, m)
		ask(r, "udp", 53, lab.Lost/2, nil) // UDP does not retransmit
	}
	more := func(n int) {
		for _, a := range all {
			if err := a.WaitAnswers(t.Context(), patience, n); err != nil {
				t.Error(err)
			}
		}
	}
	more(10)
	return func() {
		t.Helper()
		more(50)
		for _, a := range all {
			s, err := a.Stop()
			var events []router.Event
			if a.monitor != nil {
				events = a.monitor.Events()
			}
			if err == nil {
				err = missing(s, addr, events)
			}
			if err != nil {
				t.Errorf("the %s: %v; it saw %v", a.name, err, s)
			}
		}
	}
}

// missing returns an error for a request without an answer, or with one only after a retransmitted SYN (RFC 6298: after
// a second) while later requests had theirs. If all requests are late together, the machine is busy and none is lost. A
// connection in progress may break when the router changes next hops: its packets then go through another node, which
// has no state for it. The monitor may report that late.
func missing(s probe.Summary, addr netip.Addr, events []router.Event) error {
	const again = 900 * time.Millisecond
	var first time.Time // the first answer to a later request
	for _, r := range slices.Backward(s.Results) {
		end := r.Sent.Add(r.Took)
		moved := slices.ContainsFunc(events, func(e router.Event) bool {
			return e.Prefix == host(addr) && r.Connected() && e.At.After(r.Sent) && e.At.Before(end.Add(time.Second))
		})
		switch {
		case !r.OK() && !moved:
			return fmt.Errorf("request %d of %s failed after %s: %s", r.N, r.Sent.Format(time.StampMilli), r.Took, r.Error)
		case r.OK() && !first.IsZero() && end.Sub(first) > again:
			return fmt.Errorf("request %d of %s was answered %s after a later one", r.N, r.Sent.Format(time.StampMilli), end.Sub(first))
		}
		if r.OK() && (first.IsZero() || end.Before(first)) {
			first = end
		}
	}
	return nil
}

// asked checks that every request through every router is answered.
func asked(t *testing.T, addr netip.Addr) {
	t.Helper()
	for _, r := range tors {
		cluster.Await(t, patience, fmt.Sprintf("requests to %v through %s are answered", addr, r.name), func(ctx context.Context) error {
			s, err := r.client.Ask(ctx, lab.Probe{Network: "tcp", Target: netip.AddrPortFrom(addr, 80), Count: 30, Every: 5 * time.Millisecond})
			if err == nil && s.Failed > 0 {
				err = errors.New(s.String())
			}
			return err
		})
	}
}

// still records the changes of every router's kernel table until stop, which checks that none concerns the address.
func still(t *testing.T, addr netip.Addr) (stop func()) {
	t.Helper()
	var all []*router.Monitor
	for _, r := range tors {
		m, err := r.place.Monitor(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Stop() })
		all = append(all, m)
	}
	return func() {
		t.Helper()
		for i, m := range all {
			for _, e := range m.Events() {
				if e.Prefix == host(addr) {
					t.Errorf("the kernel's route of %s changed: %v", tors[i].name, e)
				}
			}
			m.Stop()
		}
	}
}
