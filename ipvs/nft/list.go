package nft

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
	"github.com/ironlb/ironlb/ipvs/nftopen"
)

// listing is the content of the sets of a table.
type listing struct {
	elements ipvs.Filter
	// keys are those of foreign elements in the plain sets: with a key, a comment or a time-out that this package does
	// not write. intervals are the other sets with a foreign element.
	keys      map[ipvs.Set][][]byte
	intervals map[ipvs.Set]struct{}
	// catchAll is set if a plain set has an element for all others, which has no key.
	catchAll bool
}

// foreign reports whether a set has an element that this package does not write.
func (l listing) foreign() bool { return l.catchAll || len(l.keys)+len(l.intervals) > 0 }

// list lists the sets of the table of a family: the plain ones over netlink, since nft takes seconds to print many
// elements. Without a table there are none.
func list(ctx context.Context, f family) (listing, error) {
	l := listing{elements: make(ipvs.Filter), keys: make(map[ipvs.Set][][]byte), intervals: make(map[ipvs.Set]struct{})}
	lister, err := nftbatch.NewLister()
	if err != nil {
		return listing{}, err
	}
	defer lister.Close()
	for s := range ipvs.NumSets {
		switch {
		case plain(s):
			err = l.addPlain(lister, f, s)
		case shapes[s] != 0:
			err = l.addIntervals(ctx, f, s)
		}
		if err != nil {
			return listing{}, err
		}
	}
	return l, nil
}

func (l *listing) addPlain(lister *nftbatch.Lister, f family, s ipvs.Set) error {
	elements, err := lister.Elements(f.number, TableName, s.String())
	for _, raw := range elements {
		if e, ok := parseOctets(f, s, raw.Key); ok && raw.Comment == "" && !raw.Timeout {
			l.elements[e] = struct{}{}
		} else {
			l.keys[s] = append(l.keys[s], raw.Key)
			l.catchAll = l.catchAll || raw.Key == nil
		}
	}
	return err
}

func (l listing) addIntervals(ctx context.Context, f family, s ipvs.Set) error {
	out, err := nftopen.List(ctx, "set", string(f.nft), TableName, s.String())
	if err != nil || out == nil {
		return err
	}
	elements, foreign, err := parse(f, s, out)
	for _, e := range elements {
		l.elements[e] = struct{}{}
	}
	if foreign {
		l.intervals[s] = struct{}{}
	}
	return err
}

// definition returns the definition of the table of a family, empty without one.
func definition(f family) (string, error) {
	lister, err := nftbatch.NewLister()
	if err != nil {
		return "", err
	}
	defer lister.Close()
	return lister.Definition(f.number, TableName)
}

// parse parses the output of "nft --json list set" of a set with intervals. foreign reports elements that this package
// does not write.
func parse(f family, s ipvs.Set, out []byte) (elements []ipvs.Element, foreign bool, err error) {
	var objects struct {
		NFTables []struct {
			Set *struct{ Elem []json.RawMessage }
		}
	}
	if err := json.Unmarshal(out, &objects); err != nil {
		return nil, false, fmt.Errorf("parse set %v: %w", s, err)
	}
	for _, object := range objects.NFTables {
		if object.Set == nil {
			continue
		}
		for _, raw := range object.Set.Elem {
			if e, ok := parseElement(f, s, raw); ok {
				elements = append(elements, e)
			} else {
				foreign = true
			}
		}
	}
	return elements, foreign, nil
}

// parseElement parses an element of a set with intervals. An element with a comment or a time-out is foreign.
func parseElement(f family, s ipvs.Set, raw []byte) (e ipvs.Element, ok bool) {
	e.Set = s
	var from netip.Prefix
	switch shapeOf(s) {
	case prefix:
		from, ok = parsePrefix(raw)
	case incoming:
		var name string
		from, ok = f.everything, json.Unmarshal(raw, &name) == nil
		e = e.On(name)
	case serverFrom:
		var concatenation struct {
			Concat []json.RawMessage
		}
		if json.Unmarshal(raw, &concatenation) != nil || len(concatenation.Concat) != 4 {
			return e, false
		}
		if e.Key, ok = parseKey(concatenation.Concat); ok {
			from, ok = parsePrefix(concatenation.Concat[3])
		}
	}
	e = e.From(from)
	return e, ok && validate(e) == ""
}

func parseAddr(raw []byte) (netip.Addr, bool) {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(text)
	return addr, err == nil
}

// parsePrefix parses a prefix, which nft lists as such or as a single address.
func parsePrefix(raw []byte) (netip.Prefix, bool) {
	if addr, ok := parseAddr(raw); ok {
		return netip.PrefixFrom(addr, addr.BitLen()), true
	}
	var element struct {
		Prefix struct {
			Addr netip.Addr `json:"addr"`
			Len  *int       `json:"len"`
		} `json:"prefix"`
	}
	if json.Unmarshal(raw, &element) != nil || element.Prefix.Len == nil {
		return netip.Prefix{}, false
	}
	prefix := netip.PrefixFrom(element.Prefix.Addr, *element.Prefix.Len)
	return prefix, prefix.IsValid()
}

// parseKey parses address, protocol and port.
func parseKey(parts []json.RawMessage) (ipvs.Key, bool) {
	addr, ok := parseAddr(parts[0])
	protocol, known := parseProtocol(parts[1])
	var port uint16
	if !ok || !known || json.Unmarshal(parts[2], &port) != nil {
		return ipvs.Key{}, false
	}
	return ipvs.Key{Addr: addr, Protocol: protocol, Port: port}, true
}

// parseProtocol parses a protocol: its name, or its number if there is no /etc/protocols, as in a small image.
func parseProtocol(raw []byte) (ipvs.Protocol, bool) {
	var number ipvs.Protocol
	if json.Unmarshal(raw, &number) == nil {
		return number, protocolNames[number] != ""
	}
	var name string
	if json.Unmarshal(raw, &name) != nil {
		return 0, false
	}
	for protocol, known := range protocolNames {
		if known == name {
			return protocol, true
		}
	}
	return 0, false
}
