package gobgp

import (
	"context"

	api "github.com/osrg/gobgp/v3/api"
	"google.golang.org/protobuf/proto"

	"github.com/ironlb/ironlb/speaker/plan"
)

// fresh is a peer to add. It is restarting if its router may keep the previous routes.
type fresh struct {
	name       string
	restarting bool
}

// removePeers removes those of the peers that are gone or need a new session, updates in place where possible, and
// returns the peers to add.
func (d *Driver) removePeers(names []string) (add []fresh) {
	for _, name := range names {
		want, wanted := d.wanted.Peers[name]
		have := d.peers[name]
		switch {
		case have == nil && !wanted:
			d.stopDiscovery(name)
			delete(d.retry, name)
			d.sessions.remove(name)
		case have == nil:
			if l := d.discoveries[name]; l == nil || l.conf != want {
				d.stopDiscovery(name)
				add = append(add, fresh{name, l != nil && l.restarting && timersOnly(l.conf, want)})
			}
		case !wanted:
			d.deletePeer(have, "removed from the configuration")
			d.sessions.remove(name)
		case have.conf == want:
		default:
			if readd, restarting := d.updatePeer(have, want); readd {
				add = append(add, fresh{name, restarting})
			}
		}
	}
	return add
}

// settingsChanged is the reason for removing a peer that is added again.
const settingsChanged = "settings changed"

// updatePeer changes in place the settings that do not concern the router. It reports whether a new session is needed,
// and whether the router may keep the routes meanwhile.
func (d *Driver) updatePeer(have *peer, want plan.Peer) (readd, restarting bool) {
	if !timersOnly(have.conf, want) {
		d.deletePeer(have, settingsChanged)
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
	case !proto.Equal(was, is), inPlace && !d.sessions.established(have.name):
		return true, d.restartSession(have)
	case inPlace:
		d.sessions.reconfigured(have.key, want)
		if _, err := d.server.UpdatePeer(context.Background(), &api.UpdatePeerRequest{Peer: is}); err != nil {
			d.log.Error("cannot change a BGP peer in place", "peer", have.name, "error", err)
			return true, d.restartSession(have)
		}
		d.log.Info("BGP peer changed", "peer", have.name, "connectTime", want.ConnectTime,
			"maxReceivedPrefixes", prefixLimit(want))
	}
	hops := have.conf.NextHop4 != want.NextHop4 || have.conf.NextHop6 != want.NextHop6
	have.conf = want
	if hops {
		d.replaceStatements(have)
		d.resend(have)
	}
	return false, false
}

// timersOnly reports whether two configurations differ only in timers, apart from settings that do not affect the
// session.
func timersOnly(have, want plan.Peer) bool {
	have.NextHop4, have.NextHop6, have.BFD, have.ConnectTime = want.NextHop4, want.NextHop6, want.BFD, want.ConnectTime
	have.HoldTime, have.KeepaliveTime, have.RestartTime = want.HoldTime, want.KeepaliveTime, want.RestartTime
	have.MaxReceivedPrefixes = want.MaxReceivedPrefixes
	return have == want
}

// restartSession removes a peer that is to be added again, because the router has outdated timers: they are sent in the
// OPEN only (RFC 4271, 4.2; 4724, 3), and GoBGP uses the KEEPALIVE interval from the start of the session
// (keepaliveTicker in its fsm.go). With graceful restart this is a restart without a NOTIFICATION.
func (d *Driver) restartSession(p *peer) (restarting bool) {
	if p.conf.GracefulRestart {
		d.sessions.release(p.key) // later events of GoBGP about it are ignored
		closed, err := closeSilently(p.conf)
		if err != nil {
			d.log.Error("cannot close a BGP connection without a NOTIFICATION; its router drops the routes", "peer", p.name, "error", err)
		}
		restarting = closed || p.restarting
	}
	d.deletePeer(p, settingsChanged)
	return restarting
}
