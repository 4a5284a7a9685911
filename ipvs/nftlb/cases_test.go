package nftlb_test

import (
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/ipvstest/packets"
	"github.com/ironlb/ironlb/ipvs/nftlb"
)

// TestPackets sends packets through the packet filter and the balancer, which must be compatible.
func TestPackets(t *testing.T) {
	packets.Run(t, packets.Options{
		Open: func(t testing.TB, node *netspace.Space) packets.Balancer {
			balancer := open(t, node, nftlb.AllTraffic).Balancer
			return func(want ipvs.Table) error {
				have, err := balancer.List()
				if err != nil {
					return err
				}
				_, err = balancer.Apply(ipvs.Diff(have, want))
				return err
			}
		},
	})
}
