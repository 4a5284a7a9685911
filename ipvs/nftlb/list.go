package nftlb

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
	"github.com/ironlb/ironlb/ipvs/nftopen"
)

// listing is the content of the table of a family.
type listing struct {
	// definition is the table without elements, empty if there is none.
	definition string
	virtuals   map[ipvs.Key]*virtual
	// elements are those of each virtual server, and foreign those of none.
	elements map[ipvs.Key][]located
	foreign  []located
	// counted means that every virtual server should have counters.
	counted bool
	// catchAll is set if a map has an element for all others, which has no key.
	catchAll bool
}

// located is an element of a set or map of virtual servers.
type located struct {
	set string
	nftbatch.Element
}

// list reads the table of a family: the elements over netlink, since nft takes seconds to print many. Without a table
// the listing is empty.
func list(f family, table string, counted bool) (listing, error) {
	l := listing{counted: counted, virtuals: make(map[ipvs.Key]*virtual), elements: make(map[ipvs.Key][]located)}
	lister, err := nftbatch.NewLister()
	if err != nil {
		return listing{}, err
	}
	defer lister.Close()
	if l.definition, err = lister.Definition(f.number, table); err != nil || l.definition == "" {
		return l, err
	}
	sets := elementSets // mapVirtuals first
	if counted {
		sets = slices.Concat(sets, counterSets)
	}
	for _, set := range sets {
		elements, err := lister.Elements(f.number, table, set)
		if err != nil {
			return listing{}, err
		}
		for _, e := range elements {
			l.add(f, located{set, e})
		}
	}
	for _, v := range l.virtuals {
		v.layout = lay(v.layout, v.VirtualServer)
	}
	return l, nil
}

// add adds an element. The content of a virtual server is what its elements express, if they have the package's format.
func (l *listing) add(f family, e located) {
	l.catchAll = l.catchAll || e.Key == nil
	protocol, isReal := protocolOf[e.set]
	if !isReal {
		key, ok := nftbatch.ParseVirtualServer(e.Key)
		if !ok || key.Addr.Is4() != f.is4() {
			l.foreign = append(l.foreign, e)
			return
		}
		l.elements[key] = append(l.elements[key], e)
		if settings, known := parseSettings(e.Comment); known && e.set == mapVirtuals {
			l.virtuals[key] = newVirtual(settings, l.counted)
		}
		return
	}
	at, slot, ok := parseSlot(f, e.Key)
	if !ok {
		l.foreign = append(l.foreign, e)
		return
	}
	key := ipvs.Key{Addr: at.Addr(), Protocol: protocol, Port: at.Port()}
	l.elements[key] = append(l.elements[key], e)
	real, isAddr := parseAddrPort(f, e.Value)
	rs, known := parseReal(e.Comment)
	if v := l.virtuals[key]; v != nil && isAddr && known {
		v.RealServers[real] = rs
		v.layout.at[slot] = real
	}
}

// parseSlot parses a key of mapReals.
func parseSlot(f family, key []byte) (at netip.AddrPort, slot uint32, ok bool) {
	n := len(key) - 4
	if n < 0 {
		return at, 0, false
	}
	at, ok = parseAddrPort(f, key[:n])
	return at, binary.NativeEndian.Uint32(key[n:]), ok
}

// parseAddrPort is the reverse of octets.
func parseAddrPort(f family, raw []byte) (netip.AddrPort, bool) {
	n := int(4 * f.words)
	if len(raw) != n+4 {
		return netip.AddrPort{}, false
	}
	addr, ok := netip.AddrFromSlice(raw[:n])
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(raw[n:])), ok
}

