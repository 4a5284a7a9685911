// Package gobgp implements BGP by GoBGP v3, and is the only package that imports it. docs/design/bgp.md has the full
// description.
//
// A process has one Driver and one GoBGP for its lifetime: GoBGP cannot be stopped and started again cleanly in a
// process. The main package needs //go:debug multipathtcp=0: the kernel has no MD5 on multipath TCP.
package gobgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/server"

	"github.com/ironlb/ironlb/speaker/plan"
)

// Options configure a Driver.
type Options struct {
	Log *slog.Logger
	// Report is called with session states, from one goroutine: first with all of them, then with the changed ones.
	Report func(plan.BGPReport)
}

// noASN is the AS of the process (AS_TRANS, RFC 6793). Each session has its own AS; GoBGP falls back on this one to
// check whether a peer is internal, so no peer may have it.
const noASN = 23456

// Driver is GoBGP with its last configuration. Its methods may be called from several goroutines.
type Driver struct {
	log    *slog.Logger
	report func(plan.BGPReport)

	mu     sync.Mutex // held over every change of GoBGP
	server *server.BgpServer
	id     netip.Addr // the router ID with which GoBGP was started
	wanted plan.BGP
	// peers are the peers in GoBGP, by name; holder is the peer that uses an address. Addresses have no zone, because
	// GoBGP's policies have none.
	peers  map[string]*peer
	holder map[netip.Addr]string
	routes routes
	serial uint64 // of names in GoBGP's policies, which are never reused
	retry  map[string]*backoff
	// discoveries are the peers that are added to GoBGP once their router has sent its AS.
	discoveries map[string]*discovery

	sessions *sessions
}

// New returns a driver. It starts nothing.
func New(o Options) *Driver {
	return &Driver{log: o.Log, report: o.Report, peers: map[string]*peer{}, holder: map[netip.Addr]string{},
		routes: newRoutes(), retry: map[string]*backoff{}, discoveries: map[string]*discovery{}, sessions: newSessions()}
}

// Apply applies a change to GoBGP. The first change is complete and starts GoBGP: all paths are added before the first
// peer, because GoBGP sends a peer the end of the table (RFC 4724, 2) after the existing paths. A peer that GoBGP
// rejects is retried and shown in the reports; the returned error is one that no report can show.
func (d *Driver) Apply(c plan.BGPChange) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.server == nil {
		return d.begin(c)
	}
	if c.RouterID.IsValid() && c.RouterID != d.id {
		return fmt.Errorf("change the router ID from %v to %v: it needs another process", d.id, c.RouterID)
	}
	peers, prefixes := touched(d.wanted, c)
	d.wanted.Apply(c)
	return d.reconcile(peers, prefixes, false)
}

// begin starts GoBGP with the full configuration, once there is a router ID: without one there are no peers.
func (d *Driver) begin(c plan.BGPChange) error {
	if !c.Full && d.wanted.Peers == nil {
		return errors.New("apply a change to BGP: the first change is not complete")
	}
	d.wanted.Apply(c)
	if !c.RouterID.IsValid() {
		return nil
	}
	if err := d.start(c.RouterID); err != nil {
		return err
	}
	peers, prefixes := touched(d.wanted, plan.BGPChange{Full: true})
	return d.reconcile(peers, prefixes, true)
}

// touched returns the names and the prefixes that a change affects, ascending.
func touched(before plan.BGP, c plan.BGPChange) (peers []string, prefixes []netip.Prefix) {
	for name := range c.Peers {
		peers = append(peers, name)
	}
	for prefix := range c.Routes {
		prefixes = append(prefixes, prefix)
	}
	if c.Full {
		for name := range before.Peers {
			if _, ok := c.Peers[name]; !ok {
				peers = append(peers, name)
			}
		}
		for prefix := range before.Routes {
			if _, ok := c.Routes[prefix]; !ok {
				prefixes = append(prefixes, prefix)
			}
		}
	}
	slices.Sort(peers)
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return peers, prefixes
}

