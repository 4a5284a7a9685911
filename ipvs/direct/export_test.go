package direct

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// counting counts the elements of virtual servers and slots that are written.
type counting struct {
	knftables.Interface
	elements *int
}

func (c counting) Run(ctx context.Context, tx *knftables.Transaction) error {
	for line := range strings.Lines(tx.String()) {
		if strings.Contains(line, " element ") && !strings.Contains(line, " "+setNodes+" ") && !strings.Contains(line, " "+setPods) {
			*c.elements += 1 + strings.Count(line, ", ")
		}
	}
	return c.Interface.Run(ctx, tx)
}

// failing fails one transaction after it has been carried out, as if the answer was lost.
type failing struct {
	knftables.Interface
	d *Driver
}

func (f failing) Run(ctx context.Context, tx *knftables.Transaction) error {
	f.d.nft = f.Interface
	return errors.Join(f.Interface.Run(ctx, tx), errors.New("failed"))
}

// FailOnce makes the next transaction fail.
func (d *Driver) FailOnce() { d.nft = failing{d.nft, d} }

// CountElements counts elements that the driver writes from now on.
func (d *Driver) CountElements() *int {
	n := new(int)
	d.nft = counting{d.nft, n}
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
			spreads += len(t.all)
		}
	}
	return found, spreads, nil
}

// Guard adds the guard of tunnels between addresses of the family of self.
func (d *Driver) Guard(self netip.Addr) error {
	return d.guard(context.Background(), families[familyOf(self)])
}
