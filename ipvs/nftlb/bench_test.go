package nftlb_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nftlb"
)

// many returns n virtual servers of four real servers each.
func many(n int, settings ipvs.Settings) ipvs.Table {
	table := make(ipvs.Table, n)
	for i := range n {
		key := ipvs.Key{Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), Protocol: ipvs.TCP, Port: uint16(1 + i/256)}
		reals := make(map[netip.AddrPort]ipvs.RealServer)
		for j := range 4 {
			reals[netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + j)}), uint16(8080+j))] = ipvs.RealServer{Weight: 1}
		}
		table[key] = ipvs.VirtualServer{Settings: settings, RealServers: reals}
	}
	return table
}

// BenchmarkOneChange adds and deletes a real server of one of many virtual servers: two changes.
func BenchmarkOneChange(b *testing.B) {
	for _, n := range []int{100, 5000} {
		for name, settings := range map[string]ipvs.Settings{"rr": rr, "sticky": sticky} {
			b.Run(fmt.Sprintf("%s/services=%d", name, n), func(b *testing.B) {
				table := many(n, settings)
				key := table.Keys()[n/2]
				extra := netip.MustParseAddrPort("198.51.100.1:8080")
				netspace.New(b).Must(b, func() error {
					balancer, err := nftlb.New(nftlb.AllTraffic)
					if err != nil {
						return err
					}
					defer balancer.Close()
					if _, err := balancer.Apply(ipvs.Diff(nil, table)); err != nil {
						return err
					}
					for b.Loop() {
						for _, op := range []ipvs.Op{
							{Action: ipvs.AddReal, Virtual: key, Real: extra, RealServer: ipvs.RealServer{Weight: 1}},
							{Action: ipvs.DeleteReal, Virtual: key, Real: extra},
						} {
							if _, err := balancer.Apply([]ipvs.Op{op}); err != nil {
								return err
							}
						}
					}
					return nil
				})
			})
		}
	}
}

// BenchmarkCold fills an empty node, then restarts with the existing state, then checks that it is unchanged.
func BenchmarkCold(b *testing.B) {
	const n = 5000
	ops := ipvs.Diff(nil, many(n, rr))
	run := func(b *testing.B, filled bool, do func(*nftlb.Balancer) error) {
		for b.Loop() {
			b.StopTimer()
			space := netspace.New(b)
			space.Must(b, func() error {
				balancer, err := nftlb.New(nftlb.AllTraffic)
				if err != nil {
					return err
				}
				if filled {
					if _, err := balancer.Apply(ops); err != nil {
						return err
					}
					balancer.Close()
					if balancer, err = nftlb.New(nftlb.AllTraffic); err != nil {
						return err
					}
				}
				defer balancer.Close()
				b.StartTimer()
				defer b.StopTimer()
				return do(balancer)
			})
			b.StartTimer()
		}
	}
	b.Run("fill", func(b *testing.B) {
		run(b, false, func(balancer *nftlb.Balancer) error {
			_, err := balancer.Apply(ops)
			return err
		})
	})
	b.Run("restart", func(b *testing.B) {
		run(b, true, func(balancer *nftlb.Balancer) error {
			_, err := balancer.List()
			return err
		})
	})
}

// BenchmarkObserve lists the virtual servers without a foreign change.
func BenchmarkObserve(b *testing.B) {
	netspace.New(b).Must(b, func() error {
		balancer, err := nftlb.New(nftlb.AllTraffic)
		if err != nil {
			return err
		}
		defer balancer.Close()
		if _, err := balancer.Apply(ipvs.Diff(nil, many(5000, rr))); err != nil {
			return err
		}
		for b.Loop() {
			if _, err := balancer.Virtuals(); err != nil {
				return err
			}
		}
		return nil
	})
}

// BenchmarkEdit repairs one element that another program deleted, among many virtual servers.
func BenchmarkEdit(b *testing.B) {
	for _, n := range []int{100, 20000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			table := many(n, rr)
			key := table.Keys()[n/2]
			netspace.New(b).Must(b, func() error {
				balancer, err := nftlb.New(nftlb.AllTraffic)
				if err != nil {
					return err
				}
				defer balancer.Close()
				if _, err := balancer.Apply(ipvs.Diff(nil, table)); err != nil {
					return err
				}
				for b.Loop() {
					b.StopTimer()
					edit := fmt.Sprintf("delete element ip ironlb-lb reals-tcp { %v . %d . 0 }", key.Addr, key.Port)
					if err := netspace.NFT(edit); err != nil {
						return err
					}
					b.StartTimer()
					have, err := balancer.List()
					if err != nil {
						return err
					}
					if _, err := balancer.Apply(ipvs.Diff(have, table)); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}
