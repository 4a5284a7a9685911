package capture

import (
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// TestPackets: packets between two namespaces are read in both, once each, with addresses, ports, payload and time.
func TestPackets(t *testing.T) {
	a, b := netspace.New(t), netspace.New(t)
	netspace.Join(t, a, "eth0", "192.0.2.1/24", b, "eth0", "192.0.2.2/24")
	a.Address(t, "eth0", "2001:db8::1/64")
	b.Address(t, "eth0", "2001:db8::2/64")
	seen := map[bool]chan Packet{}
	for _, near := range []bool{true, false} {
		packets := make(chan Packet, 100)
		seen[near] = packets
		space := map[bool]*netspace.Space{true: a, false: b}[near]
		space.Must(t, func() error {
			stop, err := Start(func(p Packet) {
				p.Payload = append([]byte(nil), p.Payload...)
				if len(p.Payload) > 0 {
					packets <- p
				}
			})
			if err == nil {
				t.Cleanup(stop)
			}
			return err
		})
	}
	long := strings.Repeat("long ", 2000) // more than one segment
	for _, c := range []struct {
		network, to string
		protocol    byte
		payload     string
	}{{"udp", "192.0.2.2:3784", unix.IPPROTO_UDP, "x"}, {"udp", "[2001:db8::2]:3784", unix.IPPROTO_UDP, "four"},
		{"tcp", "192.0.2.2:179", unix.IPPROTO_TCP, long}, {"tcp", "[2001:db8::2]:179", unix.IPPROTO_TCP, "six"}} {
		began := time.Now()
		if c.network == "tcp" {
			b.Must(t, func() error {
				l, err := net.Listen("tcp", c.to)
				if err != nil {
					return err
				}
				t.Cleanup(func() { l.Close() })
				go func() {
					if conn, err := l.Accept(); err == nil {
						_, _ = io.Copy(io.Discard, conn)
						conn.Close()
					}
				}()
				return nil
			})
		}
		var from netip.AddrPort
		a.Must(t, func() error {
			conn, err := net.Dial(c.network, c.to)
			if err != nil {
				return err
			}
			defer conn.Close()
			from = netip.MustParseAddrPort(conn.LocalAddr().String())
			_, err = conn.Write([]byte(c.payload))
			return err
		})
		for near, packets := range seen {
			for payload := ""; payload != c.payload; {
				select {
				case p := <-packets:
					if p.Protocol != c.protocol || p.From != from || p.To.String() != c.to || p.Outgoing != near {
						t.Fatalf("%s to %s: in the sender's namespace %v: %+v", c.network, c.to, near, p)
					}
					if p.At.Before(began) || p.At.After(time.Now()) {
						t.Errorf("%s to %s: at %v, sent from %v on", c.network, c.to, p.At, began)
					}
					payload += string(p.Payload)
					if !strings.HasPrefix(c.payload, payload) {
						t.Fatalf("%s to %s: payload %q", c.network, c.to, payload)
					}
				case <-time.After(20 * time.Second):
					t.Fatalf("%s to %s: in the sender's namespace %v: %d of %d bytes seen", c.network, c.to, near, len(payload), len(c.payload))
				}
			}
		}
	}
}

// FuzzParse: no input from the wire crashes the reader.
func FuzzParse(f *testing.F) {
	f.Add([]byte("\x45\x00\x00\x1d\x00\x00\x00\x00\x40\x11\x00\x00\xc0\x00\x02\x01\xc0\x00\x02\x02\x00\x01\x00\x02\x00\x09\x00\x00x"))
	f.Add(append([]byte("\x60\x00\x00\x00\x00\x14\x06\x40"), make([]byte, 52)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := parse(b)
		if ok && len(p.Payload) > len(b)-28 {
			t.Errorf("a payload of %d bytes out of %d", len(p.Payload), len(b))
		}
	})
}
