package nftlb

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/ironlb/ironlb/ipvs"
)

// listing is the content of the table of a family.
type listing struct {
	exists   bool
	virtuals map[ipvs.Key]*virtual
	affinity []affinityEntry
	pods     ipvs.PodSources
}

// list reads the table of a family. Content that differs from the package's format is left out: the table is rebuilt
// from the result.
func list(f family, table string) (listing, error) {
	return listObject("table", string(f.name), table)
}

// listAffinity reads only the recorded affinity.
func listAffinity(f family, table string) ([]affinityEntry, error) {
	l, err := listObject("map", string(f.name), table, mapAffinity)
	return l.affinity, err
}

func listObject(object ...string) (listing, error) {
	cmd := exec.Command("nft", append([]string{"--json", "list"}, object...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	switch {
	case err != nil && strings.Contains(stderr.String(), "No such file or directory"):
		return listing{}, nil
	case err != nil:
		return listing{}, fmt.Errorf("list nftables %s: %w: %s", strings.Join(object, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	l, err := parse(out)
	if err != nil {
		return listing{}, fmt.Errorf("list nftables %s: %w", strings.Join(object, " "), err)
	}
	return l, nil
}

// set is a set or a map in nft's JSON.
type set struct {
	Name string
	Elem []json.RawMessage
}

func parse(out []byte) (listing, error) {
	var objects struct {
		NFTables []struct{ Set, Map *set }
	}
	if err := json.Unmarshal(out, &objects); err != nil {
		return listing{}, fmt.Errorf("parse the output of nft: %w", err)
	}
	sets := make(map[string][]json.RawMessage)
	for _, object := range objects.NFTables {
		for _, s := range []*set{object.Set, object.Map} {
			if s != nil {
				sets[s.Name] = s.Elem
			}
		}
	}
	l := listing{exists: true, virtuals: make(map[ipvs.Key]*virtual)}
	for _, raw := range sets[mapVirtuals] {
		l.addVirtual(raw)
	}
	for _, p := range protocols {
		for _, raw := range sets[mapReals[p]] {
			l.addReal(p, raw)
		}
	}
	for _, raw := range sets[mapAffinity] {
		l.addAffinity(raw)
	}
	for _, raw := range sets[setPods] {
		if p, ok := parsePrefix(raw); ok {
			l.pods.Prefixes = append(l.pods.Prefixes, p)
		}
	}
	for _, raw := range sets[setPodInterfaces] {
		var name string
		if json.Unmarshal(raw, &name) == nil {
			l.pods.Interfaces = append(l.pods.Interfaces, name)
		}
	}
	for _, vs := range l.virtuals {
		vs.layout = lay(vs.layout, vs.VirtualServer)
	}
	return l, nil
}

// parsePair parses an element of a map.
func parsePair(raw json.RawMessage) (elementKey, json.RawMessage, bool) {
	var pair []json.RawMessage
	if json.Unmarshal(raw, &pair) != nil || len(pair) != 2 {
		return elementKey{}, nil, false
	}
	key, ok := parseKey(pair[0])
	return key, pair[1], ok
}

func (l listing) addVirtual(raw json.RawMessage) {
	element, _, ok := parsePair(raw)
	key, isKey := element.parts.key(0)
	settings, known := parseSettings(element.comment)
	if ok && isKey && known {
		l.virtuals[key] = newVirtual(settings)
	}
}

func (l listing) addReal(protocol ipvs.Protocol, raw json.RawMessage) {
	element, value, ok := parsePair(raw)
	at, isKey := element.parts.addrPort(0)
	slot, isSlot := element.parts.number(2)
	target, hasTarget := parseKey(value)
	real, isReal := target.parts.addrPort(0)
	rs, known := parseReal(element.comment)
	vs := l.virtuals[ipvs.Key{Addr: at.Addr(), Protocol: protocol, Port: at.Port()}]
	if ok && isKey && isSlot && hasTarget && isReal && known && vs != nil {
		vs.RealServers[real] = rs
		vs.layout.at[slot] = real
	}
}

func (l *listing) addAffinity(raw json.RawMessage) {
	element, value, ok := parsePair(raw)
	client, isClient := element.parts.addr(0)
	key, isKey := element.parts.key(1)
	target, hasTarget := parseKey(value)
	real, isReal := target.parts.addrPort(0)
	if ok && isClient && isKey && hasTarget && isReal && element.timeout != 0 {
		l.affinity = append(l.affinity, affinityEntry{client, key, real, element.timeout, element.expires})
	}
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
