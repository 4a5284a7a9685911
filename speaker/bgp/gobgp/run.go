package gobgp

import (
	"context"
	"maps"
	"slices"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/ironlb/ironlb/speaker/plan"
)

// run reports changes of the sessions and processes what is due, for the lifetime of the process.
func (d *Driver) run() {
	timer := time.NewTimer(0)
	for full := true; ; full = false {
		if !full {
			select {
			case <-d.sessions.wake:
			case <-timer.C:
			}
		}
		d.processDue()
		report, transitions := d.sessions.changed(time.Now(), full)
		if len(report.Sessions) > 0 || full {
			d.logTransitions(transitions)
			d.report(report)
		}
		if next := d.sessions.due(); !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
		}
	}
}

// due returns the next due time, and clears it.
func (s *sessions) due() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.next
	s.next = time.Time{}
	return next
}

// processDue processes what waited for its time or for a session.
func (d *Driver) processDue() {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for _, name := range slices.Sorted(maps.Keys(d.retry)) {
		if b := d.retry[name]; !b.next.After(now) {
			d.addPeer(name, false)
			d.countPrefixes()
		} else {
			d.sessions.schedule(b.next)
		}
	}
	for _, name := range d.sessions.changedASNs() {
		d.rediscover(name)
	}
	for _, name := range d.sessions.losses() {
		if p := d.peers[name]; p != nil {
			p.restarting = p.conf.GracefulRestart && acceptsConnections(p.conf, d.id)
		}
	}
	d.keepRestarting()
	for _, name := range d.sessions.stuck(now) {
		if p := d.peers[name]; p != nil {
			d.readd(p)
		}
	}
	d.applyPauses(now)
	for _, q := range d.sessions.dueQueries(now) {
		go d.queryRefusal(q, d.id)
	}
}

// openTime is the time limit from the connection to the session. GoBGP waits 4 minutes (RFC 4271, 8.2.2), and makes no
// new connection while it waits for a router that has dropped the old one.
const openTime = 15 * time.Second

// stuck returns the peers that need a new attempt.
func (s *sessions) stuck(now time.Time) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, x := range s.byName {
		if x.state != plan.SessionOpenSent && x.state != plan.SessionOpenConfirm {
			continue
		}
		if at := x.since.Add(openTime); at.After(now) {
			s.dueBy(at)
		} else {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// losses returns, once, the peers whose session ended without a NOTIFICATION. The router keeps their routes for the
// next session if that one announces that forwarding continued (RFC 4724, 3: the F bit; 4.2), which it did: the kernel
// forwards. GoBGP announces that only for a restarting peer (capabilitiesFromConfig in its fsm.go), so such a peer is
// added again as a restarting one.
func (s *sessions) losses() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, x := range s.byName {
		if x.lost {
			x.lost = false
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// keepRestarting ensures that each peer receives the restart state. As soon as the peers that are up have sent their
// tables, GoBGP considers the restart complete for all of them (handleFSMMessage in its server.go, "sync finished";
// fixed in v4.6.0): a peer that is not up yet would receive that this node has lost its forwarding state, and would
// drop its routes for an instant.
func (d *Driver) keepRestarting() {
	for _, name := range slices.Sorted(maps.Keys(d.peers)) {
		p := d.peers[name]
		if !p.restarting {
			continue
		}
		complete, state := d.restartComplete(p)
		switch state {
		case api.PeerState_IDLE, api.PeerState_ACTIVE, api.PeerState_CONNECT:
			if complete {
				d.readd(p)
			}
		case api.PeerState_ESTABLISHED:
			p.restarting = false
		}
	}
}

func (d *Driver) restartComplete(p *peer) (complete bool, state api.PeerState_SessionState) {
	err := d.server.ListPeer(context.Background(), &api.ListPeerRequest{Address: p.key}, func(x *api.Peer) {
		complete, state = !x.GetGracefulRestart().GetLocalRestarting(), x.GetState().GetSessionState()
	})
	if err != nil {
		d.log.Error("cannot read a BGP peer's state", "peer", p.name, "error", err)
	}
	return complete, state
}

// readd adds a peer to GoBGP once more, as a restarting one if it has not been up since the restart.
func (d *Driver) readd(p *peer) {
	ctx := context.Background()
	d.sessions.trying(p.key)
	if err := d.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: p.key}); err != nil {
		d.log.Error("cannot remove a BGP peer", "peer", p.name, "error", err)
		return
	}
	if err := d.server.AddPeer(ctx, &api.AddPeerRequest{Peer: p.api(p.restarting)}); err != nil {
		d.log.Error("cannot re-add a BGP peer", "peer", p.name, "error", err)
		d.removeState(p)
		d.tryLater(p.name, err)
		d.countPrefixes()
	}
}

// logTransitions logs the session changes that concern an operator.
func (d *Driver) logTransitions(transitions []transition) {
	slices.SortFunc(transitions, func(a, b transition) int { return slices.Compare([]string{a.name}, []string{b.name}) })
	for _, n := range transitions {
		switch {
		case n.now.State == plan.SessionEstablished && n.now.Changes != n.was.Changes:
			d.log.Info("BGP session up", "peer", n.name, "peerASN", n.now.PeerASN, "routerID", n.now.PeerID, "prefixes", n.now.Prefixes)
		case n.was.State == plan.SessionEstablished && n.now.State != plan.SessionEstablished && n.now.Reason != "":
			d.log.Warn("BGP session down", "peer", n.name, "reason", n.now.Reason, "message", n.now.Message)
		case n.now.State != plan.SessionEstablished && n.now.Reason != "" && (n.now.Reason != n.was.Reason || n.now.Message != n.was.Message):
			d.log.Warn("BGP session does not come up", "peer", n.name, "reason", n.now.Reason, "message", n.now.Message)
		}
	}
}
