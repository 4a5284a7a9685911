package sim

import (
	"math/rand/v2"
	"net/netip"
	"slices"
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

// headers is the size of the Ethernet, IPv4 and UDP headers, which count as traffic.
const headers = 14 + 20 + 8

// Bursts are times of total loss on a node's port, in both directions. The zero value is none.
type Bursts struct {
	// Every is the mean interval between bursts of a port; each lasts between Least and Most.
	Every, Least, Most time.Duration
}

// port attaches a node to a network.
type port struct {
	// group: only ports of one group reach one another.
	group int
	// asymmetric ports pass what the node's process sends, and nothing to it, as with a wrong packet filter.
	asymmetric bool
	// lossIn is the additional share of packets to the node that are lost: 1 for all.
	lossIn float64
	// The next or the current burst.
	burstFrom, burstTo int64
}

// lost reports whether the port is in a burst of loss.
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

// carry delivers what a node sends.
func (c *Cluster) carry(from *Speaker, sends []member.Send) {
	var kept, shared []byte // the Core's buffer, which it reuses, and a copy
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

// datagram delivers a datagram to one node, unless it is lost.
func (c *Cluster) datagram(from, to *Speaker, iface uint8, data []byte) {
	out, in := &from.ports[iface], &to.ports[iface]
	if !to.power || out.group != in.group || in.asymmetric || c.lost(out) || c.lost(in) {
		return
	}
	if loss(c.random, c.config.Loss) || loss(c.random, in.lossIn) || slices.Contains(to.misses, from) {
		return
	}
	c.queue.push(event{at: c.now + int64(delay(c.random)), kind: arrival, node: to, from: from, iface: iface, data: data})
}

func loss(random *rand.Rand, share float64) bool { return share > 0 && random.Float64() < share }

// delay returns the delay of a datagram: 0.1 to 0.5 ms, and for one of fifty up to 5 ms.
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

// Minus returns the traffic since u.
func (t Traffic) Minus(u Traffic) Traffic {
	return Traffic{t.Datagrams - u.Datagrams, t.Bytes - u.Bytes}
}
