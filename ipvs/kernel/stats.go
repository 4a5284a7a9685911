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

// RealStats returns the counters of the real servers of these virtual servers, with one request for each. Virtual
// servers that do not exist have none. The numbers of connections are those of the moment.
func (k *Kernel) RealStats(keys []ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error) {
	k.statistics.Lock()
	defer k.statistics.Unlock()
	stats := make(map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, len(keys))
	for _, key := range keys {
		destinations, err := k.counters.GetDestinations(serviceOf(key, ipvs.Settings{}))
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the counters of the real servers of %v: %w", key, explain(err))
		}
		reals := make(map[netip.AddrPort]ipvs.RealStats, len(destinations))
		for _, d := range destinations {
			if addr, ok := netip.AddrFromSlice(d.Address); ok {
				reals[netip.AddrPortFrom(addr, d.Port)] = ipvs.RealStats{
					Stats: readStats(mobyipvs.SvcStats(d.Stats)), Active: d.ActiveConnections, Inactive: d.InactiveConnections,
				}
			}
		}
		stats[key] = reals
	}
	return stats, nil
}

func readStats(s mobyipvs.SvcStats) ipvs.Stats {
	return ipvs.Stats{
		Connections: uint64(s.Connections), PacketsIn: uint64(s.PacketsIn), PacketsOut: uint64(s.PacketsOut),
		BytesIn: s.BytesIn, BytesOut: s.BytesOut,
	}
}
