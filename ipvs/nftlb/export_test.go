package nftlb

import (
	"fmt"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
)

// RefuseWith makes changes of elements fail whose batch contains these octets, as the kernel does for a part that it
// refuses. With nil octets all fail.
func (b *Balancer) RefuseWith(refused error, octets []byte) {
	b.send = func(batch *nftbatch.Batch) error {
		if batch.Contains(octets) {
			return refused
		}
		return batch.Send()
	}
}

// Layouts returns the real server of each slot, as known and as listed from the kernel's tables.
func (b *Balancer) Layouts() (known, listed map[ipvs.Key]map[uint32]netip.AddrPort, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.known {
		return nil, nil, fmt.Errorf("nothing is known")
	}
	known, listed = make(map[ipvs.Key]map[uint32]netip.AddrPort), make(map[ipvs.Key]map[uint32]netip.AddrPort)
	for key, v := range b.have {
		known[key] = v.layout.at
	}
	for _, f := range families {
		l, err := list(f, b.scope.Table(), b.counted)
		if err != nil {
			return nil, nil, err
		}
		for key, v := range l.virtuals {
			listed[key] = v.layout.at
		}
	}
	return known, listed, nil
}

// Lay is lay, from the given slots; it also returns the number of selectable slots.
func Lay(slots int, at map[uint32]netip.AddrPort, vs ipvs.VirtualServer) (int, map[uint32]netip.AddrPort) {
	l := lay(layout{slots: slots, at: at}, vs)
	return l.slots, l.at
}

// ParseSettings is parseSettings.
var ParseSettings = parseSettings

// ParseReal is parseReal.
var ParseReal = parseReal

// Parse parses the output of nft as a list of affinity, and returns the number of entries.
func Parse(out []byte) (n int, err error) {
	elements, err := parse(out)
	for _, raw := range elements {
		if _, ok := parseAffinity(raw); ok {
			n++
		}
	}
	return n, err
}

// ParseElement parses an element of a set or map over netlink, and reports whether it belongs to a virtual server.
func ParseElement(family int, set string, e nftbatch.Element) bool {
	l := listing{virtuals: make(map[ipvs.Key]*virtual), elements: make(map[ipvs.Key][]located)}
	l.add(families[family], located{set, e})
	for key := range l.elements {
		_ = l.differs(key)
	}
	return len(l.elements) > 0
}

// ElementSets is elementSets.
var ElementSets = elementSets