// differs reports whether the elements of a virtual server, which may be nil, are not those that it should have.
func (l *listing) differs(key ipvs.Key) bool {
	want := make(map[string]nftbatch.Element)
	if v := l.virtuals[key]; v != nil {
		changes(key, nil, v, func(c change) { want[c.set+string(c.octets())] = c.netlink() })
	}
	have := l.elements[key]
	if len(have) != len(want) {
		return true
	}
	for _, e := range have {
		w, ok := want[e.set+string(e.Key)]
		if !ok || e.Timeout || e.Verdict != w.Verdict || e.Chain != w.Chain || e.Comment != w.Comment || !bytes.Equal(e.Value, w.Value) {
			return true
		}
	}
	return false
}

// definition returns the definition of the table of a family, empty without one.
func definition(f family, table string) (string, error) {
	lister, err := nftbatch.NewLister()
	if err != nil {
		return "", err
	}
	defer lister.Close()
	return lister.Definition(f.number, table)
}

// listSet returns the elements of a set or map that only nft can list, none without the table.
func listSet(f family, kind, table, name string) ([]json.RawMessage, error) {
	out, err := nftopen.List(context.Background(), kind, string(f.name), table, name)
	if err != nil || out == nil {
		return nil, err
	}
	return parse(out)
}

// parse parses the output of "nft --json list set" or "list map".
func parse(out []byte) (elements []json.RawMessage, err error) {
	type set struct{ Elem []json.RawMessage }
	var objects struct {
		NFTables []struct{ Set, Map *set }
	}
	if err := json.Unmarshal(out, &objects); err != nil {
		return nil, fmt.Errorf("parse the output of nft: %w", err)
	}
	for _, object := range objects.NFTables {
		for _, s := range []*set{object.Set, object.Map} {
			if s != nil {
				elements = append(elements, s.Elem...)
			}
		}
	}
	return elements, nil
}

// listPods returns the sources of cluster-internal packets in the table. foreign reports other elements than the
// package writes.
func listPods(f family, table string) (pods ipvs.PodSources, foreign bool, err error) {
	prefixes, err := listSet(f, "set", table, setPods)
	if err != nil {
		return pods, false, err
	}
	interfaces, err := listSet(f, "set", table, setPodInterfaces)
	for _, raw := range prefixes {
		if p, ok := parsePrefix(raw); ok {
			pods.Prefixes = append(pods.Prefixes, p)
		} else {
			foreign = true
		}
	}
	for _, raw := range interfaces {
		var name string
		if json.Unmarshal(raw, &name) == nil {
			pods.Interfaces = append(pods.Interfaces, name)
		} else {
			foreign = true
		}
	}
	return pods, foreign, err
}

// listAffinity returns the recorded affinity. foreign reports other elements than the rules add.
func listAffinity(f family, table string) (all []affinityEntry, foreign bool, err error) {
	elements, err := listSet(f, "map", table, mapAffinity)
	for _, raw := range elements {
		if entry, ok := parseAffinity(raw); ok {
			all = append(all, entry)
		} else {
			foreign = true
		}
	}
	return all, foreign, err
}

func parseAffinity(raw json.RawMessage) (affinityEntry, bool) {
	var pair []json.RawMessage
	if json.Unmarshal(raw, &pair) != nil || len(pair) != 2 {
		return affinityEntry{}, false
	}
	element, ok := parseKey(pair[0])
	target, hasTarget := parseKey(pair[1])
	client, isClient := element.parts.addr(0)
	key, isKey := element.parts.key(1)
	real, isReal := target.parts.addrPort(0)
	return affinityEntry{client, key, real, element.timeout, element.expires},
		ok && hasTarget && isClient && isKey && isReal && element.timeout != 0
}

// parsePrefix parses a prefix, which nft lists as an address if it contains only one.
func parsePrefix(raw json.RawMessage) (netip.Prefix, bool) {
	var outer struct {
		Prefix struct {
			Addr netip.Addr
			Len  int
		}
	}
	if json.Unmarshal(raw, &outer) == nil {
		p := netip.PrefixFrom(outer.Prefix.Addr, outer.Prefix.Len)
		return p, p.IsValid()
	}
	addr, ok := parts{raw}.addr(0)
	if !ok {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(addr, addr.BitLen()), true
}
