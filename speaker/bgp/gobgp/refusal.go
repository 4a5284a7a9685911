package gobgp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"golang.org/x/sys/unix"
)

// GoBGP discards a NOTIFICATION that arrives before a session is up (opensent and openconfirm in its fsm.go), and with
// it the reason why a router refuses. While GoBGP pauses after such an attempt, this package sends the same OPEN to the
// router once more and reads the answer.

// queryInterval is the minimum interval between two queries of a router. queryDelay is the delay after the refusal:
// routers accept nothing at first. queryLimit is the time limit of a query; it ends before GoBGP's next attempt (5 s,
// holdtimeIdle, plus one).
const (
	queryInterval = time.Minute
	queryDelay    = 3 * time.Second
	queryLimit    = 2 * time.Second
)

// dueQuery returns the peer if its router is to be queried now.
func (s *session) dueQuery(now time.Time) (p routes.Peer, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.refusalUnknown || s.state != routes.SessionIdle || now.Sub(s.queriedAt) < queryInterval {
		return p, false
	}
	if at := s.since.Add(queryDelay); at.After(now) {
		s.dueBy(at)
		return p, false
	}
	s.refusalUnknown, s.queriedAt = false, now
	return s.peer, true
}

// answered records a router's answer, unless the peer has changed meanwhile.
func (s *session) answered(p routes.Peer, c cause) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.peer == p && s.state != routes.SessionEstablished {
		s.fail = c
		s.wakeRun()
	}
}

// communication returns the human-readable message in the data of a NOTIFICATION (RFC 9003, 2).
func communication(code uint8, data []byte) string {
	if code == bgp.BGP_ERROR_CEASE && len(data) > 1 && int(data[0]) < len(data) {
		return string(data[1 : 1+data[0]])
	}
	return ""
}

// dial connects to a router as GoBGP does.
func dial(ctx context.Context, p routes.Peer) (net.Conn, error) {
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error { return options(c, p) }}
	if p.Source.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.Source, 0))
	}
	return dialer.DialContext(ctx, "tcp", net.JoinHostPort(p.Address.String(), strconv.Itoa(int(p.Port))))
}

// refusal connects as GoBGP does, sends an OPEN and returns the NOTIFICATION in the answer.
func refusal(ctx context.Context, p routes.Peer, id netip.Addr) (code, sub uint8, data []byte, err error) {
	conn, err := dial(ctx, p)
	if err != nil {
		return 0, 0, nil, err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return 0, 0, nil, err
		}
	}
	open, err := openMessage(p, id)
	if err != nil {
		return 0, 0, nil, err
	}
	if _, err := conn.Write(open); err != nil {
		return 0, 0, nil, err
	}
	for {
		kind, body, err := readMessage(conn)
		switch {
		case err != nil:
			return 0, 0, nil, err
		case kind == bgp.BGP_MSG_KEEPALIVE:
			return 0, 0, nil, errors.New("the router accepts the session now")
		case kind == bgp.BGP_MSG_NOTIFICATION && len(body) >= 2:
			return body[0], body[1], body[2:], nil
		}
	}
}

// openMessage returns the OPEN that GoBGP sends, with the fields that a router may reject.
func openMessage(p routes.Peer, id netip.Addr) ([]byte, error) {
	var caps []bgp.ParameterCapabilityInterface
	if _, ok := nextHopOf(p, true); ok {
		caps = append(caps, bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC))
	}
	if _, ok := nextHopOf(p, false); ok {
		caps = append(caps, bgp.NewCapMultiProtocol(bgp.RF_IPv6_UC))
	}
	caps = append(caps, bgp.NewCapFourOctetASNumber(asn(p)))
	as := asn(p)
	if as > 0xffff {
		as = bgp.AS_TRANS
	}
	m := bgp.NewBGPOpenMessage(uint16(as), uint16(timers(p).HoldTime), id.String(),
		[]bgp.OptionParameterInterface{bgp.NewOptionParameterCapability(caps)})
	return m.Serialize()
}

// readMessage reads one message without parsing its body (RFC 4271, 4.1).
func readMessage(r io.Reader) (kind uint8, body []byte, err error) {
	var head [bgp.BGP_HEADER_LENGTH]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	length := int(binary.BigEndian.Uint16(head[16:]))
	if length < len(head) || length > bgp.BGP_MAX_MESSAGE_LENGTH {
		return 0, nil, fmt.Errorf("a message of %d octets", length)
	}
	body = make([]byte, length-len(head))
	_, err = io.ReadFull(r, body)
	return head[18], body, err
}

// options sets the socket options that GoBGP sets: the password (RFC 2385) and the TTL.
func options(c syscall.RawConn, p routes.Peer) error {
	var err error
	control := func(fd uintptr) {
		if p.Password != "" {
			err = unix.SetsockoptTCPMD5Sig(int(fd), unix.IPPROTO_TCP, unix.TCP_MD5SIG, signature(p))
		}
		ttl := 0
		switch {
		case p.TTLSecurity || p.MultiHop:
			ttl = 255
		case isExternal(p):
			ttl = 1
		}
		if err != nil || ttl == 0 {
			return
		}
		if p.Address.Is4() {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, ttl)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, ttl)
		}
	}
	return errors.Join(c.Control(control), err)
}

// signature returns the password and its address as a struct tcp_md5sig of linux/tcp.h.
func signature(p routes.Peer) *unix.TCPMD5Sig {
	s := &unix.TCPMD5Sig{Keylen: uint16(len(p.Password))}
	copy(s.Key[:], p.Password)
	if p.Address.Is4() {
		s.Addr.Family = unix.AF_INET
		copy(s.Addr.Data[2:], p.Address.AsSlice())
	} else {
		s.Addr.Family = unix.AF_INET6
		copy(s.Addr.Data[6:], p.Address.AsSlice())
	}
	return s
}
