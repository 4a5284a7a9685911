package dataplane

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/view"
)

// Direct is the first tier of directed virtual servers. IronLB owns all of it.
type Direct interface {
	// Probe returns an error that wraps ipvs.ErrNoTunnel if Apply could not make tunnels to the nodes of want, and one
	// that wraps ipvs.ErrNoTunnelIPv6 if it could for IPv4 only. Before the first plan, want has none. It leaves nothing
	// and changes no tunnel.
	Probe(ctx context.Context, want ipvs.Direct) error
	// SetPods sets which sources are not directed. It takes effect with the next Apply.
	SetPods(ipvs.PodSources) error
	// Apply directs what is wanted and nothing else. changed are the virtual servers that may differ from the last call;
	// after an error, or a change by another program, it compares all. An error that wraps ipvs.ErrNoTunnel or
	// ipvs.ErrNoTunnelIPv6 lasts until something else on the node changes; the latter is about virtual servers of IPv6
	// only.
	Apply(ctx context.Context, want ipvs.Direct, changed []ipvs.Key) error
	// Check reports whether everything is as the last Apply left it.
	Check(ctx context.Context) (intact bool, err error)
	// MTU returns the MTU of the tunnels in octets, 0 without tunnels.
	MTU() int
	// Remove removes everything.
	Remove(ctx context.Context) error
}

// directState is the state of the first tier.
type directState struct {
	// have are the virtual servers that are directed, as of the last Apply. begun is set while that is known: it is not
	// before the first Apply, because of an earlier process, nor after a failed one.
	have  map[ipvs.Key]ipvs.Directed
	begun bool
	// unable is why this node cannot use tunnels, as the last probe or Apply found; nil if it can. unableIPv6 is why it
	// can use them for IPv4 only, nil if unable is set.
	unable, unableIPv6 error
	probing            probing
}

// found records the error of a probe or an Apply.
func (s *directState) found(err error) {
	s.unable, s.unableIPv6 = err, nil
	if errors.Is(err, ipvs.ErrNoTunnelIPv6) && !errors.Is(err, ipvs.ErrNoTunnel) {
		s.unable, s.unableIPv6 = nil, err
	}
}

// errNoDirect is why nothing is directed without a driver.
var errNoDirect = errors.New("this speaker directs no virtual servers")

// ProbeDirect finds out whether this node can use tunnels, if that is unknown, or if it could not and another probe is
// due. A plan needs to know it. What a failed Apply left is removed first.
func (d *DataPlane) ProbeDirect(ctx context.Context, now time.Time) {
	s := &d.direct
	switch {
	case d.drivers.Direct == nil:
		s.unable = errNoDirect
	case s.probing.begun() && (s.unable == nil && s.unableIPv6 == nil || d.failed.Direct || !s.probing.due(now)):
	default:
		var want ipvs.Direct
		if d.in.Desired != nil {
			want.Self, want.Nodes = d.in.Desired.Direct.Self, d.in.Desired.Direct.Nodes
		}
		err := d.drivers.Direct.Probe(ctx, want)
		s.found(err)
		s.probing.probed(now, err == nil)
	}
}

// NetworkChanged records that the nodes or the interfaces of this node changed: it may be able to use tunnels now.
func (d *DataPlane) NetworkChanged() { d.direct.probing.changed = true }

// NotDirect returns why this node cannot use tunnels, with an explanation, empty if it can.
func (d *DataPlane) NotDirect() (reason view.Reason, why string) {
	if d.direct.unable == nil {
		return "", ""
	}
	return view.TunnelUnavailable, d.direct.unable.Error()
}

// DirectIPv4Only reports whether this node can use tunnels for IPv4 only, and why.
func (d *DataPlane) DirectIPv4Only() (only bool, why string) {
	if d.direct.unableIPv6 == nil {
		return false, ""
	}
	return true, d.direct.unableIPv6.Error()
}

// Tunnels returns the state of the tunnels, nil without a driver.
func (d *DataPlane) Tunnels() *view.Tunnels {
	if d.drivers.Direct == nil {
		return nil
	}
	_, why := d.NotDirect()
	_, whyIPv6 := d.DirectIPv4Only()
	return &view.Tunnels{Unable: why, UnableIPv6: whyIPv6, MTU: d.drivers.Direct.MTU(), VirtualServers: len(d.direct.have)}
}

// checkDirect reports whether another program changed the first tier.
func (d *DataPlane) checkDirect(ctx context.Context) (differs bool) {
	if len(d.direct.have) == 0 {
		return false
	}
	intact, err := d.drivers.Direct.Check(ctx)
	d.fail(err)
	return err == nil && !intact
}

