package sim

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
)

// The networks: VirtualIPs are announced on the LAN, and the nodes' InternalIPs are in the node network.
const (
	LAN = iota
	NodeNetwork
	networks
)

var ifaces = [networks]string{"eth0", "eth1"}

// headers are those of Ethernet, IPv4 and UDP, which belong to the traffic.
const headers = 14 + 20 + 8

// Bursts are times in which a node's port loses everything, both ways. The zero value is none.
type Bursts struct {
	// Every is the mean time from one to the next, of each port; each lasts between Least and Most.
	Every, Least, Most time.Duration
}

// port is where a node is attached to a network.
type port struct {
	// group: only those of one group reach one another.
	group int
	// deaf ports receive nothing, though they send.
	deaf bool
	// The next burst, or the present one.
	burstFrom, burstTo int64
}

// lost tells whether the port loses what passes it now.
func (c *Cluster) lost(p *port) bool {
	b := &c.config.Bursts
	if b.Every == 0 {
		return false
	}
	for c.now >= p.burstTo {
		p.burstFrom = max(c.now, p.burstTo) + int64(c.random.ExpFloat64()*float64(b.Every))
		p.burstTo = p.burstFrom + int64(b.Least) + c.random.Int64N(max(1, int64(b.Most-b.Least)))
	}
	return c.now >= p.burstFrom
}

// carry takes what a node sends to where it goes.
func (c *Cluster) carry(from *Speaker, sends []member.Send) {
	var kept, shared []byte // the Core's bytes, which it uses again, and a copy of them
	for _, s := range sends {
		if len(s.Data) > member.MaxDatagram {
			panic("a datagram is too long")
		}
		from.Sent.add(len(s.Data))
		if kept == nil || &kept[0] != &s.Data[0] {
			kept, shared = s.Data, append([]byte(nil), s.Data...)
		}
		if s.To.IsValid() {
			if to, known := c.byAddr[s.To]; known {
				c.datagram(from, to.node, to.iface, shared)
			}
			continue
		}
		for _, to := range c.Speakers {
			if to != from {
				c.datagram(from, to, LAN, shared)
			}
		}
	}
}

// datagram puts one on its way to one node, unless it gets lost.
func (c *Cluster) datagram(from, to *Speaker, iface uint8, data []byte) {
	out, in := &from.ports[iface], &to.ports[iface]
	if !to.power || out.group != in.group || in.deaf || c.lost(out) || c.lost(in) {
		return
	}
	if c.config.Loss > 0 && c.random.Float64() < c.config.Loss {
		return
	}
	c.queue.push(event{at: c.now + int64(delay(c.random)), kind: arrival, node: to, from: from, iface: iface, data: data})
}

// delay is that of one datagram: 0.1 to 0.5 ms, and one of fifty up to 5 ms.
func delay(random *rand.Rand) time.Duration {
	most := 400
	if random.IntN(50) == 0 {
		most = 5000
	}
	return time.Duration(100+random.IntN(most)) * time.Microsecond
}

// address is an address of a node, or of the gateway, whose node is nil.
type address struct {
	host  *host
	node  *Speaker
	iface uint8
}

// addresses are the addresses of a node, by network; index 0 is the gateway's.
func addresses(index int) [networks]netip.Addr {
	hi, lo := byte(index>>8), byte(index)
	return [networks]netip.Addr{
		netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0, 1, 14: hi, 15: lo}),
		netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0, 2, 14: hi, 15: lo}),
	}
}

var lanSubnet = netip.MustParsePrefix("2001:db8:1::/64")

// Traffic counts datagrams and their bytes with headers.
type Traffic struct{ Datagrams, Bytes int64 }

func (t *Traffic) add(size int) {
	t.Datagrams++
	t.Bytes += int64(size) + headers
}

// Minus returns what came after u.
func (t Traffic) Minus(u Traffic) Traffic {
	return Traffic{t.Datagrams - u.Datagrams, t.Bytes - u.Bytes}
}
