package member

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/ppoll"
)

// loop is the goroutine that owns the core, with its resources.
type loop struct {
	polls         []unix.PollFd
	reads         []*socket // those in polls
	duplicateName bool      // another process with this node's name was reported
	// rejectionLogged is when a datagram with a wrong key was last logged.
	rejectionLogged time.Time
	watchdog
	scheduling
	*Detector
	lister   *lister
	sockets  []*socket // per family, for unicast and broadcast
	groups   groups
	arrivals arrivals
	// filterInput is the input of the current socket filters; counted is when the drop counters were last read.
	filterInput socketFilter
	counted     time.Time
	ports       ports
	// deferred are the sockets for routine heartbeats; droppedCopies are copies of accepted datagrams that the kernel
	// dropped at other sockets.
	deferred      []*socket
	droppedCopies int
	intake
	batch batch
	// retained is how long the node answers after the end; more fences than retainedFence cancel it.
	retained      time.Duration
	retainedFence uint64
	probing       bool // some nodes are away
	// slotsAt is when the digests of slots were last compared.
	slotsAt time.Time
}

// arrivals records how datagrams of speakers arrive, by interface index.
type arrivals map[int]*arrivalMode

type arrivalMode struct {
	grouped time.Time // when the last one arrived by the group, or the first one by broadcast
	logged  bool
}

// slotsEvery is the interval of comparisons of the digests of slots.
const slotsEvery = 500 * time.Millisecond

func (d *Detector) open() (*loop, error) {
	l := &loop{Detector: d}
	var err error
	if l.lister, err = newLister(); err != nil {
		return nil, err
	}
	for _, v6 := range []bool{false, true} {
		s, err := openSocket(d.options.Port, v6)
		if v6 && errors.Is(err, unix.EAFNOSUPPORT) { // a kernel without IPv6
			continue
		}
		if err != nil {
			l.close()
			return nil, err
		}
		l.sockets = append(l.sockets, s)
		second, err := pair(s)
		if err != nil {
			d.options.Log.Warn("each heartbeat wakes the liveness thread, which costs CPU time", "error", err)
			continue
		}
		l.deferred = append(l.deferred, second)
	}
	l.attachFilters()
	return l, nil
}

func (l *loop) close() {
	l.groups.close()
	for _, s := range slices.Concat(l.sockets, l.deferred) {
		s.close()
	}
	l.lister.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	unix.Close(l.wake)
	l.wake = -1
}

// iterate waits for work, reads all that has arrived, and runs the core.
func (l *loop) iterate() error {
	if err := l.wait(); err != nil {
		return err
	}
	before := l.core.Counts()
	l.applyInbox()
	l.receive()
	now := time.Now()
	if l.core.Urgent() || !now.Before(l.core.Next()) {
		if late := now.Sub(l.core.Next()); late >= 0 && l.core.begun {
			l.metrics.late(late)
		}
		l.raise(now)
		wedged := l.watch(now)
		l.send(l.core.Tick(now, raw()))
		l.checkAway()
		switch after := l.core.Counts(); {
		case after.ClockStops != before.ClockStops:
			l.stalled(now, ClockStopped, "the clock of this node stopped, as when a virtual machine is paused")
		case after.Fences != before.Fences && !wedged:
			l.stalled(now, LivenessLoopStalled, "liveness loop stalled",
				"for", now.Sub(l.start)-time.Duration(l.heartbeat.Load()), "limit", l.core.FenceAfter())
		}
		l.fenced.Store(l.core.Fenced())
		l.limit.Store(int64(l.core.FenceAfter()))
		l.heartbeat.Store(int64(l.core.LastHeartbeat().Sub(l.start)))
	}
	l.count(now)
	l.publish()
	return nil
}