// removeDirected stops directing the virtual servers that are not to be directed any more. It precedes every change of
// these, which would misdirect the connections of this node's endpoints. If it fails, they wait, with their filter
// elements.
func (d *DataPlane) removeDirected(ctx context.Context, todo *Work) {
	var gone []ipvs.Key
	for key := range todo.Keys {
		if has(d.direct.have, key) && !(has(d.in.Desired.Direct.Virtuals, key) && d.wantsKey(key)) {
			gone = append(gone, key)
		}
	}
	if len(gone) == 0 {
		return
	}
	want := maps.Clone(d.direct.have)
	for _, key := range gone {
		delete(want, key)
	}
	d.applyDirect(ctx, want, gone)
	for _, key := range gone {
		if has(d.direct.have, key) {
			delete(todo.Keys, key)
		}
	}
	for e := range todo.Elements {
		if has(d.direct.have, e.Key) && !has(d.in.Desired.Direct.Virtuals, e.Key) {
			d.failed.Elements[e] = struct{}{}
			delete(todo.Elements, e)
		}
	}
}

// setDirected directs the virtual servers that are programmed. It follows every change of these, and precedes their
// addresses: without it, packets that do not come through a tunnel would be forwarded to this node's endpoints alone.
// Until the address is local, what comes through tunnels is dropped.
func (d *DataPlane) setDirected(ctx context.Context, todo *Work) {
	desired := d.in.Desired.Direct.Virtuals
	if d.drivers.Direct == nil || d.direct.begun && len(desired)+len(d.direct.have) == 0 {
		return
	}
	var changed []ipvs.Key
	want := maps.Clone(d.direct.have)
	if want == nil {
		want = map[ipvs.Key]ipvs.Directed{}
	}
	for key := range todo.Keys {
		directed, wanted := desired[key]
		directed.Closed = d.awaitsAddress(key.Addr)
		if wanted && (has(want, key) || d.isProgrammed(key)) && want[key] != directed {
			want[key] = directed
			changed = append(changed, key)
		}
	}
	if len(changed) > 0 || todo.Direct || todo.Pods || !d.direct.begun {
		d.applyDirect(ctx, want, changed)
	}
}

// openDirected lets tunnels deliver packets to the addresses that have become local.
func (d *DataPlane) openDirected(ctx context.Context, todo *Work) {
	var closed []ipvs.Key
	for addr := range todo.Addresses() {
		if d.awaitsAddress(addr) {
			continue
		}
		for key := range d.in.Desired.Keys[addr] {
			if d.direct.have[key].Closed {
				closed = append(closed, key)
			}
		}
	}
	if len(closed) == 0 {
		return
	}
	want := maps.Clone(d.direct.have)
	for _, key := range closed {
		directed := want[key]
		directed.Closed = false
		want[key] = directed
	}
	d.applyDirect(ctx, want, closed)
}

// awaitsAddress reports whether an address is to be local, and is not yet. One that cannot be, because of a sysctl, is
// not awaited: DNAT forwards what comes through tunnels nevertheless.
func (d *DataPlane) awaitsAddress(addr netip.Addr) bool {
	return has(d.in.Desired.Local, addr) && !has(d.known.addrs, addr) &&
		d.known.sysctls.affecting(addr) == nil && d.known.sysctls.arp(addr) == nil
}

// isClosed reports whether tunnels do not deliver packets to an address yet.
func (d *DataPlane) isClosed(addr netip.Addr) bool {
	for key := range d.in.Desired.Keys[addr] {
		if d.direct.have[key].Closed {
			return true
		}
	}
	return false
}

// isProgrammed reports whether a virtual server that is to be directed has nothing left of another forwarding, and this
// node's endpoints.
func (d *DataPlane) isProgrammed(key ipvs.Key) bool {
	return d.wantsKey(key) && has(d.known.table.have, key) && !has(d.failed.Keys, key)
}

// applyDirect applies the wanted first tier, and records what then exists. A failure stays pending.
func (d *DataPlane) applyDirect(ctx context.Context, want map[ipvs.Key]ipvs.Directed, changed []ipvs.Key) {
	slices.SortFunc(changed, ipvs.Key.Compare)
	desired := d.in.Desired.Direct
	err := d.drivers.Direct.Apply(ctx, ipvs.Direct{Self: desired.Self, Nodes: desired.Nodes, Virtuals: want}, changed)
	if err == nil {
		d.direct.have, d.direct.begun = want, true
		if len(changed) > 0 {
			d.cfg.Record(slog.LevelDebug, "set directed virtual servers", "changed", len(changed), "count", len(want), "reason", d.in.Reason)
		}
		return
	}
	d.fail(err)
	d.failed.Direct, d.direct.begun = true, false
	for _, key := range changed {
		d.failed.Keys[key] = struct{}{}
	}
	if errors.Is(err, ipvs.ErrNoTunnel) || errors.Is(err, ipvs.ErrNoTunnelIPv6) {
		d.direct.found(err)
		d.direct.probing.failed(time.Now())
	}
}

// lacksDirect reports whether a virtual server is to be directed and is not.
func (d *DataPlane) lacksDirect(key ipvs.Key) bool {
	return has(d.in.Desired.Direct.Virtuals, key) && !has(d.direct.have, key)
}
