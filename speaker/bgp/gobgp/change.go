package gobgp

import (
	"context"

	"github.com/ironlb/ironlb/speaker/routes"
	api "github.com/osrg/gobgp/v3/api"
	"google.golang.org/protobuf/proto"
)

// configure removes the peer if it needs a new session, or updates it in place. It reports whether the peer is to be
// added, and whether its router may keep the routes meanwhile.
func (d *Driver) configure(want routes.Peer) (add, restarting bool) {
	was := d.want
	d.want = want
	switch l := d.discovery; {
	case was == want:
		return false, false
	case d.peer != nil:
		return d.updatePeer(want)
	case l != nil:
		d.stopDiscovery()
		return true, l.restarting && timersOnly(l.conf, want)
	}
	return true, false
}

// settingsChanged is the reason for removing a peer that is added again.
const settingsChanged = "settings changed"

// updatePeer changes in place the settings that do not concern the router. It reports whether a new session is needed,
// and whether the router may keep the routes meanwhile.
func (d *Driver) updatePeer(want routes.Peer) (readd, restarting bool) {
	have := d.peer
	if !timersOnly(have.conf, want) {
		d.deletePeer(settingsChanged)
		return true, false
	}
	was, is := have.api(false), (&peer{conf: want, asn: have.asn}).api(false)
	// GoBGP applies these in place. It reads connectTime only before the first attempt, and a limit that was reached
	// keeps the peer idle.
	inPlace := was.Timers.Config.ConnectRetry != is.Timers.Config.ConnectRetry ||
		prefixLimit(have.conf) != prefixLimit(want)
	was.Timers.Config.ConnectRetry = is.Timers.Config.ConnectRetry
	for _, f := range was.AfiSafis {
		f.PrefixLimits.MaxPrefixes = prefixLimit(want)
	}
	switch {
	case !proto.Equal(was, is), inPlace && !d.session.established():
		return true, d.restartSession()
	case inPlace:
		d.session.reconfigured(want)
		if _, err := d.server.UpdatePeer(context.Background(), &api.UpdatePeerRequest{Peer: is}); err != nil {
			d.log.Error("cannot change the BGP peer in place", "error", err)
			return true, d.restartSession()
		}
		d.log.Info("BGP peer changed", "connectTime", want.ConnectTime, "maxReceivedPrefixes", prefixLimit(want))
	}
	have.conf = want
	return false, false
}

// timersOnly reports whether two configurations differ only in timers, apart from settings that do not affect the
// session.
func timersOnly(have, want routes.Peer) bool {
	have.NextHop4, have.NextHop6, have.BFD, have.ConnectTime = want.NextHop4, want.NextHop6, want.BFD, want.ConnectTime
	have.HoldTime, have.KeepaliveTime, have.RestartTime = want.HoldTime, want.KeepaliveTime, want.RestartTime
	have.MaxReceivedPrefixes = want.MaxReceivedPrefixes
	return have == want
}

// restartSession removes the peer, which is to be added again, because the router has outdated timers: they are sent in
// the OPEN only (RFC 4271, 4.2; 4724, 3), and GoBGP uses the KEEPALIVE interval from the start of the session
// (keepaliveTicker in its fsm.go). With graceful restart this is a restart without a NOTIFICATION.
func (d *Driver) restartSession() (restarting bool) {
	p := d.peer
	if p.conf.GracefulRestart {
		d.session.release() // later events of GoBGP about it are ignored
		closed, err := closeSilently(p.conf)
		if err != nil {
			d.log.Error("cannot close the BGP connection without a NOTIFICATION; its router drops the routes", "error", err)
		}
		restarting = closed || p.restarting
	}
	d.deletePeer(settingsChanged)
	return restarting
}
