package speaker

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
)

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

// forgetful adds the virtual servers of UDP whose earlier packets conntrack may remember wrongly after these changes: a real
// server went or drains, or there was none (ipvs.md 4.8, 4.10). A client that keeps its port would stay there for ever.
func forgetful(keys map[ipvs.Key]struct{}, done []ipvs.Op, idle map[ipvs.Key]struct{}) {
	for _, op := range done {
		gone := op.Action == ipvs.DeleteReal || op.Action == ipvs.DeleteVirtual || op.Action == ipvs.EditReal && op.RealServer.Weight == 0
		if op.Virtual.Protocol == ipvs.UDP && (gone || has(idle, op.Virtual)) {
			keys[op.Virtual] = struct{}{}
		}
	}
}

// cleanConntrack makes conntrack forget what it remembers wrongly.
func (s *Speaker) cleanConntrack(ctx context.Context, todo *work) {
	if !s.cleaned { // an earlier process may have been stopped before it did
		for key := range s.known.table.have {
			if key.Protocol == ipvs.UDP {
				todo.remembered[key] = struct{}{}
			}
		}
		s.cleaned = true
	}
	if s.cfg.Node.Conntrack == nil || len(todo.remembered) == 0 {
		return
	}
	keys := make(map[ipvs.Key][]netip.AddrPort, len(todo.remembered))
	for key := range todo.remembered {
		reals := append(serving(s.known.table.have[key]), serving(s.known.inside.have[key])...)
		slices.SortFunc(reals, netip.AddrPort.Compare)
		keys[key] = slices.Compact(reals)
	}
	if err := s.cfg.Node.Conntrack.Clean(ctx, keys); err != nil {
		s.fail(err)
		maps.Copy(s.failed.remembered, todo.remembered)
	}
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
