package gobgp

import (
	"context"
	"errors"
	"fmt"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"google.golang.org/protobuf/proto"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// peer is the peer in GoBGP.
type peer struct {
	conf routes.Peer
	// key is its name in GoBGP, its address.
	key string
	// asn is the router's AS.
	asn uint32
	// restarting is set while GoBGP may not have sent it the restart state yet.
	restarting bool
}

// Defaults for fields that the BGPPeer does not set.
const (
	connectTime         = 5 * time.Second
	restartTime         = time.Minute
	holdTime            = 90 * time.Second
	maxReceivedPrefixes = 10_000
)

// deferral is how long a restarting process waits for its peers' routes before it sends its table (RFC 4724, 4.1): with
// GoBGP's 360 s, one peer that never completes delays all others. idle is the pause of a session after a reset.
const (
	deferral = 3 * time.Second
	idle     = time.Second
)

// backoff is the retry state of a peer that GoBGP rejects, zero if it does not.
type backoff struct {
	next time.Time
	wait time.Duration
}

const (
	firstRetry = 5 * time.Second
	lastRetry  = time.Minute
)

func (d *Driver) deletePeer(why string) {
	p := d.peer
	err := d.server.DeletePeer(context.Background(), &api.DeletePeerRequest{Address: p.key})
	if err != nil {
		d.log.Error("cannot remove the BGP peer", "error", err)
	}
	d.removeState()
	d.log.Info("BGP peer removed", "address", p.conf.Address, "reason", why)
}

// removeState records that the peer is no longer in GoBGP.
func (d *Driver) removeState() {
	d.peer = nil
	d.session.release()
}

// addPeer adds the peer to GoBGP, as a restarting one (RFC 4724, 4.1) if it has graceful restart and its router may
// have previous routes.
func (d *Driver) addPeer(restarting bool) {
	conf := d.want
	restarting = restarting && conf.GracefulRestart
	if err := check(conf); err != nil {
		d.tryLater(err)
		return
	}
	switch {
	case conf.PeerASN != 0:
		d.offerOrRetry(conf.PeerASN, restarting)
	case conf.Dynamic == view.AnyInternal:
		d.offerOrRetry(asn(conf), restarting)
	default:
		d.retry = backoff{}
		d.discover(restarting)
	}
}

// offerOrRetry adds the peer with a known AS to GoBGP.
func (d *Driver) offerOrRetry(peerASN uint32, restarting bool) {
	p := &peer{conf: d.want, key: d.want.Address.String(), asn: peerASN, restarting: restarting}
	d.peer = p
	d.session.hold(p.conf)
	if err := d.server.AddPeer(context.Background(), &api.AddPeerRequest{Peer: p.api(restarting)}); err != nil {
		d.removeState()
		d.tryLater(err)
		return
	}
	d.retry = backoff{}
	d.log.Info("BGP peer added", "address", p.conf.Address, "asn", asn(p.conf), "peerASN", peerASN)
}

// tryLater schedules a retry for the peer that GoBGP rejected.
func (d *Driver) tryLater(err error) {
	d.retry.wait = min(max(2*d.retry.wait, firstRetry), lastRetry)
	d.retry.next = time.Now().Add(d.retry.wait)
	d.session.fails(routes.NotConfigured, err.Error())
	d.session.schedule(d.retry.next)
}

// check rejects settings that GoBGP would accept but not apply.
func check(p routes.Peer) error {
	switch {
	case p.Address.Zone() != "" && p.Password != "":
		return errors.New("passwordSecret: GoBGP cannot sign packets to a link-local address: use another address of the router, or no password")
	case len(p.Password) > 80:
		return errors.New("passwordSecret: the kernel accepts at most 80 octets")
	case p.Source.IsValid() && p.Source.Is4() != p.Address.Is4():
		return fmt.Errorf("sourceAddress: %v is of another family than the router's %v", p.Source, p.Address)
	case len(families(p)) == 0:
		return errors.New("no address family is usable: this node has no address for the next hop")
	case p.MultiHop && p.TTLSecurity:
		return errors.New("ttlSecurity: not together with ebgpMultiHop, whose packets arrive with a lower TTL")
	}
	return noInterface(p)
}

func asn(p routes.Peer) uint32 {
	if p.LocalASN != 0 {
		return p.LocalASN
	}
	return p.MyASN
}

// isExternal reports whether a peer is configured with another AS than this side.
func isExternal(p routes.Peer) bool {
	if p.PeerASN == 0 {
		return p.Dynamic == view.AnyExternal
	}
	return p.PeerASN != asn(p)
}

// api returns the peer in GoBGP's form.
func (x *peer) api(restarting bool) *api.Peer {
	p := x.conf
	out := &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: p.Address.String(), LocalAsn: asn(p), PeerAsn: x.asn, AuthPassword: string(p.Password)},
		Timers:    &api.Timers{Config: timers(p)},
		Transport: &api.Transport{RemotePort: uint32(p.Port)},
		AfiSafis:  families(p),
	}
	if p.Source.IsValid() {
		out.Transport.LocalAddress = p.Source.String()
	}
	if p.MultiHop {
		out.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: 255}
	}
	if p.TTLSecurity {
		out.TtlSecurity = &api.TtlSecurity{Enabled: true, TtlMin: 255}
	}
	if p.GracefulRestart {
		// No N bit (RFC 8538): with it a router keeps the routes of a dead node beyond the hold time.
		out.GracefulRestart = &api.GracefulRestart{Enabled: true, RestartTime: seconds(p.RestartTime, restartTime),
			DeferralTime: seconds(deferral, 0), LocalRestarting: restarting}
	}
	return out
}

