package gobgp

import (
	"bytes"
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// message returns a BGP message (RFC 4271, 4.1).
func message(kind byte, body ...byte) []byte {
	m := binary.BigEndian.AppendUint16(bytes.Repeat([]byte{0xff}, 16), uint16(19+len(body)))
	return append(append(m, kind), body...)
}

// open returns an OPEN of a router, with or without the four octets of an AS as a capability (RFC 6793).
func open(version byte, as uint16, four ...byte) []byte {
	body := binary.BigEndian.AppendUint16([]byte{version}, as)
	body = append(body, 0, 90, 203, 0, 113, 1)
	if len(four) == 0 {
		return message(bgp.BGP_MSG_OPEN, append(body, 0)...)
	}
	return message(bgp.BGP_MSG_OPEN, append(append(body, 8, 2, 6, 65, 4), four...)...)
}

// TestOpenASN: a router's possible answers to a query for its AS, and the time until the result.
func TestOpenASN(t *testing.T) {
	ends := func(m []byte) func(net.Conn) { return func(c net.Conn) { c.Write(m) } }
	// A net.Pipe rejects deadlines once its other end is closed, unlike a TCP connection.
	sends := func(m []byte) func(net.Conn) { return func(c net.Conn) { c.Write(m); c.Read(make([]byte, 1)) } }
	for name, c := range map[string]struct {
		router func(net.Conn)
		asn    uint32
		why    view.Reason
		words  string
		after  time.Duration
	}{
		"two octets":     {router: sends(open(4, 65002)), asn: 65002},
		"four octets":    {router: sends(open(4, bgp.AS_TRANS, 0xfa, 0x56, 0xea, 0x02)), asn: 4200000002},
		"waits for ours": {router: answersOpen, asn: 65002, after: openPause},
		"internal":       {router: sends(open(4, nodeASN)), why: routes.WrongASN, words: "dynamicASN"},
		"refuses":        {router: sends(message(bgp.BGP_MSG_NOTIFICATION, 6, 2, 3, 'o', 'f', 'f')), why: routes.Rejected, words: `"off"`},
		"another AS":     {router: sends(message(bgp.BGP_MSG_NOTIFICATION, 2, 2)), why: routes.WrongASN, words: "localASN"},
		"closes":         {router: func(net.Conn) {}, why: routes.Refused, words: "closes"},
		"half a message": {router: ends(open(4, 65002)[:20]), why: routes.Refused},
		"silent":         {router: func(c net.Conn) { c.Read(make([]byte, 4096)); c.Read(make([]byte, 1)) }, why: routes.NoAnswer, after: openPause + queryLimit},
		"an old version": {router: sends(open(3, 65002)), why: routes.Rejected, words: "version"},
		"no OPEN":        {router: sends(message(bgp.BGP_MSG_KEEPALIVE)), why: routes.Rejected, words: "no OPEN"},
		"no BGP":         {router: sends([]byte("220 mail.example.com ESMTP Postfix\r\n")), why: routes.Refused},
		"a cut OPEN":     {router: sends(message(bgp.BGP_MSG_OPEN, 4, 0xfd)), why: routes.Rejected},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				go func() {
					defer there.Close()
					c.router(there)
				}()
				start := time.Now()
				p := routes.Peer{Address: addr("198.51.100.1"), MyASN: nodeASN, Dynamic: view.AnyExternal, IPv4: true}
				asn, why := openASN(here, p, nodeID)
				here.Close()
				if asn != c.asn || why.reason != c.why || !strings.Contains(why.message, c.words) {
					t.Errorf("AS %d, %s: %s", asn, why.reason, why.message)
				}
				if took := time.Since(start); took != c.after {
					t.Errorf("known after %v, want %v", took, c.after)
				}
			})
		})
	}
}

// answersOpen is a router that sends nothing before it has received an OPEN with this node's AS.
func answersOpen(c net.Conn) {
	kind, body, err := readMessage(c)
	if err == nil && kind == bgp.BGP_MSG_OPEN && binary.BigEndian.Uint16(body[1:]) == nodeASN {
		c.Write(open(4, 65002))
	}
}
