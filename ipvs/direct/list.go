package direct

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
)

// listing is the content of a table. A foreign one has anything else than this package writes.
type listing struct {
	exists, foreign  bool
	errors           map[ipvs.Key]string
	directed, closed map[ipvs.Key]struct{}
	nodes            map[netip.Addr]struct{}
	tiers            [numTiers]tier
	chains           map[string]struct{}
}

// object is an object in nft's JSON.
type object struct {
	Name string
	Type json.RawMessage
	// of sets and maps
	Map   string
	Flags []string
	Size  int
	// of chains
	Hook, Policy string
	Prio         int
}

// list reads the table of a family: elements over netlink, since nft takes seconds to print many, and the rest by nft.
func list(ctx context.Context, f family) (listing, error) {
	cmd := exec.CommandContext(ctx, "nft", "--json", "--terse", "list", "table", string(f.name), TableName)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	switch {
	case err != nil && strings.Contains(stderr.String(), "No such file or directory"):
		return listing{}, nil
	case err != nil:
		return listing{}, fmt.Errorf("list nftables %s %s: %w: %s", f.name, TableName, err, bytes.TrimSpace(stderr.Bytes()))
	}
	lister, err := nftbatch.NewLister()
	if err != nil {
		return listing{}, err
	}
	defer lister.Close()
	l, err := parse(f, out, func(set string) ([]nftbatch.Element, error) {
		return lister.Elements(f.number, TableName, set)
	})
	if err != nil {
		return listing{}, fmt.Errorf("list nftables %s %s: %w", f.name, TableName, err)
	}
	return l, nil
}

// elements lists a set or map.
type elements func(set string) ([]nftbatch.Element, error)

func parse(f family, out []byte, of elements) (listing, error) {
	var objects struct {
		NFTables []map[string]json.RawMessage
	}
	if err := json.Unmarshal(out, &objects); err != nil {
		return listing{}, fmt.Errorf("parse the output of nft: %w", err)
	}
	l := listing{
		exists: true, directed: make(map[ipvs.Key]struct{}), closed: make(map[ipvs.Key]struct{}),
		chains: make(map[string]struct{}), nodes: make(map[netip.Addr]struct{}),
		tiers: [numTiers]tier{newTier(first), newTier(second)},
	}
	spreads, defined := make(map[string]*spread), make(map[string]bool)
	for _, o := range objects.NFTables {
		for kind, raw := range o {
			var parsed object
			if err := json.Unmarshal(raw, &parsed); err != nil && kind != "rule" && kind != "metainfo" {
				return listing{}, fmt.Errorf("parse the output of nft: %w", err)
			}
			switch {
			case kind == "metainfo", kind == "table", kind == "rule": // rules are always written again
			case kind == "chain":
				l.chains[chainText(parsed)] = struct{}{}
			case (kind == "set" || kind == "map") && l.defined(f, parsed):
				defined[parsed.Name] = true
			case kind == "map":
				if err := l.addSpread(f, parsed, spreads, of); err != nil {
					return listing{}, err
				}
			default:
				l.foreign = true
			}
		}
	}
	l.foreign = l.foreign || len(defined) != len(definitions)
	if l.foreign { // nothing of it is used
		return l, nil
	}
	return l, l.addElements(spreads, of)
}

// chainText identifies a chain with all of its properties.
func chainText(o object) string { return fmt.Sprintf("%s %s %d %s", o.Name, o.Hook, o.Prio, o.Policy) }

// text returns the same of a chain that this package writes.
func (c chain) text() string {
	o := object{Name: c.name, Hook: string(c.hook), Prio: c.priority}
	if c.hook != "" {
		o.Policy = "accept"
	}
	return chainText(o)
}

// defined reports whether a set or map is as this package defines it.
func (l *listing) defined(f family, o object) bool {
	for _, d := range definitions {
		if d.name == o.Name {
			return d.matches(f, o)
		}
	}
	return false
}

func (d definition) matches(f family, o object) bool {
	var types []string
	var single string
	if json.Unmarshal(o.Type, &types) != nil && json.Unmarshal(o.Type, &single) == nil {
		types = []string{single}
	}
	flags := []string{}
	if d.interval {
		flags = []string{"interval"}
	}
	return strings.Join(types, " . ") == f.words.Replace(d.typ) && o.Map == f.words.Replace(d.value) &&
		slices.Equal(o.Flags, flags) && o.Size == d.size
}

