package l2

import (
	"errors"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// addrSet is a set of addresses; it never changes once it is shared.
type addrSet map[netip.Addr]struct{}

// duties are the addresses of a responder: it answers for the held ones, and only observes the watched ones.
type duties struct {
	held, watched addrSet
}

func (d duties) all() addrSet {
	all := maps.Clone(d.held)
	maps.Copy(all, d.watched)
	return all
}

func (d duties) equal(e duties) bool {
	return maps.Equal(d.held, e.held) && maps.Equal(d.watched, e.watched)
}

// responder answers the requests of one family on one interface.
type responder struct {
	link   link
	family int
	codec  codec
	socket socket
	of     *Announcer
	router atomic.Bool

	duties atomic.Pointer[duties]
	// answering is held while a request is answered, so that set can wait for an answer in progress.
	answering sync.Mutex
	// closed is set when this process closed the socket. The library's errors for that are not net.ErrClosed.
	closed atomic.Bool
	// broken is set when the socket must be replaced.
	broken atomic.Bool
	// failing is set while frames cannot be sent, so that it is logged once.
	failing atomic.Bool
}

// listen opens the socket for a family on an interface. It answers nothing before set and serve are called.
func (a *Announcer) listen(l link, family int) (*responder, error) {
	s, err := a.system.open(l, family)
	if err != nil {
		return nil, err
	}
	r := &responder{link: l, family: family, codec: codecs[family], socket: s, of: a}
	r.duties.Store(&duties{})
	return r, nil
}

func (r *responder) station() station { return station{mac: r.link.mac, router: r.router.Load()} }

// set replaces the duties. Once it has returned, only held addresses are answered for.
func (r *responder) set(d duties) error {
	before := r.duties.Load()
	if d.equal(*before) {
		return nil
	}
	r.become(d)
	all := d.all()
	if maps.Equal(all, before.all()) {
		return nil
	}
	err := r.socket.pass(all)
	if err != nil {
		r.broken.Store(true) // it still passes frames for other addresses
	}
	return err
}

// serve answers until the socket is closed or breaks. If it breaks, or the interface goes down, it notifies the
// announcer.
func (r *responder) serve() {
	buf := make([]byte, r.codec.snap())
	for {
		n, err := r.socket.read(buf)
		switch {
		case r.closed.Load():
			return
		case errors.Is(err, unix.ENETDOWN):
			// The socket works again when the interface comes up, but neighbors may have lost the earlier
			// announcements.
			r.broken.Store(true)
			r.of.lost()
			continue
		case err != nil:
			r.broken.Store(true)
			r.of.cfg.Log.Warn("read failed, reopening the socket", "interface", r.link.name, "family", r.codec.family(), "error", err)
			r.of.lost()
			return
		}
		if m, err := r.codec.parse(buf[:n]); err == nil {
			r.handle(m)
		}
	}
}

// handle answers a request and records the use of an address by another host. A frame can be both: a host that uses one
// of the addresses asks for another one.
//
// Only requests are answered that were sent to this station, or to all stations that might have the address, by a
// reachable sender.
func (r *responder) handle(m message) {
	if r.of.ours(m.from) {
		return
	}
	d := r.duties.Load()
	if has(d.held, m.sender) || has(d.watched, m.sender) {
		r.of.usedBy(r, m.sender, m.from, m.reply)
	}
	switch {
	case !m.target.IsValid() || m.dst != r.link.mac && m.dst != m.group || !m.from.unicast():
	case has(d.held, m.target):
		if !r.answer(m) {
			return
		}
		r.of.metrics[r.family].answers.Inc()
		if m.probe() {
			r.of.metrics[r.family].defences.Inc()
		}
	case has(d.watched, m.target) && m.probe():
		r.of.usedBy(r, m.target, m.from, false) // it probes at the same time (RFC 5227, 2.1.1; RFC 4862, 5.4.3)
	}
}

// answer answers a request, unless its target was given up meanwhile, and reports whether the answer was sent.
func (r *responder) answer(m message) bool {
	r.answering.Lock()
	defer r.answering.Unlock()
	return has(r.duties.Load().held, m.target) && r.send(r.codec.answer(r.station(), m))
}

// become replaces the duties. Once it has returned, no answer by the previous duties is in progress.
func (r *responder) become(d duties) {
	r.duties.Store(&d)
	r.answering.Lock()
	defer r.answering.Unlock()
}

func has(s addrSet, a netip.Addr) bool {
	_, ok := s[a]
	return ok
}

// announce implements sender.
func (r *responder) announce(addr netip.Addr, f form) int {
	if r.sendAnnouncement(addr, f) {
		return 1
	}
	return 0
}

// out implements sender.
func (r *responder) out(after time.Duration) {
	r.of.metrics[r.family].first.Observe(after.Seconds())
}

// sendAnnouncement sends an announcement and reports whether it was sent.
func (r *responder) sendAnnouncement(addr netip.Addr, f form) bool {
	frame, err := r.codec.announcement(r.station(), addr, f)
	if frame == nil && err == nil || !r.send(frame, err) {
		return false
	}
	r.of.metrics[r.family].announcements.Inc()
	return true
}

// probe implements sender.
func (r *responder) probe(addr netip.Addr) bool {
	if !r.send(r.codec.probe(r.station(), addr)) {
		return false
	}
	r.of.metrics[r.family].probes.Inc()
	return true
}

// probeEnded implements sender.
func (r *responder) probeEnded(addr netip.Addr) { r.of.probeEnded(r, addr) }

// send sends a frame, unless its codec has failed, if Fresh allows it, and reports whether the kernel accepted it.
func (r *responder) send(frame []byte, err error) bool {
	if !r.of.cfg.Fresh() {
		return false
	}
	if err == nil {
		err = r.socket.send(frame)
	}
	if err == nil {
		r.failing.Store(false)
		return true
	}
	if r.closed.Load() {
		return false
	}
	r.of.metrics[r.family].sendErrors.Inc()
	// That the interface went down is reported elsewhere.
	if !errors.Is(err, unix.ENETDOWN) && !r.failing.Swap(true) {
		r.of.cfg.Log.Warn("cannot send", "interface", r.link.name, "family", r.codec.family(), "error", err)
	}
	return false
}

func (r *responder) close() {
	r.become(duties{})
	r.closed.Store(true)
	r.socket.close()
}
