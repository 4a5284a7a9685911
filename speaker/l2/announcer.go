// Package l2 answers ARP requests and neighbor solicitations for the addresses that this node owns, announces an
// address when the node takes it over, probes for another host before the first use of an address, and defends the
// addresses that it holds.
//
// The kernel does not answer for them by itself. For IPv4, arp_ignore 1, set by package link, prevents that; for IPv6
// it answers only for addresses of interfaces, and VirtualIPs are local routes. Only the owner's speaker answers.
package l2

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/loglines"
	"github.com/ironlb/ironlb/speaker/ownership"
)

// Config configures an Announcer. Except for Log, the zero value has good defaults.
type Config struct {
	Log *slog.Logger
	// Wake is called when a conflict begins or ends, and when another speaker uses an address that is held here. It
	// must not block.
	Wake func()
	// Resync is called when Announce must be called again with the same set: an interface was lost, or probes were not
	// answered. It must not block. Nil means Wake.
	Resync func()
	// Fresh is called before each frame is sent. While it returns false, nothing is sent: the process has stalled, and
	// another node may own the addresses. Nil means always fresh.
	Fresh func() bool
	// Refresh is the interval of the periodic announcements of an address; 0 means 100 s, below 0 none.
	Refresh time.Duration
	// Rate limits the announcements and probes per second on one interface; 0 means 5,000.
	Rate int
	// Metrics may be nil.
	Metrics prometheus.Registerer
}

func (c Config) withDefaults() Config {
	switch {
	case c.Refresh == 0:
		c.Refresh = 100 * time.Second
	case c.Refresh < 0:
		c.Refresh = 0
	}
	if c.Rate == 0 {
		c.Rate = 5000
	}
	if c.Wake == nil {
		c.Wake = func() {}
	}
	if c.Resync == nil {
		c.Resync = c.Wake
	}
	if c.Fresh == nil {
		c.Fresh = func() bool { return true }
	}
	return c
}

// Announcer holds the addresses for which this node answers. Announce is called by one goroutine.
type Announcer struct {
	cfg      Config
	lines    *loglines.Lines // about conflicts: one host may use many addresses
	metrics  *metrics
	system   system
	stale    atomic.Bool                        // the interfaces must be listed again
	peers    atomic.Pointer[map[[6]byte]string] // the other speakers
	lastWake atomic.Int64                       // last Wake for a packet of one of those, in ns of CLOCK_REALTIME
	macs     atomic.Pointer[map[mac]struct{}]   // of this node
	wake     chan struct{}                      // of Run

	mu      sync.Mutex
	closed  bool
	network *network
	ports   map[int]*port // by interface index
	entries map[netip.Addr]*entry
	// used contains the addresses with a conflict. Conflicts removes those that have none any more.
	used  map[netip.Addr]struct{}
	ended []binding // ended probes that Run has not processed yet
	// controls are the checks for proxies, the last one of each responder; proxies are the hosts that they found.
	controls map[*responder]*control
	proxies  map[proxyKey]proxy
	// changed is set while the entries or controls are not yet applied to the responders.
	changed bool
	serving sync.WaitGroup
}

// New returns an Announcer that answers for nothing.
func New(cfg Config) *Announcer {
	a := &Announcer{
		cfg: cfg.withDefaults(), lines: loglines.New(cfg.Log), metrics: newMetrics(cfg.Metrics), system: kernel{},
		wake: make(chan struct{}, 1), network: &network{}, ports: map[int]*port{}, entries: map[netip.Addr]*entry{},
		used:     map[netip.Addr]struct{}{},
		controls: map[*responder]*control{}, proxies: map[proxyKey]proxy{},
	}
	a.stale.Store(true)
	a.peers.Store(&map[[6]byte]string{})
	a.macs.Store(&map[mac]struct{}{})
	return a
}

// Refresh makes the next Announce list the interfaces again. It must be called when one of them has changed.
func (a *Announcer) Refresh() { a.stale.Store(true) }

