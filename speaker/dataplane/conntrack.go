package dataplane

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// cleanMaxPause is the longest pause after a conntrack cleanup. A client retransmits a lost SYN after one second (RFC
// 6298, section 2.1) and then finds conntrack cleaned.
const cleanMaxPause = time.Second

// cleaning is the pending conntrack cleanup. Each cleanup makes the kernel walk its full table, whatever the selection.
// So after a cleanup that took d, the next one waits backoffFactor times d, at most cleanMaxPause, unless a node died.
type cleaning struct {
	// began is set after the initial cleanup of entries from an earlier process. That covers UDP only: no record shows
	// which TCP endpoints were draining without being terminating, and their connections continue.
	began bool
	// waiting are the virtual servers to clean at due.
	waiting map[ipvs.Key]struct{}
	due     time.Time
}

// take adds the waiting virtual servers to the work once they are due.
func (c *cleaning) take(todo *Work, now time.Time) {
	if !now.Before(c.due) {
		maps.Copy(todo.Conntrack, c.waiting)
		clear(c.waiting)
	}
}

// wake returns when the waiting virtual servers are due, false for none.
func (c *cleaning) wake() (time.Time, bool) { return c.due, len(c.waiting) > 0 }

// idle returns the UDP virtual servers among keys that have no real server that takes packets.
func (t *servers) idle(keys map[ipvs.Key]struct{}) map[ipvs.Key]struct{} {
	out := map[ipvs.Key]struct{}{}
	for key := range keys {
		if key.Protocol == ipvs.UDP && len(serving(t.have[key])) == 0 {
			out[key] = struct{}{}
		}
	}
	return out
}

// addMisdirected adds the virtual servers for which conntrack may hold misdirected connections after these changes: a
// real server was deleted or has weight 0; a UDP virtual server had none that took packets; the
// virtual server is new, and another Service may have had its address and port. A client that keeps its source port
// would stay misdirected forever.
//
// A TCP handshake towards a real server of weight 0 matters only if that server is unreachable: otherwise it answers.
func addMisdirected(keys map[ipvs.Key]struct{}, done []ipvs.Op, idle map[ipvs.Key]struct{}, unreachable bool) {
	for _, op := range done {
		misdirects := has(idle, op.Virtual)
		switch op.Action {
		case ipvs.AddVirtual, ipvs.DeleteVirtual, ipvs.DeleteReal:
			misdirects = true
		case ipvs.EditReal:
			misdirects = misdirects || op.RealServer.Weight == 0 && (unreachable || op.Virtual.Protocol == ipvs.UDP)
		}
		if misdirects {
			keys[op.Virtual] = struct{}{}
		}
	}
}

// cleanConntrack deletes the conntrack entries that misdirect clients of these virtual servers, or defers the cleanup.
// After a node died the cleanup is never deferred: a client retransmits its SYN to that node after one second.
func (d *DataPlane) cleanConntrack(ctx context.Context, todo *Work) {
	if d.drivers.Conntrack == nil {
		return
	}
	if !d.cleaning.began { // an earlier process may have stopped before its cleanup
		for _, table := range []ipvs.Table{d.known.table.have, d.known.internal.have} {
			for key := range table {
				if key.Protocol == ipvs.UDP {
					todo.Conntrack[key] = struct{}{}
				}
			}
		}
		d.cleaning.began = true
	}
	start := time.Now()
	if d.in.NodeDied {
		maps.Copy(todo.Conntrack, d.cleaning.waiting)
		clear(d.cleaning.waiting)
	} else if start.Before(d.cleaning.due) {
		maps.Copy(d.cleaning.waiting, todo.Conntrack)
		return
	}
	table := d.tracked(todo.Conntrack)
	if len(table) == 0 {
		return
	}
	n, err := d.drivers.Conntrack.Clean(ctx, table)
	if n > 0 {
		d.cfg.Record(slog.LevelDebug, "delete conntrack entries", "count", n, "reason", d.in.Reason)
	}
	if err != nil { // retried with backoff, like every failure
		d.fail(err)
		maps.Copy(d.failed.Conntrack, todo.Conntrack)
		return
	}
	took := time.Since(start)
	d.cleaning.due = start.Add(took + min(backoffFactor*took, cleanMaxPause))
}

