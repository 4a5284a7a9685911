// Package gobgp implements BGP by GoBGP v3, and is the only package that imports it. docs/design/bgp.md has the full
// description.
//
// A process has one Driver, one peer and one GoBGP for its lifetime: GoBGP cannot be stopped and started again cleanly
// in a process. The main package needs //go:debug multipathtcp=0: the kernel has no MD5 on multipath TCP.
package gobgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/server"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// Options configure a Driver.
type Options struct {
	Log *slog.Logger
	// Report is called with the state of the session when it has changed, from one goroutine.
	Report func(routes.Session)
}

// noASN is the AS of the process (AS_TRANS, RFC 6793). The session has its own AS; GoBGP falls back on this one to
// check whether the peer is internal, so it may not have it.
const noASN = 23456

// Driver is GoBGP with its last configuration. Its methods may be called from several goroutines.
type Driver struct {
	log    *slog.Logger
	report func(routes.Session)

	mu     sync.Mutex // held over every change of GoBGP
	server *server.BgpServer
	id     netip.Addr // the router ID with which GoBGP was started
	want   routes.Peer
	wanted map[netip.Prefix]view.Attributes
	peer   *peer // nil if it is not in GoBGP
	routes paths
	serial uint64 // of names in GoBGP's policies, which are never reused
	retry  backoff
	// discovery is not nil while the peer waits for its router to send its AS.
	discovery *discovery
	// leaving is set once the peer was asked to prefer other paths.
	leaving bool

	session *session
}

// New returns a driver. It starts nothing.
func New(o Options) *Driver {
	return &Driver{log: o.Log, report: o.Report, wanted: map[netip.Prefix]view.Attributes{}, routes: newPaths(), session: newSession()}
}

// Apply applies a change of the peer and of routes; nil ones are withdrawn. The first change is full and starts GoBGP:
// all paths are added before the peer, because GoBGP sends a peer the end of the table (RFC 4724, 2) after the existing
// paths. A peer that GoBGP rejects is retried and shown in the reports; the returned error is one that no report can
// show. The order ensures that the peer receives no unwanted route.
func (d *Driver) Apply(full bool, p routes.Peer, prefixes map[netip.Prefix]*view.Attributes) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	first := d.server == nil
	switch {
	case first && !full:
		return errors.New("apply a change to BGP: the first change is not complete")
	case first:
		if err := d.start(p.RouterID); err != nil {
			return err
		}
	case p.RouterID != d.id:
		return fmt.Errorf("change the router ID from %v to %v: it needs another process", d.id, p.RouterID)
	}
	before := d.want
	add, restarting := d.configure(p)
	var errs []error
	if !sameHops(before, p) {
		errs = append(errs, d.replaceStatements())
		if d.peer != nil {
			d.resend()
		}
	}
	errs = append(errs, d.updateRoutes(d.touch(full, prefixes)))
	if add {
		d.addPeer(first || restarting)
	}
	d.countPrefixes()
	return errors.Join(errs...)
}

// touch records the wanted routes and returns their prefixes and those of missing ones, ascending.
func (d *Driver) touch(full bool, attributes map[netip.Prefix]*view.Attributes) []netip.Prefix {
	prefixes := slices.Collect(maps.Keys(attributes))
	if full {
		for prefix := range d.wanted {
			if _, also := attributes[prefix]; !also {
				prefixes = append(prefixes, prefix)
			}
		}
		clear(d.wanted)
	}
	for prefix, a := range attributes {
		if a != nil {
			d.wanted[prefix] = *a
		} else {
			delete(d.wanted, prefix)
		}
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return prefixes
}

// start starts GoBGP without a listener, with policies that import and export nothing.
func (d *Driver) start(id netip.Addr) error {
	s := server.NewBgpServer(server.LoggerOption(&logger{log: d.log, session: d.session}))
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
	if err := s.WatchEvent(ctx, &api.WatchEventRequest{Peer: &api.WatchEventRequest_Peer{}}, d.session.event); err != nil {
		return fmt.Errorf("watch GoBGP's session: %w", err)
	}
	d.server, d.id = s, id
	go d.run()
	return nil
}

// Down takes the session down at once, because BFD found the path to the peer dead. It comes up again by itself. Down
// does not wait for a change that is being applied: GoBGP processes it between two steps of that change.
func (d *Driver) Down(why string) {
	key, held := d.session.key()
	if !held {
		return
	}
	d.session.expect(routes.BFDWentDown, why)
	// d.server is set before the peer is held, and never changes.
	err := d.server.ResetPeer(context.Background(), &api.ResetPeerRequest{Address: key, Communication: why})
	if _, held := d.session.key(); err != nil && held { // else it was removed meanwhile
		d.log.Error("cannot take the BGP session down", "error", err)
	}
}

// Up ends the pause of the router at once, because BFD found that the path to it works again.
func (d *Driver) Up() { d.session.retryNow() }

// Times of Leave: RFC 8326 leaves the first to the operator; routers take a second to switch to another path. GoBGP
// sends the NOTIFICATION to a removed peer asynchronously.
const (
	drainTime    = 2 * time.Second
	withdrawTime = time.Second
	notifyTime   = 500 * time.Millisecond
)

// gracefulShutdown is GRACEFUL_SHUTDOWN (RFC 8326, 5).
const gracefulShutdown = 65535 << 16

// Leave ends the session: of a removed peer at once; otherwise it asks the peer to prefer other paths (RFC 8326, 4.2
// and 4.3), then withdraws each route, then ends the session. The driver must not be used after that.
func (d *Driver) Leave(ctx context.Context, removed bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopDiscovery()
	switch {
	case d.peer == nil:
		return nil
	case removed:
		d.deletePeer("removed from the configuration")
		return pause(ctx, notifyTime)
	}
	d.leaving = true
	errs := []error{d.replaceStatements()}
	d.resend()
	if len(d.wanted) > 0 {
		errs = append(errs, pause(ctx, drainTime))
		errs = append(errs, d.updateRoutes(d.touch(true, nil)), pause(ctx, withdrawTime))
	}
	d.deletePeer("this process ends")
	return errors.Join(errs...)
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
