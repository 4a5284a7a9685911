package member

import (
	"net/netip"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// maxReads limits the datagrams of one read, so that a flood cannot delay the loop's tick.
const maxReads = 4096

// join joins the group on the current interfaces.
func (l *loop) join() {
	var families []bool
	for _, s := range l.sockets {
		families = append(families, s.v6)
	}
	for name, err := range l.groups.join(l.options.Port, families, l.ports) {
		l.options.Log.Warn("cannot join the speakers' group: heartbeats are sent by broadcast there",
			"interface", name, "error", err)
	}
}

// attachFilters attaches a filter to the sockets: the kernel drops datagrams that are not from a speaker of this
// cluster. If that fails, this process drops them.
func (l *loop) attachFilters() {
	now := socketFilter{cluster: l.core.cluster}
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
	same := slices.Equal(now.keys, l.filterInput.keys) && slices.Equal(now.indexes, l.filterInput.indexes)
	for _, s := range slices.Concat(l.sockets, l.deferred, l.groups.sockets) {
		if same && s.filtered {
			continue
		}
		if err := s.attach(now); err != nil {
			l.options.Log.Warn("the kernel does not filter the speakers' datagrams: a flood may starve liveness", "error", err)
		}
		s.filtered = true
	}
	l.filterInput = now
}

// countEvery is how often the kernel's drop counters are read.
const countEvery = time.Second

// count updates the counter of datagrams dropped by the kernel.
func (l *loop) count(now time.Time) {
	if now.Sub(l.counted) < countEvery {
		return
	}
	l.counted = now
	drops := 0
	for _, s := range l.reads {
		if s.fd >= 0 { // else closed in this tick
			drops += int(s.dropped())
		}
	}
	copies := min(drops, l.droppedCopies)
	l.droppedCopies -= copies
	l.metrics.filtered.Add(float64(drops - copies))
}

// receive reads the sockets that are readable, and those that were not polled, until they are empty.
func (l *loop) receive() {
	now := time.Now()
	rawAtStart := raw() - now.Sub(l.start)
	stepped := l.stepped(l.start, now)
	for i, s := range l.reads {
		poll := &l.polls[i+1]
		switch {
		case s.fd < 0: // closed since the poll
			continue
		case stepped:
			s.stamped = false
		}
		if poll.Fd >= 0 && poll.Revents == 0 {
			s.emptied, s.stamped = l.polled, true
			continue
		}
		l.readSocket(s, rawAtStart)
	}
}

// readSocket reads a socket until it is empty.
func (l *loop) readSocket(s *socket, rawAtStart time.Duration) {
	for count := 0; count < maxReads; {
		n, empty, err := l.batch.read(s)
		now := time.Now()
		if err != nil {
			l.metrics.drop("unreadable")
			return
		}
		for i := range n {
			a, data := l.batch.at(s, i)
			at := now.Add(-s.age(a.stamp, now))
			l.handle(s, a, data, at, rawAtStart+at.Sub(l.start))
		}
		count += n
		if empty {
			s.emptied, s.stamped = now, true
			l.intake.add(now, s, count)
			return
		}
	}
	l.intake.add(time.Now(), s, maxReads)
}

// handle passes a datagram to the core.
func (l *loop) handle(s *socket, a arrival, data []byte, at time.Time, raw time.Duration) {
	if a.source.Is6() && a.source.IsLinkLocalUnicast() {
		a.source = a.source.WithZone(strconv.Itoa(a.index))
	}
	in := Packet{Iface: l.name(s, a.index), Source: a.source, OnLink: a.hops == hopLimit,
		Group: a.group || a.broadcast, Data: data}
	reason := l.core.Receive(at, raw, in)
	if reason != DropOwn { // an own broadcast is looped back to all sockets
		l.droppedCopies += s.dropsElsewhere(a, l.sockets, l.deferred)
	}
	if reason != Accepted {
		l.metrics.drop(reason)
		l.logRejected(reason, a)
	} else if a.index != 0 && l.arrivals.onlyBroadcast(at, a) && !l.options.Broadcast {
		l.options.Log.Warn("heartbeats arrive by broadcast only: the network may drop the speakers' group; "+
			"forward it, or set failover.transport: broadcast",
			"interface", in.Iface, "groups", []netip.Addr{group4, group6})
	}
	if l.core.Fenced() { // set before the remaining datagrams are read, which may take long
		l.fenced.Store(true)
	}
}

// logRejectedEvery is how often a datagram of this cluster with a wrong signature is logged.
const logRejectedEvery = 10 * time.Minute

// logRejected logs, at a limited rate, errors that an operator must fix. Only a node of this cluster sends to this
// node's own address: a datagram to the group may be from another cluster with other keys.
func (l *loop) logRejected(why Drop, a arrival) {
	from := a.source
	switch {
	case why == DropName && !l.duplicateName: // its tag was right, so it is from this cluster
		l.duplicateName = true
		l.options.Log.Error("another speaker has the name of this node: give each node a unique name", "from", from)
	case a.group || a.broadcast:
	case (why == DropKey || why == DropTag) && (l.rejectionLogged.IsZero() || time.Since(l.rejectionLogged) >= logRejectedEvery):
		l.rejectionLogged = time.Now()
		l.options.Log.Error("datagram with an unknown key: give all speakers the same Secret", "from", from, "reason", why)
	}
}

// name returns the name of an interface. Datagrams may arrive on it before it is listed.
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

// send sends the core's datagrams. One that cannot be sent counts as lost, and is counted.
func (l *loop) send(sends []Send) {
	for _, one := range sends {
		err := l.sendOne(one)
		if err != nil {
			l.metrics.unsent.Inc()
		}
		if one.Iface != "" {
			l.core.Sent(one.Iface, err == nil)
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
	v6 := one.IPv6 || !p.v4
	if s := l.groups.find(p.index, v6); s != nil && !one.Broadcast {
		return s.send(s.to(), one.Data)
	}
	for _, s := range l.sockets {
		if s.v6 == v6 {
			return s.sendBroadcast(p.index, one.Data)
		}
	}
	return unix.EAFNOSUPPORT
}

// onlyBroadcastFor is how long no datagram must arrive by the group, while others arrive by broadcast, before that is
// logged.
const onlyBroadcastFor = 10 * time.Second

// arrivals records how datagrams of speakers arrive, by interface index.
type arrivals map[int]*arrivalMode

type arrivalMode struct {
	grouped time.Time // when the last one arrived by the group, or the first one by broadcast
	logged  bool
}

// onlyBroadcast reports, once per interface, whether datagrams there have arrived by broadcast only for
// onlyBroadcastFor.
func (w *arrivals) onlyBroadcast(now time.Time, a arrival) bool {
	if *w == nil {
		*w = arrivals{}
	}
	one := (*w)[a.index]
	switch {
	case a.group && one == nil:
		(*w)[a.index] = &arrivalMode{grouped: now}
	case a.group:
		one.grouped, one.logged = now, false
	case !a.broadcast:
	case one == nil:
		(*w)[a.index] = &arrivalMode{grouped: now}
	case !one.logged && now.Sub(one.grouped) >= onlyBroadcastFor:
		one.logged = true
		return true
	}
	return false
}