func timers(p routes.Peer) *api.TimersConfig {
	hold := seconds(p.HoldTime, holdTime)
	keepalive := uint64(seconds(p.KeepaliveTime, 0))
	if keepalive == 0 {
		keepalive = max(1, uint64(hold)/3)
	}
	return &api.TimersConfig{HoldTime: uint64(hold), KeepaliveInterval: keepalive,
		ConnectRetry: uint64(seconds(p.ConnectTime, connectTime)), IdleHoldTimeAfterReset: uint64(seconds(idle, 0))}
}

func families(p routes.Peer) (out []*api.AfiSafi) {
	add := func(f *api.Family) {
		out = append(out, &api.AfiSafi{Config: &api.AfiSafiConfig{Family: f, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: p.GracefulRestart}},
			PrefixLimits:      &api.PrefixLimit{Family: f, MaxPrefixes: prefixLimit(p)}})
	}
	if _, ok := nextHopOf(p, true); ok {
		add(ipv4)
	}
	if _, ok := nextHopOf(p, false); ok {
		add(ipv6)
	}
	return out
}

// seconds rounds up, because GoBGP supports no less than a second.
func seconds(t, otherwise time.Duration) uint32 {
	if t <= 0 {
		t = otherwise
	}
	return uint32((t + time.Second - 1) / time.Second)
}

// nextHopOf reports whether a family is enabled with a peer, and returns its next hop. "self" is this end of the
// session.
func nextHopOf(p routes.Peer, four bool) (nexthop *api.NexthopAction, ok bool) {
	wanted, given := p.IPv6, p.NextHop6
	if four {
		wanted, given = p.IPv4, p.NextHop4
	}
	own := p.Address.Is4() == four
	switch {
	case !wanted:
		return nil, false
	case given.IsValid() && (!own || p.Address.Zone() != ""): // a router would not re-advertise a link-local next hop
		return &api.NexthopAction{Address: given.String()}, true
	case own:
		return &api.NexthopAction{Self: true}, true
	}
	return nil, false
}

// sameHops reports whether two configurations of the peer have the same families and next hops.
func sameHops(a, b routes.Peer) bool {
	for _, four := range []bool{true, false} {
		x, has := nextHopOf(a, four)
		y, also := nextHopOf(b, four)
		if has != also || !proto.Equal(x, y) {
			return false
		}
	}
	return true
}

// resend sends the peer its full table again.
func (d *Driver) resend() {
	err := d.server.ResetPeer(context.Background(), &api.ResetPeerRequest{Address: d.peer.key, Soft: true, Direction: api.ResetPeerRequest_OUT})
	if err != nil {
		d.log.Error("cannot resend the routes to the BGP peer", "error", err)
	}
}
