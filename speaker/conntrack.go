package speaker

import (
	"context"
	"maps"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// cleanMost bounds how long conntrack is left as it is after it was cleaned: a client's SYN that was lost comes again
// after a second (RFC 6298, section 2.1), and then finds it clean.
const cleanMost = time.Second

// cleaning is what conntrack is still to be cleaned of. Cleaning makes the kernel go through its whole table, whatever
// of it is asked for, so after it has taken d it is not repeated for restShare times d, at most cleanMost, unless a
// node died.
type cleaning struct {
	// began is set once conntrack was cleaned of what an earlier process may have left: of UDP alone, since this one does not
	// know which TCP endpoints were draining though they are not terminating, and their connections go on.
	began bool
	// waiting are the virtual servers that are cleaned at due.
	waiting map[ipvs.Key]struct{}
	due     time.Time
}

// take adds what has waited long enough to the work.
func (c *cleaning) take(todo *work, now time.Time) {
	if !now.Before(c.due) {
		maps.Copy(todo.remembered, c.waiting)
		clear(c.waiting)
	}
}

// wake returns when what waits is due; false if nothing does.
func (c *cleaning) wake() (time.Time, bool) { return c.due, len(c.waiting) > 0 }

// idle returns those of the virtual servers of UDP that have no real server that takes packets.
func (t *servers) idle(keys map[ipvs.Key]struct{}) map[ipvs.Key]struct{} {
	out := map[ipvs.Key]struct{}{}
	for key := range keys {
		if key.Protocol == ipvs.UDP && len(serving(t.have[key])) == 0 {
			out[key] = struct{}{}
		}
	}
	return out
}

// misleading adds the virtual servers whose earlier connections conntrack may keep on the wrong way after these
// changes: a real server went or has weight 0; of UDP, there was none that took packets (ipvs.md 4.8, 4.10); it is
// new, and another Service may have had its address and port. A client that keeps its port would stay there for ever.
//
// A TCP client whose handshake leads to a real server of weight 0 matters where that is unreachable: else it answers.
func misleading(keys map[ipvs.Key]struct{}, done []ipvs.Op, idle map[ipvs.Key]struct{}, unreachable bool) {
	for _, op := range done {
		misleads := has(idle, op.Virtual)
		switch op.Action {
		case ipvs.AddVirtual, ipvs.DeleteVirtual, ipvs.DeleteReal:
			misleads = true
		case ipvs.EditReal:
			misleads = misleads || op.RealServer.Weight == 0 && (unreachable || op.Virtual.Protocol == ipvs.UDP)
		}
		if misleads {
			keys[op.Virtual] = struct{}{}
		}
	}
}

// cleanConntrack deletes the entries of conntrack that lead clients of these virtual servers astray, or lets them wait.
// Nothing waits where a node died: a SYN that went there comes again a second after it was sent.
func (s *Speaker) cleanConntrack(ctx context.Context, todo *work) {
	if s.cfg.Node.Conntrack == nil {
		return
	}
	if !s.cleaning.began { // an earlier process may have been stopped before it did
		for _, table := range []ipvs.Table{s.known.table.have, s.known.inside.have} {
			for key := range table {
				if key.Protocol == ipvs.UDP {
					todo.remembered[key] = struct{}{}
				}
			}
		}
		s.cleaning.began = true
	}
	start := time.Now()
	if s.reach.died {
		maps.Copy(todo.remembered, s.cleaning.waiting)
		clear(s.cleaning.waiting)
	} else if start.Before(s.cleaning.due) {
		maps.Copy(s.cleaning.waiting, todo.remembered)
		return
	}
	table := s.tracked(todo.remembered)
	if len(table) == 0 {
		return
	}
	n, err := s.cfg.Node.Conntrack.Clean(ctx, table)
	if n > 0 {
		s.log("delete conntrack entries", "count", n, "reason", s.reason)
	}
	if err != nil { // tried again later and later, as all that fails
		s.fail(err)
		maps.Copy(s.failed.remembered, todo.remembered)
		return
	}
	took := time.Since(start)
	s.cleaning.due = start.Add(took + min(restShare*took, cleanMost))
}

// tracked returns these virtual servers with all that is a real server of any of their clients, outside or inside, or
// is to become one; the greatest weight counts. Of one that is no more only UDP's connections are cleaned: those of
// TCP go on where the data plane lets them, for the endpoints may be alive.
func (s *Speaker) tracked(keys map[ipvs.Key]struct{}) ipvs.Table {
	out := ipvs.Table{}
	for key := range keys {
		if key.Protocol != ipvs.UDP && !has(s.known.table.have, key) && !has(s.known.inside.have, key) {
			continue
		}
		reals := map[netip.AddrPort]ipvs.RealServer{}
		for _, table := range []ipvs.Table{s.desired.Table, s.desired.Inside} {
			for at := range table[key].RealServers {
				reals[at] = ipvs.RealServer{} // which takes nothing until it is there
			}
		}
		for _, table := range []ipvs.Table{s.known.table.have, s.known.inside.have} {
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