// start starts GoBGP without a listener, with policies that import and export nothing.
func (d *Driver) start(id netip.Addr) error {
	s := server.NewBgpServer(server.LoggerOption(&logger{log: d.log, sessions: d.sessions}))
	go s.Serve() // has no end
	ctx := context.Background()
	// A listener would need the passwords of incoming peers, and a port below 1024; -1 disables it.
	err := s.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{Asn: noASN, RouterId: id.String(), ListenPort: -1}})
	if err != nil {
		return fmt.Errorf("start GoBGP with the router id %v: %w", id, err)
	}
	if err := startPolicies(ctx, s); err != nil {
		return err
	}
	if err := s.WatchEvent(ctx, &api.WatchEventRequest{Peer: &api.WatchEventRequest_Peer{}}, d.sessions.event); err != nil {
		return fmt.Errorf("watch GoBGP's sessions: %w", err)
	}
	d.server, d.id = s, id
	go d.run()
	return nil
}

// reconcile applies the configuration of these peers and prefixes. The order ensures that no peer receives an unwanted
// route, and that no other peer receives an update for a change of one peer.
func (d *Driver) reconcile(peers []string, prefixes []netip.Prefix, first bool) error {
	var errs []error
	add := d.removePeers(peers)
	errs = append(errs, d.updateRoutes(prefixes))
	for _, p := range add {
		d.addPeer(p.name, first || p.restarting)
	}
	for _, name := range d.unheld() { // their address has become free
		d.addPeer(name, first)
	}
	d.countPrefixes()
	return errors.Join(errs...)
}

// Down takes the session of a peer down at once, because BFD found the path to it dead. It comes up again by itself.
// Down does not wait for a change that is being applied: GoBGP processes it between two steps of that change.
func (d *Driver) Down(name, why string) {
	key, held := d.sessions.key(name)
	if !held {
		return
	}
	d.sessions.expect(key, plan.BFDWentDown, why)
	// d.server is set before the first peer is held, and never changes.
	err := d.server.ResetPeer(context.Background(), &api.ResetPeerRequest{Address: key, Communication: why})
	if _, held := d.sessions.key(name); err != nil && held { // else it was removed meanwhile
		d.log.Error("cannot take a BGP session down", "peer", name, "error", err)
	}
}

// Times of Leave: RFC 8326 leaves the first to the operator; routers take a second to switch to another path.
const (
	drainTime    = 2 * time.Second
	withdrawTime = time.Second
)

// gracefulShutdown is GRACEFUL_SHUTDOWN (RFC 8326, 5).
const gracefulShutdown = 65535 << 16

// Leave ends the sessions of peers without graceful restart, or of all, in an orderly way: it asks them to prefer other
// paths (RFC 8326, 4.2 and 4.3), then withdraws each route, then ends the session. Nothing is sent to peers with
// graceful restart: the process ends, and the next one resumes their sessions. The driver must not be used after that.
func (d *Driver) Leave(ctx context.Context, all bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.discoveries {
		d.stopDiscovery(name)
	}
	var leaving []string
	for name, p := range d.peers {
		if all || !p.conf.GracefulRestart {
			leaving = append(leaving, name)
		}
	}
	if len(leaving) == 0 {
		return nil
	}
	slices.Sort(leaving)
	var errs []error
	for _, name := range leaving {
		p := d.peers[name]
		p.leaving = true
		errs = append(errs, d.replaceStatements(p))
		d.resend(p)
	}
	if len(d.wanted.Routes) > 0 {
		if err := pause(ctx, drainTime); err != nil {
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, d.withdrawFrom(leaving))
		if err := pause(ctx, withdrawTime); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	for _, name := range leaving {
		delete(d.wanted.Peers, name)
	}
	d.removePeers(leaving)
	return errors.Join(errs...)
}

// withdrawFrom removes these peers from every route.
func (d *Driver) withdrawFrom(names []string) error {
	var prefixes []netip.Prefix
	for prefix, r := range d.wanted.Routes {
		r = clone(r)
		for _, name := range names {
			delete(r, name)
		}
		d.wanted.Routes[prefix] = r
		prefixes = append(prefixes, prefix)
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return d.updateRoutes(prefixes)
}

func pause(ctx context.Context, t time.Duration) error {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
