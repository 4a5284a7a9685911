package status

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

// refusedAddress is an address of a Service that no Service may have.
type refusedAddress struct {
	service pools.ServiceKey
	addr    netip.Addr
}

// reportRefused logs and counts the addresses of a Service that are newly refused or refused by another rule. A Service
// seldom has one.
func (s *Status) reportRefused(service pools.ServiceKey) {
	before, now := s.refused[service], s.in.Desired.Refused[service]
	if len(before)+len(now) == 0 {
		return
	}
	for addr := range before {
		if _, still := now[addr]; !still {
			s.refusals.set(refusedAddress{service, addr}, "", false)
		}
	}
	for _, addr := range slices.SortedFunc(maps.Keys(now), netip.Addr.Compare) {
		why := now[addr]
		s.refusals.set(refusedAddress{service, addr}, view.Reason(why.Rule), true)
		if before[addr] != why {
			s.cfg.Line(slog.LevelWarn, "address refused for every Service", "service", service, "address", addr, "reason", why.Rule,
				"message", addr.String()+" "+why.String())
		}
	}
	if len(now) == 0 {
		delete(s.refused, service)
	} else {
		s.refused[service] = now
	}
}