// SetPeers sets the hardware addresses of the other speakers, by node: what they use is no conflict.
func (a *Announcer) SetPeers(macs map[[6]byte]string) {
	macs = maps.Clone(macs)
	a.peers.Store(&macs)
}

// ours reports whether a frame comes from this node, perhaps back through another of its interfaces.
func (a *Announcer) ours(m mac) bool {
	_, ok := (*a.macs.Load())[m]
	return ok
}

// Run processes probes and conflicts until the context ends; after that nothing is answered or announced.
func (a *Announcer) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer a.lines.Flush()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			continue
		case <-a.wake:
		case <-timer.C:
		}
		if due, ok := a.tick(time.Now()); ok {
			timer.Reset(time.Until(due))
		}
	}
	a.mu.Lock()
	a.closed = true
	for _, p := range a.ports {
		p.close()
	}
	a.mu.Unlock()
	a.serving.Wait()
	return nil
}

// Announce replaces the full set of addresses and returns the interfaces on which each of them is answered for. Absent
// are addresses without a suitable interface, addresses that are still probed, and addresses that another host uses.
// When Announce returns, addresses outside the set are not answered for. An address new to the set or to an interface
// is announced there at once; others are not.
//
// An error concerns single interfaces; the others are served.
func (a *Announcer) Announce(want map[netip.Addr]ownership.Announcement) (map[netip.Addr][]string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, errors.New("announce: the announcer has stopped")
	}
	var errs []error
	if a.stale.Swap(false) {
		if n, err := a.system.observe(); err != nil {
			a.stale.Store(true)
			errs = append(errs, err)
		} else {
			a.network = n
			a.macs.Store(&n.ours)
		}
	}
	now := time.Now()
	a.update(want, now)
	errs = append(errs, a.unfit(want)...)
	held, err := a.settle(a.open, now)
	a.wakeRun() // the next due time may have changed
	return held, errors.Join(append(errs, err)...)
}

