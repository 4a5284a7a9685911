// Package l2 answers ARP requests for the addresses that this node owns and tells the network when it takes one over.
//
// The kernel does not answer for them by itself (arp_ignore 1, set by package link); only the owner's speaker does.
package l2

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// Config of an Announcer. The zero value but for Log and Kick has good defaults.
type Config struct {
	Log *slog.Logger
	// Kick is called when an interface was lost, so that Announce is called again. It must not block.
	Kick func()
	// Refresh is the time between two announcements of an address in the long run; 0 means 100 s, below 0 none.
	Refresh time.Duration
	// Rate limits the announcements per second; 0 means 5,000.
	Rate int
}

// Announcer holds the addresses that this node answers for. Announce is called by one goroutine.
type Announcer struct {
	cfg      Config
	schedule *schedule
	stale    atomic.Bool // the interfaces must be listed again

	mu         sync.Mutex
	closed     bool
	links      []link
	responders map[int]*responder // by interface index
	serving    sync.WaitGroup
}

// New returns an Announcer that answers for nothing.
func New(cfg Config) *Announcer {
	switch {
	case cfg.Refresh == 0:
		cfg.Refresh = 100 * time.Second
	case cfg.Refresh < 0:
		cfg.Refresh = 0
	}
	if cfg.Rate == 0 {
		cfg.Rate = 5000
	}
	a := &Announcer{cfg: cfg, schedule: newSchedule(cfg.Refresh, cfg.Rate), responders: map[int]*responder{}}
	a.stale.Store(true)
	return a
}

// Refresh makes the next Announce look at the interfaces again. Call it when one of them changed.
func (a *Announcer) Refresh() { a.stale.Store(true) }

// Run sends the gratuitous announcements until the context ends; then nothing is answered any more.
func (a *Announcer) Run(ctx context.Context) error {
	a.schedule.run(ctx)
	a.mu.Lock()
	a.closed = true
	for _, r := range a.responders {
		a.drop(r)
	}
	a.mu.Unlock()
	a.serving.Wait()
	return nil
}

// Announce replaces the whole set of addresses and returns on which interfaces each of them is answered for; an address
// without a suitable interface is absent. What is no longer in the set is not answered for when Announce returns; what
// is new there is announced at once, what is not new only if its interface is.
//
// An error concerns single interfaces; the others are served.
func (a *Announcer) Announce(want map[netip.Addr]plan.Announcement) (map[netip.Addr][]string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, errors.New("announce: the announcer has stopped")
	}
	var errs []error
	if a.stale.Swap(false) {
		links, err := links()
		if err != nil {
			a.stale.Store(true)
			errs = append(errs, err)
		} else {
			a.links = links
		}
	}
	sets := a.assign(want)
	for index, r := range a.responders {
		if !a.keeps(r, sets[index]) {
			a.drop(r)
			delete(a.responders, index)
		}
	}
	held := make(map[netip.Addr][]string, len(want))
	for _, l := range a.links {
		set := sets[l.index]
		if len(set) == 0 {
			continue
		}
		if err := a.answer(l, set); err != nil {
			errs = append(errs, err)
			continue
		}
		for addr := range set {
			held[addr] = append(held[addr], l.name)
		}
	}
	return held, errors.Join(errs...)
}

// Conflicts implements speaker.Announcer.
func (a *Announcer) Conflicts() map[netip.Addr]plan.Conflict { return nil }

// SetPeers implements speaker.Announcer.
func (a *Announcer) SetPeers(map[[6]byte]string) {}

// assign returns the addresses of each interface.
func (a *Announcer) assign(want map[netip.Addr]plan.Announcement) map[int]addrSet {
	sets := make(map[int]addrSet, len(a.links))
	for _, l := range a.links {
		set := addrSet{}
		for addr, ann := range want {
			if addr.Is4() && l.serves(ann) {
				set[addr] = struct{}{}
			}
		}
		sets[l.index] = set
	}
	return sets
}

// keeps tells whether a responder can go on: its interface is as it was, and there is something to answer.
func (a *Announcer) keeps(r *responder, set addrSet) bool {
	if len(set) == 0 || r.broken.Load() {
		return false
	}
	for _, l := range a.links {
		if l.same(r.link) {
			return true
		}
	}
	return false
}

// answer makes the responder of an interface answer for exactly this set.
func (a *Announcer) answer(l link, set addrSet) error {
	r := a.responders[l.index]
	if r == nil {
		var err error
		if r, err = listen(l, a.cfg.Log); err != nil {
			a.stale.Store(true)
			return err
		}
		a.responders[l.index] = r
		a.serving.Go(func() { r.serve(a.lost) })
	}
	before := *r.owned.Load()
	err := r.set(set)
	for addr := range before {
		if _, still := set[addr]; !still {
			a.schedule.stop(place{on: r, addr: addr})
		}
	}
	if err != nil {
		return err
	}
	now := time.Now()
	for addr := range set {
		a.schedule.start(place{on: r, addr: addr}, now)
	}
	return nil
}

// drop closes a responder.
func (a *Announcer) drop(r *responder) {
	for addr := range *r.owned.Load() {
		a.schedule.stop(place{on: r, addr: addr})
	}
	r.owned.Store(&addrSet{})
	r.close()
}

// lost is called by a responder whose interface went away.
func (a *Announcer) lost() {
	a.Refresh()
	if a.cfg.Kick != nil {
		a.cfg.Kick()
	}
}
