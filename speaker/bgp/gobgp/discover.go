package gobgp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
)

// A router of any external AS is first queried for its AS, and is then added to GoBGP with that AS. Without the AS,
// GoBGP would not limit the session to one hop (connectLoop and setPeerConnTTL in its fsm.go need PeerAs), and would
// accept an internal router.

// discovery is a query of the router for its AS.
type discovery struct {
	conf       routes.Peer
	restarting bool
	stop       context.CancelFunc
}

// openPause is how long a router may delay its OPEN until it receives one (RFC 4271, 8.1.1: DelayOpen). Most routers do
// not wait, and a router that received no OPEN does not count the end of the connection as an error.
const openPause = time.Second

// discover starts to query the router for its AS.
func (d *Driver) discover(restarting bool) {
	ctx, stop := context.WithCancel(context.Background())
	d.discovery = &discovery{d.want, restarting, stop}
	d.session.fails("", "") // no reason yet
	go d.discoverASN(ctx, d.discovery)
}

// stopDiscovery does nothing if the router is not being queried.
func (d *Driver) stopDiscovery() {
	if d.discovery != nil {
		d.discovery.stop()
		d.discovery = nil
	}
}

// discoverASN queries as often as GoBGP would be allowed to connect, until the router has sent an acceptable AS.
func (d *Driver) discoverASN(ctx context.Context, l *discovery) {
	tick := time.Duration(seconds(l.conf.ConnectTime, connectTime)) * time.Second
	began, pauses := time.Now(), 0
	for {
		asn, why := queryASN(ctx, l.conf, l.conf.RouterID, max(tick-time.Second, time.Second))
		if d.discovered(l, asn, why) {
			return
		}
		wait := tick + rand.N(tick)
		if why.reason == routes.WrongASN || !d.session.atInitialPace(l.conf, began, time.Now()) {
			pauses++
			wait = jitter(pauseLength(tick, pauses))
		}
		if pause(ctx, wait) != nil {
			return
		}
	}
}

// discovered records the router's answer, and reports whether no further query is needed.
func (d *Driver) discovered(l *discovery, asn uint32, why cause) (done bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.discovery != l {
		return true
	}
	if why.reason != "" {
		d.session.fails(why.reason, why.message)
		return false
	}
	d.stopDiscovery()
	d.offerOrRetry(asn, l.restarting)
	d.countPrefixes()
	return true
}

// queryASN connects as the session would and returns the AS in the router's OPEN, or why there is none.
func queryASN(ctx context.Context, p routes.Peer, id netip.Addr, limit time.Duration) (uint32, cause) {
	dialing, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := dial(dialing, p)
	if err != nil {
		return 0, connecting(err, p)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	return openASN(conn, p, id)
}

// openASN returns the AS that the router at the other end sends.
func openASN(conn net.Conn, p routes.Peer, id netip.Addr) (uint32, cause) {
	kind, body, err := firstMessage(conn, p, id)
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return 0, cause{routes.NoAnswer, sendsNothing}
	case err != nil:
		return 0, cause{routes.Refused, closesAtOnce}
	case kind == bgp.BGP_MSG_NOTIFICATION && len(body) >= 2:
		return 0, notified(body[0], body[1], communication(body[0], body[2:]))
	}
	m, err := bgp.ParseBGPBody(&bgp.BGPHeader{Type: kind, Len: uint16(bgp.BGP_HEADER_LENGTH + len(body))}, body)
	if err != nil {
		return 0, cause{routes.Rejected, fmt.Sprintf("this node rejects the router's message: %v", err)}
	}
	open, ok := m.Body.(*bgp.BGPOpen)
	if !ok {
		return 0, cause{routes.Rejected, "this node rejects the router's message: it is no OPEN"}
	}
	received, err := bgp.ValidateOpenMsg(open, 0, asn(p), net.IP(id.AsSlice()))
	var wrong *bgp.MessageError
	if errors.As(err, &wrong) {
		return 0, refusing(wrong, p)
	}
	if received == asn(p) {
		return 0, cause{routes.WrongASN, "dynamicASN: the router has this node's own AS, but dynamicASN is external"}
	}
	return received, cause{}
}

// firstMessage waits for a router's OPEN, and sends one first if the router waits for that.
func firstMessage(conn net.Conn, p routes.Peer, id netip.Addr) (kind uint8, body []byte, err error) {
	r := bufio.NewReader(conn)
	if err := conn.SetReadDeadline(time.Now().Add(openPause)); err != nil {
		return 0, nil, err
	}
	if _, err := r.Peek(1); errors.Is(err, os.ErrDeadlineExceeded) {
		open, err := openMessage(p, id)
		if err != nil {
			return 0, nil, err
		}
		if _, err := conn.Write(open); err != nil {
			return 0, nil, err
		}
	}
	if err := conn.SetReadDeadline(time.Now().Add(queryLimit)); err != nil {
		return 0, nil, err
	}
	return readMessage(r)
}

// hasOtherASN reports whether the router has connected with another AS than it sent when it was queried.
func (s *session) hasOtherASN() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asnChanged && s.state == routes.SessionIdle
}

// rediscover queries the router for its AS once more.
func (d *Driver) rediscover() {
	d.deletePeer("the router has another AS than before")
	d.addPeer(false)
	d.countPrefixes()
}