// tracked returns these virtual servers with every present or desired real server, for cluster-internal and other
// clients. The greatest weight counts. An ended real server is desired: it may have connections that IPVS does not
// count. For a virtual server that no longer exists only UDP connections are cleaned: TCP connections continue where
// the data plane permits, because the endpoints may be alive.
func (d *DataPlane) tracked(keys map[ipvs.Key]struct{}) ipvs.Table {
	out := ipvs.Table{}
	for key := range keys {
		if key.Protocol != ipvs.UDP && !has(d.known.table.have, key) && !has(d.known.internal.have, key) {
			continue
		}
		reals := map[netip.AddrPort]ipvs.RealServer{}
		for _, desired := range []ipvs.Table{d.in.Desired.Table, d.in.Desired.ClusterInternal} {
			for at := range desired[key].RealServers {
				reals[at] = ipvs.RealServer{} // takes no packets until it is programmed
			}
		}
		for _, table := range []ipvs.Table{d.known.table.have, d.known.internal.have} {
			for at, real := range table[key].RealServers {
				reals[at] = ipvs.RealServer{Weight: max(reals[at].Weight, real.Weight)}
			}
		}
		out[key] = ipvs.VirtualServer{RealServers: reals}
	}
	return out
}

// serving returns the real servers that take packets.
func serving(vs ipvs.VirtualServer) []netip.AddrPort {
	var out []netip.AddrPort
	for addr, real := range vs.RealServers {
		if real.Weight > 0 {
			out = append(out, addr)
		}
	}
	return out
}

// How often the connections of draining real servers are counted, and of how many virtual servers at once: the count
// costs one request for each. After a count that took d, the next one waits backoffFactor times d.
const (
	backoffFactor  = 20
	drainCountMin  = time.Second
	drainCountMax  = 10 * time.Second
	drainCountMost = 200
)

// ConnectionCounter is a VirtualServers that counts the connections of its real servers.
type ConnectionCounter interface {
	// Connections returns the counters of the real servers of these virtual servers, nil without an error if the data
	// plane does not count. With an error it returns those that it could read.
	Connections(keys []ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error)
}

// drains are the real servers that only keep their connections: TCP, with weight 0. One that has no connection left
// ends, although the plan still contains it. Persistence templates do not keep it: they direct no new connection to a
// real server of weight 0 (net.ipv4.vs.expire_quiescent_template). ClusterInternal does not count connections, so
// there a real server stays for as long as the plan contains it.
type drains struct {
	// draining are the draining real servers, each with the time from which its connections count: a packet that was
	// under way when the weight became 0 may still start one.
	draining map[ipvs.Key]map[netip.AddrPort]time.Time
	// ended are the ended real servers. An entry is removed when the plan no longer has the real server with weight 0.
	ended map[ipvs.Key]map[netip.AddrPort]struct{}
	// pending are the virtual servers of those that the next Program deletes.
	pending map[ipvs.Key]struct{}
	// due is when connections are counted next, set while something drains. That count begins with virtual server next.
	due  time.Time
	next ipvs.Key
}

func newDrains() drains {
	return drains{
		draining: map[ipvs.Key]map[netip.AddrPort]time.Time{},
		ended:    map[ipvs.Key]map[netip.AddrPort]struct{}{},
		pending:  map[ipvs.Key]struct{}{},
	}
}

// wanted returns the desired virtual server without the real servers that have ended.
func (d *DataPlane) wanted(key ipvs.Key) (ipvs.VirtualServer, bool) {
	vs, wanted := d.in.Desired.Table[key]
	ended := d.drains.ended[key]
	if len(ended) == 0 {
		return vs, wanted
	}
	vs.RealServers = maps.Clone(vs.RealServers)
	maps.DeleteFunc(vs.RealServers, func(at netip.AddrPort, real ipvs.RealServer) bool {
		return real.Weight == 0 && has(ended, at)
	})
	return vs, wanted
}

