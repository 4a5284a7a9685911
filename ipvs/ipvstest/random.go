package ipvstest

import (
	"math/rand/v2"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
)

// RandomTable returns a small table of few addresses, ports and settings, so that two tables overlap often.
func RandomTable(r *rand.Rand) ipvs.Table {
	table := make(ipvs.Table)
	for range r.IntN(5) {
		key := ipvs.Key{
			Addr:     netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + r.IntN(3))}),
			Protocol: pick(r, ipvs.TCP, ipvs.UDP),
			Port:     pick(r, uint16(80), 443),
		}
		reals := make(map[netip.AddrPort]ipvs.RealServer)
		for range r.IntN(4) {
			addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + r.IntN(4))})
			reals[netip.AddrPortFrom(addr, 8080)] = ipvs.RealServer{Weight: pick(r, uint32(0), 1, 100)}
		}
		table[key] = ipvs.VirtualServer{
			Settings: pick(r,
				ipvs.Settings{Scheduler: ipvs.RoundRobin},
				ipvs.Settings{Scheduler: "wrr"},
				ipvs.Settings{Scheduler: ipvs.RoundRobin, Flags: ipvs.Persistent, Timeout: 10800}),
			RealServers: reals,
		}
	}
	return table
}

func pick[T any](r *rand.Rand, choices ...T) T {
	return choices[r.IntN(len(choices))]
}