// wait returns when a datagram is to be read at once, a method was called, or the core's next tick is due.
func (l *loop) wait() error {
	fds := append(l.polls[:0], unix.PollFd{Fd: int32(l.wake), Events: unix.POLLIN})
	l.reads = append(append(l.reads[:0], l.groups.sockets...), l.sockets...) // the segments have priority
	l.reads = append(l.reads, l.deferred...)
	all := l.busy || l.core.Attentive()
	for _, s := range l.reads {
		fd := int32(s.fd)
		if !all && (s.deferred || s.index != 0) {
			fd = -1 // not polled
		}
		fds = append(fds, unix.PollFd{Fd: fd, Events: unix.POLLIN})
	}
	l.polls = fds
	if err := ppoll.Wait(fds, max(0, time.Until(l.core.Next()))); err != nil {
		return fmt.Errorf("wait for the speakers' datagrams: %w", err)
	}
	l.polled = time.Now()
	l.metrics.wakes.Inc()
	if fds[0].Revents != 0 {
		var counter [8]byte
		_, _ = unix.Read(l.wake, counter[:])
	}
	return nil
}

// applyInbox passes the inbox to the core.
func (l *loop) applyInbox() {
	l.mu.Lock()
	in := l.in
	l.in = inbox{}
	l.mu.Unlock()
	if in.ports != nil {
		l.ports = *in.ports
		l.join()
		l.attachFilters()
		links := make([]Link, 0, len(l.ports.byName))
		for _, p := range l.ports.byName {
			if p.up {
				links = append(links, p.link)
			}
		}
		slices.SortFunc(links, func(a, b Link) int {
			if a.Name < b.Name {
				return -1
			}
			return 1
		})
		l.core.SetLinks(time.Now(), links)
	}
	if in.peers != nil {
		l.core.SetPeers(in.peers)
	}
	if in.authorities != nil {
		l.core.SetAuthorities(in.authorities)
	}
	if in.keys != nil {
		_ = l.core.SetKeys(in.keys) // checked by Detector.SetKeys
		l.attachFilters()
	}
	if in.retained > 0 {
		l.retained, l.retainedFence = in.retained, in.retainedFence
	}
	if in.slots != nil {
		l.core.SetSlots(*in.slots)
	}
	if in.settled {
		l.core.Settled()
	}
	l.core.Answered(in.answered, in.silent)
	if in.answers != nil {
		l.core.SetAnswers(in.answers)
	}
	if in.published != nil && in.fence == l.core.Fences() {
		l.core.Publish(*in.published)
		l.fenced.Store(false)
	}
}

// publish stores what has changed for Observe, and wakes the reconcile loop by Wake.
func (l *loop) publish() {
	if l.core.out.macs {
		macs := l.core.MACs()
		l.macs.Store(&macs)
		l.core.out.macs = false
	}
	if now := l.core.lastTick; now.Sub(l.slotsAt) >= slotsEvery {
		slots := l.core.Slots()
		l.slots.Store(&slots)
		l.slotsAt = now
	}
	l.metrics.counts(l.core)
	if now, changed := l.core.Received(); changed && l.options.Received != nil {
		l.options.Received(now)
	}
	if !l.core.Changed() {
		return
	}
	members, nodes, vips := l.core.Members()
	l.metrics.members(members)
	l.mu.Lock()
	l.results.members, l.results.fences = members, l.core.Fences()
	merge(l.results.nodes, nodes)
	merge(l.results.vips, vips)
	l.mu.Unlock()
	l.options.Wake()
}

func merge[K comparable](into, from map[K]struct{}) {
	for k := range from {
		into[k] = struct{}{}
	}
}

// goodbyes is the number of rounds of goodbyes of a retained node, goodbyePause apart. A node that receives none of
// them counts this one as dead, although its kernel still answers.
const (
	goodbyes     = 3
	goodbyePause = 50 * time.Millisecond
)

// goodbye announces the end of this process, and how long the node continues to answer.
func (l *loop) goodbye() {
	heartbeat := l.heartbeat.Swap(-int64(time.Hour)) // no answer after the goodbye
	l.applyInbox()
	stalled := int64(time.Since(l.start))-heartbeat > l.limit.Load()
	if stalled || l.core.Fenced() || l.core.Fences() != l.retainedFence {
		l.retained = 0
	}
	sends := l.core.Goodbye(l.retained)
	l.send(sends)
	if l.retained == 0 {
		l.left.Store(len(sends) > 0)
		return
	}
	for range goodbyes - 1 {
		<-time.After(goodbyePause)
		l.send(l.core.Goodbye(l.retained))
	}
}

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