// recordDrains updates which real servers drain, after the work was programmed. One that continues to drain keeps its
// time.
func (d *DataPlane) recordDrains(todo *Work) {
	if _, counts := d.known.table.driver.(ConnectionCounter); !counts {
		return
	}
	from := time.Now().Add(drainCountMin)
	for key := range todo.Keys {
		d.removeEnded(key, todo)
		desired, before := d.in.Desired.Table[key].RealServers, d.drains.draining[key]
		delete(d.drains.draining, key)
		for at, real := range d.known.table.have[key].RealServers {
			want, wanted := desired[at]
			if key.Protocol != ipvs.TCP || real.Weight > 0 || !wanted || want.Weight > 0 || has(d.drains.ended[key], at) {
				continue
			}
			put(d.drains.draining, key, at, from)
			if since, drained := before[at]; drained {
				d.drains.draining[key][at] = since
			}
		}
	}
	switch {
	case len(d.drains.draining) == 0:
		d.drains.due = time.Time{}
	case d.drains.due.IsZero():
		d.drains.due = from
	}
}

// removeEnded removes the ended real servers that the plan no longer has with weight 0. Connections of those that it
// does not have at all are cleaned now: IPVS did not count them.
func (d *DataPlane) removeEnded(key ipvs.Key, todo *Work) {
	desired := d.in.Desired.Table[key].RealServers
	maps.DeleteFunc(d.drains.ended[key], func(at netip.AddrPort, _ struct{}) bool {
		real, wanted := desired[at]
		if !wanted {
			todo.Conntrack[key] = struct{}{}
		}
		return !wanted || real.Weight > 0
	})
	if len(d.drains.ended[key]) == 0 {
		delete(d.drains.ended, key)
	}
}

// DrainsDue reports whether the connections of draining real servers are to be counted.
func (d *DataPlane) DrainsDue(now time.Time) bool {
	return d.known != nil && !d.drains.due.IsZero() && !now.Before(d.drains.due)
}

// EndDrains counts the connections of draining real servers, once DrainsDue, and ends those without any. It reports
// whether one ended: AddPending adds it to the work. It must follow the announcements, because counting takes time. A
// failed count is repeated; the plan limits how long a real server drains.
func (d *DataPlane) EndDrains(now time.Time) (ended bool, err error) {
	keys := d.drains.batch(now)
	start := time.Now()
	counted, err := d.known.table.driver.(ConnectionCounter).Connections(keys)
	listed := time.Now()
	d.drains.due = listed.Add(min(max(backoffFactor*listed.Sub(start), drainCountMin), drainCountMax))
	if counted == nil && err == nil { // nftables
		clear(d.drains.draining)
		d.drains.due = time.Time{}
		return false, nil
	}
	for _, key := range keys {
		for at, from := range d.drains.draining[key] {
			if real, exists := counted[key][at]; exists && real.Idle() && !now.Before(from) {
				put(d.drains.ended, key, at, struct{}{})
				d.drains.pending[key] = struct{}{}
			}
		}
	}
	return len(d.drains.pending) > 0, err
}

// batch returns the virtual servers to count now: all in rounds, drainCountMost at once.
func (d *drains) batch(now time.Time) []ipvs.Key {
	var keys []ipvs.Key
	for key, reals := range d.draining {
		for _, from := range reals {
			if !now.Before(from) {
				keys = append(keys, key)
				break
			}
		}
	}
	slices.SortFunc(keys, ipvs.Key.Compare)
	if len(keys) <= drainCountMost {
		return keys
	}
	first, _ := slices.BinarySearchFunc(keys, d.next, ipvs.Key.Compare)
	keys = slices.Concat(keys[first:], keys[:first])
	d.next = keys[drainCountMost]
	return keys[:drainCountMost]
}

// put sets the value of a real server.
func put[V any](m map[ipvs.Key]map[netip.AddrPort]V, key ipvs.Key, at netip.AddrPort, value V) {
	if m[key] == nil {
		m[key] = map[netip.AddrPort]V{}
	}
	m[key][at] = value
}
