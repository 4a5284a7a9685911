package member

import (
	"net/netip"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// readAtMost bounds one reading, so that a flood cannot keep the loop from its turn.
const readAtMost = 4096

// join takes part in the group on the interfaces, as they are now.
func (l *loop) join() {
	var families []bool
	for _, s := range l.sockets {
		families = append(families, s.v6)
	}
	for name, err := range l.groups.join(l.options.Port, families, l.ports) {
		l.options.Log.Warn("cannot join the speakers' group: heartbeats are exchanged by broadcast there",
			"interface", name, "error", err)
	}
}

// sieve has the kernel drop at the sockets what is not from a speaker of this cluster. Where that fails this process
// does.
func (l *loop) sieve() {
	now := sieve{cluster: l.core.cluster}
	for i := range l.core.ring.keys {
		now.keys = append(now.keys, l.core.ring.keys[i].id)
	}
	for index, name := range l.ports.byIndex {
		if _, known := l.ports.byName[name]; known {
			now.indexes = append(now.indexes, index)
		}
	}
	slices.Sort(now.indexes)
	now.indexes = now.indexes[:min(len(now.indexes), maxIfaces)]
	same := slices.Equal(now.keys, l.sieved.keys) && slices.Equal(now.indexes, l.sieved.indexes)
	for _, s := range slices.Concat(l.sockets, l.groups.sockets) {
		if same && s.sieved {
			continue
		}
		if err := s.attach(now); err != nil {
			l.options.Log.Warn("the kernel does not filter the speakers' datagrams: a flood may starve liveness", "error", err)
		}
		s.sieved = true
	}
	l.sieved = now
}

// countEvery is how often the kernel is asked what it has dropped.
const countEvery = time.Second

// count brings the counter of what the kernel dropped up to date.
func (l *loop) count(now time.Time) {
	if now.Sub(l.counted) < countEvery {
		return
	}
	l.counted = now
	for _, s := range l.reads {
		if s.fd < 0 { // closed in this turn
			continue
		}
		l.metrics.filtered.Add(float64(s.dropped()))
	}
}

// receive reads the sockets in which wait found something until they are empty.
func (l *loop) receive() {
	for i, s := range l.reads {
		if l.polls[i+1].Revents == 0 || s.fd < 0 { // it was closed since
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
			in := Packet{Iface: l.name(s, a.index), Source: a.source, OnLink: a.hops == hopLimit,
				Group: a.group || a.broadcast, Data: l.buffer[:a.size]}
			now := time.Now()
			if reason := l.core.Receive(now, raw(), in); reason != Taken {
				l.metrics.drop(reason)
				l.complain(reason, a)
			} else if a.index != 0 && joins(in.Data) && l.ways.onlyBroadcast(now, a) && !l.options.Broadcast {
				l.options.Log.Warn("heartbeats arrive by broadcast alone: does the network drop the speakers' group? "+
					"Have it pass, or set failover.transport: broadcast",
					"interface", in.Iface, "groups", []netip.Addr{group4, group6})
			}
			if l.core.Fenced() { // it counts before the rest is read, which may take long
				l.fenced.Store(true)
			}
		}
	}
}

// complainEvery is how often a datagram of our cluster that is not signed as it should be is logged.
const complainEvery = 10 * time.Minute

// complain logs what an operator has to mend: not each time. Only a node of this cluster sends to this node's own
// address: what comes to the group may be another cluster's, which has other keys.
func (l *loop) complain(why Drop, a arrival) {
	from := a.source
	switch {
	case why == DropName && !l.twice: // its tag was right: it is of this cluster
		l.twice = true
		l.options.Log.Error("another speaker has the name of this node: give each node a name of its own", "from", from)
	case a.group || a.broadcast:
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
	if s := l.groups.find(p.index, !p.v4); s != nil && !one.Broadcast {
		return s.send(s.to(), one.Data)
	}
	for _, s := range l.sockets {
		if s.v6 != p.v4 {
			return s.sendBroadcast(p.index, one.Data)
		}
	}
	return unix.EAFNOSUPPORT
}

// onlyBroadcastFor is how long no datagram need arrive by the group while others do by broadcast for that to be logged.
const onlyBroadcastFor = 10 * time.Second

// ways are how datagrams of speakers that send to the group arrive, by the index of the interface.
type ways map[int]*way

type way struct {
	grouped time.Time // when one came to the group last, or the first one by broadcast
	logged  bool
}

// onlyBroadcast reports, once for an interface, whether what is taken in there came by broadcast alone for a while.
func (w *ways) onlyBroadcast(now time.Time, a arrival) bool {
	if *w == nil {
		*w = ways{}
	}
	one := (*w)[a.index]
	switch {
	case a.group && one == nil:
		(*w)[a.index] = &way{grouped: now}
	case a.group:
		one.grouped, one.logged = now, false
	case !a.broadcast:
	case one == nil:
		(*w)[a.index] = &way{grouped: now}
	case !one.logged && now.Sub(one.grouped) >= onlyBroadcastFor:
		one.logged = true
		return true
	}
	return false
}
