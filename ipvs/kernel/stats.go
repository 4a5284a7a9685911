package kernel

import (
	"errors"
	"fmt"
	"net/netip"

	mobyipvs "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// VirtualStats returns the counters of all virtual servers with an address, in one request. The kernel adds to them
// every two seconds (net/netfilter/ipvs/ip_vs_est.c).
func (k *Kernel) VirtualStats() (map[ipvs.Key]ipvs.Stats, error) {
	k.statistics.Lock()
	defer k.statistics.Unlock()
	services, err := k.counters.GetServices()
	if err != nil {
		return nil, fmt.Errorf("read the counters of virtual servers: %w", explain(err))
	}
	stats := make(map[ipvs.Key]ipvs.Stats, len(services))
	for _, s := range services {
		if key, _, ok := readService(s); ok {
			stats[key] = readStats(s.Stats)
		}
	}
	return stats, nil
}

// RealStats returns the counters of the real servers of these virtual servers, with one request for each. A virtual
// server that does not exist has no real servers. The kernel adds to these counters every two seconds, too; only the
// numbers of active and inactive connections are those of the moment. With an error, RealStats returns those that it
// could read.
func (k *Kernel) RealStats(keys []ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error) {
	k.statistics.Lock()
	defer k.statistics.Unlock()
	return realStats(k.counters, keys)
}

// Connections is RealStats for the caller that programs: it does not wait for other reads of counters.
func (k *Kernel) Connections(keys []ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return realStats(k.library, keys)
}

func realStats(l library, keys []ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error) {
	stats := make(map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, len(keys))
	var first error
	failed := 0
	for _, key := range keys {
		destinations, err := l.GetDestinations(serviceOf(key, ipvs.Settings{}))
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			if failed++; first == nil {
				first = fmt.Errorf("%v: %w", key, explain(err))
			}
			continue
		}
		stats[key] = readReals(destinations)
	}
	if failed > 0 {
		return stats, fmt.Errorf("read the counters of real servers: %d virtual servers failed, the first with %w",
			failed, first)
	}
	return stats, nil
}

func readReals(destinations []*mobyipvs.Destination) map[netip.AddrPort]ipvs.RealStats {
	reals := make(map[netip.AddrPort]ipvs.RealStats, len(destinations))
	for _, d := range destinations {
		if addr, ok := netip.AddrFromSlice(d.Address); ok {
			reals[netip.AddrPortFrom(addr, d.Port)] = ipvs.RealStats{
				Stats: readStats(mobyipvs.SvcStats(d.Stats)), Active: d.ActiveConnections, Inactive: d.InactiveConnections,
			}
		}
	}
	return reals
}

func readStats(s mobyipvs.SvcStats) ipvs.Stats {
	return ipvs.Stats{
		Connections: uint64(s.Connections), PacketsIn: uint64(s.PacketsIn), PacketsOut: uint64(s.PacketsOut),
		BytesIn: s.BytesIn, BytesOut: s.BytesOut,
	}
}
