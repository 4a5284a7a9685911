package nftlb

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
)

// element is an element of a set or map of virtual servers.
type element struct {
	set     string
	virtual ipvs.Key
	// isSlot is set for an element of mapReals: the slot and its real server.
	isSlot bool
	slot   uint32
	real   netip.AddrPort
	// isVerdict is set for an element of mapVirtuals and mapSticky: the chain of the class.
	isVerdict bool
	class     class
	comment   string
}

// change is an element to add or delete.
type change struct {
	element
	remove bool
}

// changes calls do for each change of the elements of one virtual server; either may be nil. An element that is
// replaced is deleted first.
func changes(key ipvs.Key, have, want *virtual, do func(change)) {
	if have == nil {
		have = &virtual{}
	}
	if want == nil {
		want = &virtual{}
	}
	verdicts := func(set string, had, wanted class, have, want ipvs.Settings) {
		if had == wanted && have == want {
			return
		}
		if have.Scheduler != "" {
			do(change{element{set: set, virtual: key}, true})
		}
		if want.Scheduler != "" {
			do(change{element{set: set, virtual: key, isVerdict: true, class: wanted, comment: want.String()}, false})
		}
	}
	verdicts(mapVirtuals, have.class(), want.class(), have.Settings, want.Settings)
	verdicts(mapSticky, have.affinity(), want.affinity(), have.persistent(), want.persistent())
	if had, is := have.refused(), want.refused(); had != is {
		do(change{element{set: setRefused, virtual: key}, had})
	}
	if have.counted != want.counted {
		for _, set := range counterSets {
			do(change{element{set: set, virtual: key}, have.counted})
		}
	}
	slotChanges(key, have, want, do)
}

func slotChanges(key ipvs.Key, have, want *virtual, do func(change)) {
	same := func(n uint32) bool {
		h, had := have.layout.at[n]
		wanted, is := want.layout.at[n]
		return had && is && h == wanted && have.RealServers[h] == want.RealServers[h]
	}
	at := element{set: mapReals[key.Protocol], virtual: key, isSlot: true}
	for at.slot = range have.layout.at {
		if !same(at.slot) {
			do(change{at, true})
		}
	}
	for n, real := range want.layout.at {
		if !same(n) {
			at.slot, at.real, at.comment = n, real, want.RealServers[real].String()
			do(change{at, false})
		}
	}
}

// write adds the change to a transaction of nft.
func (w writer) write(c change) {
	e := knftables.Element{Map: c.set, Key: keyText(c.virtual)}
	switch {
	case c.set == setRefused || slices.Contains(counterSets, c.set):
		e.Map, e.Set = "", c.set
	case c.isSlot:
		e.Key = append(realText(netip.AddrPortFrom(c.virtual.Addr, c.virtual.Port)), strconv.FormatUint(uint64(c.slot), 10))
	}
	if !c.remove {
		switch {
		case c.isSlot:
			e.Value = realText(c.real)
		case c.isVerdict:
			e.Value = []string{c.class.verdict()}
		}
		if c.comment != "" {
			e.Comment = &c.comment
		}
	}
	w.element(e, c.remove)
}

// add adds the change to a batch.
func (c change) add(batch *nftbatch.Batch) {
	if c.remove {
		batch.Delete(c.set, c.octets())
	} else {
		batch.Add(c.set, c.netlink())
	}
}

// octets returns the key of the element.
func (e element) octets() []byte {
	if e.isSlot {
		return nftbatch.Concat(octets(netip.AddrPortFrom(e.virtual.Addr, e.virtual.Port)), nftbatch.Uint32(e.slot))
	}
	return nftbatch.VirtualServer(e.virtual)
}

// netlink returns the element in the form of the kernel.
func (e element) netlink() nftbatch.Element {
	out := nftbatch.Element{Key: e.octets(), Comment: e.comment}
	switch {
	case e.isSlot:
		out.Value = octets(e.real)
	case e.isVerdict && e.class.choice == refuse:
		out.Verdict = nftbatch.Return
	case e.isVerdict:
		out.Verdict, out.Chain = nftbatch.Goto, e.class.name()
	}
	return out
}

// octets returns an address and a port as parts of a key, or as a value.
func octets(at netip.AddrPort) []byte {
	return nftbatch.Concat(at.Addr().AsSlice(), binary.BigEndian.AppendUint16(nil, at.Port()))
}
