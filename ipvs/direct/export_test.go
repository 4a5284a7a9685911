package direct

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// FailOnce makes the next batch fail after it has been carried out, as if the answer was lost.
func (d *Driver) FailOnce() {
	d.send = func(b *nftbatch.Batch) error {
		d.send = (*nftbatch.Batch).Send
		return errors.Join(b.Send(), errors.New("failed"))
	}
}

// CountElements counts elements that the driver writes in batches from now on.
func (d *Driver) CountElements() *int {
	n := new(int)
	d.send = func(b *nftbatch.Batch) error {
		*n += b.Len()
		return b.Send()
	}
	return n
}

// Peers are the peers of each slot: of the first tier and of the second.
type Peers = [numTiers][ipvs.NumSlots]uint16

// None is the peer of a slot without one.
const None = none

// Listed returns what the kernel's tables contain, and the number of spreads.
func Listed(ctx context.Context) (map[ipvs.Key]Peers, int, error) {
	found, spreads := make(map[ipvs.Key]Peers), 0
	for i := range nftwatch.NumFamilies {
		l, err := list(ctx, families[i])
		if err != nil || !l.exists {
			return found, spreads, err
		}
		for key := range l.directed {
			var peers Peers
			for n := range l.tiers {
				c := newContent(false)
				if s := l.tiers[n].of[key]; s != nil {
					c = s.content
				}
				peers[n] = c.peers
			}
			found[key] = peers
		}
		for _, t := range l.tiers {
			for _, s := range t.all {
				if s.refs > 0 {
					spreads++
				}
			}
		}
	}
	return found, spreads, nil
}

// Guard adds the guard of tunnels between addresses of the family of self.
func (d *Driver) Guard(self netip.Addr) error {
	return d.guard(context.Background(), familyOf(self), nil)
}

// HardwareAddr is that of a node's tunnels. ProbeSelf is the address of a node that does not know its own.
func HardwareAddr(node netip.Addr) net.HardwareAddr {
	mac := hardwareAddr(node)
	return mac[:]
}

var ProbeSelf = probeSelf
