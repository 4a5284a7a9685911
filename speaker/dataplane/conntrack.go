package dataplane

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
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
