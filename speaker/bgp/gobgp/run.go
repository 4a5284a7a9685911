package gobgp

import (
	"context"
	"net/netip"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/ironlb/ironlb/speaker/routes"
)

// run reports changes of the session and processes what is due, for the lifetime of the process.
func (d *Driver) run() {
	timer := time.NewTimer(0)
	for {
		d.processDue()
		if t, changed := d.session.changed(time.Now()); changed {
			d.logTransition(t)
			d.report(t.now)
		}
		if next := d.session.due(); !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
		}
		select {
		case <-d.session.wake:
		case <-timer.C:
		}
	}
}

// due returns the next due time, and clears it.
func (s *session) due() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.next
	s.next = time.Time{}
	return next
}

// processDue processes what waited for its time or for the session.
func (d *Driver) processDue() {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	switch {
	case d.retry.next.IsZero():
	case d.retry.next.After(now):
		d.session.schedule(d.retry.next)
	default:
		d.addPeer(false)
		d.countPrefixes()
	}
	if d.peer != nil && d.session.hasOtherASN() {
		d.rediscover()
	}
	if d.peer != nil && d.session.isLost() {
		d.peer.restarting = d.want.GracefulRestart && acceptsConnections(d.peer.conf, d.id)
	}
	d.keepRestarting()
	if d.session.stuck(now) && d.peer != nil {
		d.readd()
	}
	d.applyPauses(now)
	if p, due := d.session.dueQuery(now); due {
		go d.queryRefusal(p)
	}
}

// applyPauses starts a pause after a failed attempt, and tries the peer again whose pause has ended.
func (d *Driver) applyPauses(now time.Time) {
	if d.session.endedPause(now) && d.peer != nil {
		d.readd()
	}
	if d.session.duePause(now) && d.peer != nil {
		if err := d.server.DisablePeer(context.Background(), &api.DisablePeerRequest{Address: d.peer.key}); err != nil {
			d.log.Error("cannot pause the BGP peer", "error", err)
		}
	}
}

// queryRefusal queries the reason of a refusal. It fails silently: the status already shows what is known without it.
func (d *Driver) queryRefusal(p routes.Peer) {
	ctx, cancel := context.WithTimeout(context.Background(), queryLimit)
	defer cancel()
	code, sub, data, err := refusal(ctx, p, p.RouterID)
	if err != nil {
		d.log.Debug("no reason for the refusal of the BGP router", "error", err)
		return
	}
	d.session.answered(p, notified(code, sub, communication(code, data)))
}

// openTime is the time limit from the connection to the session. GoBGP waits 4 minutes (RFC 4271, 8.2.2), and makes no
// new connection while it waits for a router that has dropped the old one.
const openTime = 15 * time.Second

// stuck reports whether a new attempt is needed.
func (s *session) stuck(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != routes.SessionOpenSent && s.state != routes.SessionOpenConfirm {
		return false
	}
	at := s.since.Add(openTime)
	if at.After(now) {
		s.dueBy(at)
	}
	return !at.After(now)
}

// isLost reports, once, whether the session ended without a NOTIFICATION. The router keeps the routes for the next
// session if that one announces that forwarding continued (RFC 4724, 3: the F bit; 4.2), which it did: the kernel
// forwards. GoBGP announces that only for a restarting peer (capabilitiesFromConfig in its fsm.go), so the peer is
// added again as a restarting one.
func (s *session) isLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := s.lost
	s.lost = false
	return lost
}

// keepRestarting ensures that the peer receives the restart state. GoBGP clears it once the table was sent
// (handleFSMMessage in its server.go, "sync finished") or the deferral time is over.
func (d *Driver) keepRestarting() {
	if d.peer == nil || !d.peer.restarting {
		return
	}
	complete, state := d.restartComplete()
	switch state {
	case api.PeerState_IDLE, api.PeerState_ACTIVE, api.PeerState_CONNECT:
		if complete {
			d.readd()
		}
	case api.PeerState_ESTABLISHED:
		d.peer.restarting = false
	}
}

func (d *Driver) restartComplete() (complete bool, state api.PeerState_SessionState) {
	err := d.server.ListPeer(context.Background(), &api.ListPeerRequest{Address: d.peer.key}, func(x *api.Peer) {
		complete, state = !x.GetGracefulRestart().GetLocalRestarting(), x.GetState().GetSessionState()
	})
	if err != nil {
		d.log.Error("cannot read the BGP peer's state", "error", err)
	}
	return complete, state
}

// readd adds the peer to GoBGP once more, as a restarting one if it has not been up since the restart.
func (d *Driver) readd() {
	ctx, p := context.Background(), d.peer
	d.session.trying()
	if err := d.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: p.key}); err != nil {
		d.log.Error("cannot remove the BGP peer", "error", err)
		return
	}
	if err := d.server.AddPeer(ctx, &api.AddPeerRequest{Peer: p.api(p.restarting)}); err != nil {
		d.log.Error("cannot re-add the BGP peer", "error", err)
		d.removeState()
		d.tryLater(err)
		d.countPrefixes()
	}
}

// logTransition logs a session change that concerns an operator.
func (d *Driver) logTransition(t transition) {
	was, now := t.was, t.now
	switch {
	case now.State == routes.SessionEstablished && now.Changes != was.Changes:
		d.log.Info("BGP session up", "peerASN", now.PeerASN, "routerID", now.PeerID, "prefixes", now.Prefixes)
	case was.State == routes.SessionEstablished && now.State != routes.SessionEstablished && now.Reason != "":
		d.log.Warn("BGP session down", "reason", now.Reason, "message", now.Message)
	case now.State != routes.SessionEstablished && now.Reason != "" && (now.Reason != was.Reason || now.Message != was.Message):
		d.log.Warn("BGP session does not come up", "reason", now.Reason, "message", now.Message)
	}
}

// acceptsConnections reports whether a router with a lost session still accepts connections. If it does not, the router
// has ended. Then this side must not send that it has restarted itself (RFC 4724, 3: the R bit), because a restarted
// router removes such a peer from those whose tables it waits for (4.1). The R bit in the router's own OPEN is no
// indication: FRR sets it for minutes after its start.
func acceptsConnections(p routes.Peer, id netip.Addr) bool {
	ctx, cancel := context.WithTimeout(context.Background(), openPause/2)
	defer cancel()
	for range 2 {
		conn, err := dial(ctx, p)
		if err != nil {
			return false
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() }) // before firstMessage sends an OPEN
		_, _, err = firstMessage(conn, p, id)                   // an end after its OPEN affects a router less
		stop()
		conn.Close()
		// A router that ends closes its connections before or after its port; one that continues may close this
		// connection, too.
		if err == nil || pause(ctx, portCloseDelay) != nil {
			break
		}
	}
	return true
}

// portCloseDelay is the maximum delay between the connections and the port of an ending process being closed.
const portCloseDelay = 100 * time.Millisecond
