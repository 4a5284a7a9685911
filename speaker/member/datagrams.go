package member

import (
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// readAtMost bounds one reading, so that a flood cannot keep the loop from its turn.
const readAtMost = 4096

// receive reads the sockets in which wait found something until they are empty.
func (l *loop) receive() {
	for i, s := range l.sockets {
		if l.polls[i+1].Revents == 0 {
			continue
		}
		for range readAtMost {
			a, err := s.receive(l.buffer[:])
			if err == errEmpty {
				break
			}
			if err != nil {
				l.metrics.drop("unreadable")
				break
			}
			if a.source.Is6() && a.source.IsLinkLocalUnicast() {
				a.source = a.source.WithZone(strconv.Itoa(a.index))
			}
			in := Packet{Iface: l.name(s, a.index), Source: a.source, OnLink: a.hops == hopLimit, Data: l.buffer[:a.size]}
			if reason := l.core.Receive(time.Now(), in); reason != Taken {
				l.metrics.drop(reason)
				l.complain(reason, a.source)
			}
		}
	}
}

// complainEvery is how often a datagram of our cluster that is not signed as it should be is logged.
const complainEvery = 10 * time.Minute

// complain logs what an operator has to mend: not each time.
func (l *loop) complain(why Drop, from netip.Addr) {
	switch {
	case why == DropName && !l.twice:
		l.twice = true
		l.options.Log.Error("another speaker has the name of this node: give each node a name of its own", "from", from)
	case (why == DropKey || why == DropTag) && (l.complained.IsZero() || time.Since(l.complained) >= complainEvery):
		l.complained = time.Now()
		l.options.Log.Error("a speaker signs with a key that this one has not: give all speakers the same Secret", "from", from, "reason", why)
	}
}

// name returns the name of an interface, which datagrams may come by before anybody has named it.
func (l *loop) name(s *socket, index int) string {
	if name, known := l.ports.byIndex[index]; known {
		return name
	}
	name := s.interfaceName(index)
	if l.ports.byIndex == nil {
		l.ports.byIndex = map[int]string{}
	}
	l.ports.byIndex[index] = name
	return name
}

// send sends what the core wants sent. A datagram that cannot go is lost like any other, and counted.
func (l *loop) send(sends []Send) {
	for _, one := range sends {
		if err := l.sendOne(one); err != nil {
			l.metrics.unsent.Inc()
		}
	}
}

func (l *loop) sendOne(one Send) error {
	if one.To.IsValid() {
		to := one.To.Unmap()
		for _, s := range l.sockets {
			if s.v6 == to.Is6() {
				return s.send(to, one.Data)
			}
		}
		return unix.EAFNOSUPPORT
	}
	p, ok := l.ports.byName[one.Iface]
	if !ok {
		return unix.ENODEV
	}
	for _, s := range l.sockets {
		if s.v6 != p.v4 {
			return s.sendGroup(p.index, one.Data)
		}
	}
	return unix.EAFNOSUPPORT
}