// spreadName has the tier, "client-" and the number.
var spreadName = regexp.MustCompile(`^(first|second)-(client-)?([1-9][0-9]{0,8})$`)

func (l *listing) addSpread(f family, o object, spreads map[string]*spread, of elements) error {
	name := spreadName.FindStringSubmatch(o.Name)
	d := definition{typ: "integer", value: "ADDR", size: ipvs.NumSlots}
	if name == nil || !d.matches(f, o) {
		l.foreign = true
		return nil
	}
	tier := slices.Index(tierNames[:], name[1])
	id, _ := strconv.Atoi(name[3])
	s := &spread{id: id, content: newContent(name[2] != "")}
	listed, err := of(o.Name)
	if err != nil {
		return err
	}
	for _, e := range listed {
		gateway, _ := netip.AddrFromSlice(e.Value)
		peer, known := peerOf(gateway)
		slot, inRange := slotOf(e.Key)
		if !known || !inRange {
			l.foreign = true
			return nil
		}
		s.peers[slot] = peer
	}
	t := &l.tiers[tier]
	t.last = max(t.last, id)
	t.all = append(t.all, s)
	if t.by[s.content] == nil {
		t.by[s.content] = s
	}
	spreads[o.Name] = s
	return nil
}

// slotOf returns the slot of a key.
func slotOf(key []byte) (slot uint32, ok bool) {
	const octets = 4
	if len(key) != octets {
		return 0, false
	}
	slot = binary.NativeEndian.Uint32(key)
	return slot, slot < ipvs.NumSlots
}

// addElements reads the elements of the defined sets and maps, except for those that are always written again.
func (l *listing) addElements(spreads map[string]*spread, of elements) error {
	read := func(set string, add func(nftbatch.Element) bool) error {
		listed, err := of(set)
		for _, e := range listed {
			l.foreign = !add(e) || l.foreign
		}
		return err
	}
	virtual := func(add func(ipvs.Key, nftbatch.Element) bool) func(nftbatch.Element) bool {
		return func(e nftbatch.Element) bool {
			key, ok := nftbatch.ParseVirtualServer(e.Key)
			return ok && add(key, e)
		}
	}
	err := errors.Join(
		read(setNodes, func(e nftbatch.Element) bool {
			addr, ok := netip.AddrFromSlice(e.Key)
			l.nodes[addr] = struct{}{}
			return ok
		}),
		read(setDirected, virtual(func(key ipvs.Key, _ nftbatch.Element) bool {
			l.directed[key] = struct{}{}
			return true
		})),
		read(setClosed, virtual(func(key ipvs.Key, _ nftbatch.Element) bool {
			l.closed[key] = struct{}{}
			return true
		})),
	)
	for tier := range l.tiers {
		err = errors.Join(err, read(tierNames[tier], virtual(func(key ipvs.Key, e nftbatch.Element) bool {
			s := spreads[e.Chain]
			if s == nil || s.name(tier) != e.Chain || e.Verdict != toSpread {
				return false
			}
			s.refs++
			l.tiers[tier].of[key] = s
			return true
		})))
	}
	l.errors = make(map[ipvs.Key]string, len(l.directed))
	err = errors.Join(err, read(mapErrors, virtual(func(key ipvs.Key, e nftbatch.Element) bool {
		l.errors[key] = e.Chain
		return e.Verdict == nftbatch.Goto && e.Chain == errorChain(l.directed, &l.tiers, key)
	})))
	l.foreign = l.foreign || len(l.errors) != len(l.directed)
	return err
}

// matches reports whether the table has exactly these chains and those of its spreads, all with their hooks.
func (l *listing) matches(chains []chain) bool {
	want := make(map[string]struct{})
	for _, c := range chains {
		want[c.text()] = struct{}{}
	}
	for number, t := range l.tiers {
		for _, s := range t.all {
			want[chain{name: s.name(number)}.text()] = struct{}{}
		}
	}
	if l.foreign || len(want) != len(l.chains) {
		return false
	}
	for text := range want {
		if _, has := l.chains[text]; !has {
			return false
		}
	}
	return true
}
