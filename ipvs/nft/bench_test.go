package nft_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nft"
)

// BenchmarkOneChange adds and deletes one virtual server beside many.
func BenchmarkOneChange(b *testing.B) {
	for name, ports := range map[string]uint16{"beside 10": 10, "beside 10000": 10000} {
		b.Run(name, func(b *testing.B) {
			want := ipvs.Firewall{Addrs: addrs{netip.MustParseAddr(vip): {}}}.Clone()
			for port := range ports {
				want.Served[key(ipvs.TCP, vip, port+1)] = struct{}{}
				want.Masquerade[key(ipvs.TCP, vip, port+1)] = struct{}{}
			}
			extra := key(ipvs.UDP, vip, 53)
			netspace.New(b).Must(b, func() error {
				firewall, err := nft.New()
				if err != nil {
					return err
				}
				if _, err := firewall.Apply(context.Background(), want); err != nil {
					return err
				}
				for b.Loop() {
					want.Served[extra] = struct{}{}
					if _, err := firewall.Apply(context.Background(), want); err != nil {
						return err
					}
					delete(want.Served, extra)
					if _, err := firewall.Apply(context.Background(), want); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}
