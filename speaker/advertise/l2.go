// Package advertise makes this node's virtual addresses known: L2 by ARP and NDP, BGP by routes.
//
// Each part records what its announcer or daemon is to have and what it has. For each reconcile it is given the plan
// (Update). It withdraws first; then it announces what is programmed already, and after programming the rest. An
// address may be announced only while the data plane forwards it: the caller decides and passes that as a predicate. A
// prefix of several addresses gets a blackhole route before it is announced and keeps it until it is withdrawn.
package advertise

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
)

// L2Config configures an L2.
type L2Config struct {
	Announcer Announcer
	// Node is the name of this node.
	Node string
	// Record receives each change, with the attributes of its log line.
	Record func(level slog.Level, action string, attrs ...any)
	// Leaving reports whether this process hands over its addresses.
	Leaving func() bool
}

// L2 is what the announcer is to answer for and what it answers for. One goroutine owns it.
type L2 struct {
	cfg     L2Config
	desired *plan.Desired
	// target is the desired set of announcements, published the last one given to the announcer, held the interfaces of
	// announced addresses.
	target    map[netip.Addr]ownership.Announcement
	published map[netip.Addr]ownership.Announcement
	held      map[netip.Addr][]string
	// failed is the error of the last publication.
	failed error
}

// NewL2 returns an L2 that announces nothing yet.
func NewL2(cfg L2Config) *L2 { return &L2{cfg: cfg, target: map[netip.Addr]ownership.Announcement{}} }

// Update takes the plan. Addresses of the work of the same reconcile follow it.
func (l *L2) Update(desired *plan.Desired) { l.desired = desired }

// Published returns the announcement of an address that the announcer was given. It may still be probed: Held has those
// that are announced.
func (l *L2) Published(addr netip.Addr) (ownership.Announcement, bool) {
	ann, ok := l.published[addr]
	return ann, ok
}

// Held returns the announced addresses with their interfaces. The caller must not modify them.
func (l *L2) Held() map[netip.Addr][]string { return l.held }

// TakeFailed clears the error of the last publication and reports whether there was one.
func (l *L2) TakeFailed() bool {
	failed := l.failed != nil
	l.failed = nil
	return failed
}

// Err returns the error of the last publication.
func (l *L2) Err() error { return l.failed }

// Withdraw stops the unwanted announcements of these addresses. It precedes every other change. It adds the VirtualIPs
// whose announcements changed to vips, as Announce does.
func (l *L2) Withdraw(addrs map[netip.Addr]struct{}, vips map[string]struct{}) {
	changed := false
	for addr := range addrs {
		if has(l.target, addr) && !has(l.desired.Announce, addr) {
			delete(l.target, addr)
			changed = true
		}
	}
	if changed {
		l.publish(vips)
	}
}

// WithdrawAll stops all announcements.
func (l *L2) WithdrawAll() {
	l.target = map[netip.Addr]ownership.Announcement{}
	l.publish(map[string]struct{}{})
}

// Announce announces those of these addresses whose VirtualIP may be. again publishes the announcements even if none
// changed.
func (l *L2) Announce(addrs map[netip.Addr]struct{}, vips map[string]struct{}, again bool, may func(vip string) bool) {
	changed := again
	for addr := range addrs {
		ann, wanted := l.desired.Announce[addr]
		if have, targeted := l.target[addr]; !wanted || targeted && ann.Equal(have) || !may(ann.VIP) {
			continue
		}
		l.target[addr], changed = ann, true
	}
	if changed {
		l.publish(vips)
	}
}

// publish passes all announcements to the announcer and logs the changes that took effect.
func (l *L2) publish(vips map[string]struct{}) {
	want := maps.Clone(l.target)
	held, err := l.cfg.Announcer.Announce(want)
	if err != nil {
		l.failed = err
	}
	if held == nil && err != nil {
		return
	}
	for _, addr := range sortedKeys(l.held) {
		if _, still := held[addr]; !still {
			l.cfg.Record(slog.LevelInfo, "withdraw", "address", addr, "vip", l.published[addr].VIP, "reason", l.whyWithdrawn(addr, want))
		}
	}
	for _, addr := range sortedKeys(held) {
		if before := l.held[addr]; !slices.Equal(before, held[addr]) {
			l.cfg.Record(slog.LevelInfo, "announce", "address", addr, "vip", want[addr].VIP, "interfaces", held[addr], "reason", l.desired.VIPs[want[addr].VIP].Moved)
		}
	}
	l.addChanged(vips, want, held)
	l.published, l.held = want, held
}

// addChanged adds the VirtualIPs whose announcements changed.
func (l *L2) addChanged(vips map[string]struct{}, want map[netip.Addr]ownership.Announcement, held map[netip.Addr][]string) {
	for _, set := range []map[netip.Addr]ownership.Announcement{l.published, want} {
		for addr, ann := range set {
			if has(l.published, addr) != has(want, addr) || !slices.Equal(l.held[addr], held[addr]) {
				vips[ann.VIP] = struct{}{}
			}
		}
	}
}

// whyWithdrawn returns why an address is no longer announced.
func (l *L2) whyWithdrawn(addr netip.Addr, want map[netip.Addr]ownership.Announcement) view.Reason {
	if ann, ok := want[addr]; ok && ann.Probe {
		return view.Probing
	} else if ok {
		return view.NoInterface
	}
	dec, ok := l.desired.VIPs[l.published[addr].VIP]
	switch {
	case !ok:
		return view.NoService
	case dec.Owner == l.cfg.Node && l.cfg.Leaving(): // no other node took over
		return view.Stopping
	case dec.Owner == l.cfg.Node: // another address of it is still announced
		return view.NoService
	}
	return dec.Moved
}

func sortedKeys(m map[netip.Addr][]string) []netip.Addr {
	return slices.SortedFunc(maps.Keys(m), netip.Addr.Compare)
}