// unfit returns an error for each requested interface that cannot be used in its present state.
func (a *Announcer) unfit(want map[netip.Addr]ownership.Announcement) []error {
	addresses := map[string]int{}
	for _, ann := range want {
		for _, name := range ann.Interfaces {
			addresses[name]++
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(addresses)) {
		if err := a.network.unfit[name]; err != nil {
			errs = append(errs, fmt.Errorf("announce %d addresses on %s: %w", addresses[name], name, err))
		}
	}
	return errs
}

// settle applies the entries to every interface, and returns where each address is answered for. open returns the
// responder of a link, or nil without an error if there is none.
func (a *Announcer) settle(open func(link, int) (*responder, error), now time.Time) (map[netip.Addr][]string, error) {
	a.changed = false
	sets := a.assign()
	a.dropUnused(sets)
	var errs []error
	held := make(map[netip.Addr][]string, len(a.entries))
	for _, l := range a.network.links {
		for family, d := range sets[l.index] {
			if len(d.held)+len(d.watched) == 0 {
				continue
			}
			r, err := open(l, family)
			if err == nil && r != nil {
				err = a.applyDuties(r, d, now)
			}
			if err != nil {
				a.stale.Store(true)
				errs = append(errs, err)
			}
			if err != nil || r == nil {
				continue
			}
			for addr := range d.held {
				held[addr] = append(held[addr], l.name)
			}
		}
	}
	return held, errors.Join(errs...)
}

// assign returns the duties of each interface and family.
func (a *Announcer) assign() map[int]*[families]duties {
	sets := make(map[int]*[families]duties, len(a.network.links))
	byName := make(map[string]*[families]duties, len(a.network.links))
	for _, l := range a.network.links {
		set := &[families]duties{}
		for i := range set {
			set[i] = duties{held: addrSet{}, watched: addrSet{}}
		}
		sets[l.index], byName[l.name] = set, set
	}
	for addr, e := range a.entries {
		for _, name := range e.interfaces {
			set := byName[name]
			if set == nil {
				continue
			}
			if of := &set[familyOf(addr)]; e.phase == holding {
				of.held[addr] = struct{}{}
			} else {
				of.watched[addr] = struct{}{}
			}
		}
	}
	a.watch(sets)
	return sets
}

// applyDuties applies its duties to a responder, and schedules its announcements and probes.
func (a *Announcer) applyDuties(r *responder, d duties, now time.Time) error {
	schedule := a.ports[r.link.index].schedule
	before := *r.duties.Load()
	if len(d.watched) == 0 && d.equal(before) {
		return nil
	}
	err := r.set(d)
	for addr := range before.all() {
		if !has(d.held, addr) && !has(d.watched, addr) {
			schedule.stop(binding{on: r, addr: addr})
		}
	}
	if err != nil {
		return err
	}
	var held, toProbe []binding
	for addr := range d.held {
		held = append(held, binding{on: r, addr: addr})
	}
	for addr := range d.watched {
		if e := a.entries[addr]; e != nil && e.phase == probing {
			if _, known := e.probers[r]; !known {
				e.probers[r] = false
				toProbe = append(toProbe, binding{on: r, addr: addr})
			}
		} else {
			schedule.stop(binding{on: r, addr: addr})
		}
	}
	if c := a.controls[r]; c != nil && !c.scheduled {
		c.scheduled = true
		toProbe = append(toProbe, binding{on: c, addr: controlAddrs[r.family]})
	}
	schedule.announce(now, held...)
	schedule.probe(now, toProbe...)
	return nil
}

// lost is called by a responder whose interface went down.
func (a *Announcer) lost() {
	a.Refresh()
	a.cfg.Resync()
}

// wakeRun wakes Run.
func (a *Announcer) wakeRun() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// metrics of one announcer, by family.
type metrics [families]struct {
	answers, announcements, probes, conflicts, defences, sendErrors prometheus.Counter
	// proxies are the hosts that answer for every address.
	proxies prometheus.Gauge
	// first is the duration until the first announcement.
	first prometheus.Observer
}

// newMetrics returns the metrics, registered if there is a registerer.
func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ironlb", Subsystem: "l2", Name: name, Help: help}, []string{"family"})
		if reg != nil {
			reg.MustRegister(c)
		}
		return c
	}
	answers := counter("answers_total", "ARP requests and neighbor solicitations answered.")
	announcements := counter("announcements_total", "Gratuitous ARP frames and unsolicited neighbor advertisements sent.")
	probes := counter("probes_total", "Probes sent for addresses before their first use.")
	conflicts := counter("conflicts_total", "Times that another host was found to use a VirtualIP address, at its probe or while this node holds it.")
	defences := counter("defences_total", "Answers to other hosts' probes for held addresses, and announcements against other hosts that use them.")
	sendErrors := counter("send_errors_total", "Frames that the kernel rejected.")
	first := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "ironlb", Subsystem: "l2", Name: "announce_duration_seconds",
		Help:    "Time from programming and ownership of an address to its first announcement on an interface.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}}, []string{"family"})
	if reg != nil {
		reg.MustRegister(first)
	}
	proxies := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ironlb", Subsystem: "l2", Name: "proxies",
		Help: "Hosts that answer for every address (proxy ARP). Their answers are ignored."}, []string{"family"})
	if reg != nil {
		reg.MustRegister(proxies)
	}
	m := &metrics{}
	for family, c := range codecs {
		of := &m[family]
		of.first = first.WithLabelValues(c.family())
		of.answers, of.announcements = answers.WithLabelValues(c.family()), announcements.WithLabelValues(c.family())
		of.probes, of.conflicts = probes.WithLabelValues(c.family()), conflicts.WithLabelValues(c.family())
		of.proxies = proxies.WithLabelValues(c.family())
		of.defences, of.sendErrors = defences.WithLabelValues(c.family()), sendErrors.WithLabelValues(c.family())
	}
	return m
}
