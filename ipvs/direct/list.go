package direct

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ironlb/ironlb/ipvs"
)

// listing is the content of a table. A foreign one has anything else than this package writes.
type listing struct {
	exists, foreign bool
	errors          map[ipvs.Key]string
	directed        map[ipvs.Key]struct{}
	nodes           map[netip.Addr]struct{}
	tiers           [numTiers]tier
	chains          map[string]struct{}
}

// object is an object in nft's JSON.
type object struct {
	Name string
	Type json.RawMessage
	// of sets and maps
	Map   string
	Flags []string
	Size  int
	Elem  []json.RawMessage
	// of chains
	Hook, Policy string
	Prio         int
}

// list reads the table of a family.
func list(ctx context.Context, f family) (listing, error) {
	cmd := exec.CommandContext(ctx, "nft", "--json", "list", "table", string(f.name), TableName)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	switch {
	case err != nil && strings.Contains(stderr.String(), "No such file or directory"):
		return listing{}, nil
	case err != nil:
		return listing{}, fmt.Errorf("list nftables %s %s: %w: %s", f.name, TableName, err, bytes.TrimSpace(stderr.Bytes()))
	}
	l, err := parse(f, out)
	if err != nil {
		return listing{}, fmt.Errorf("list nftables %s %s: %w", f.name, TableName, err)
	}
	return l, nil
}

func parse(f family, out []byte) (listing, error) {
	var objects struct {
		NFTables []map[string]json.RawMessage
	}
	if err := json.Unmarshal(out, &objects); err != nil {
		return listing{}, fmt.Errorf("parse the output of nft: %w", err)
	}
	l := listing{
		exists: true, directed: make(map[ipvs.Key]struct{}), chains: make(map[string]struct{}),
		nodes: make(map[netip.Addr]struct{}), tiers: [numTiers]tier{newTier(first), newTier(second)},
	}
	spreads := make(map[string]*spread)
	var virtuals [numTiers]object
	var failures object
	for _, o := range objects.NFTables {
		for kind, raw := range o {
			var parsed object
			if err := json.Unmarshal(raw, &parsed); err != nil && kind != "rule" && kind != "metainfo" {
				return listing{}, fmt.Errorf("parse the output of nft: %w", err)
			}
			switch tier := slices.Index(tierNames[:], parsed.Name); {
			case kind == "metainfo", kind == "table", kind == "rule": // rules are always written again
			case kind == "chain":
				l.chains[chainText(parsed)] = struct{}{}
			case kind == "set" && l.defined(f, parsed):
				l.addSet(parsed)
			case kind == "map" && tier >= 0 && l.defined(f, parsed):
				virtuals[tier] = parsed
			case kind == "map" && parsed.Name == mapErrors && l.defined(f, parsed):
				failures = parsed
			case kind == "map":
				l.addSpread(f, parsed, spreads)
			default:
				l.foreign = true
			}
		}
	}
	for tier, o := range virtuals {
		l.addVirtuals(tier, o, spreads)
	}
	l.addErrors(f, failures)
	return l, nil
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

// addSet reads the sets of virtual servers and of nodes. The others are always written again.
func (l *listing) addSet(o object) {
	for _, raw := range o.Elem {
		switch o.Name {
		case setDirected:
			key, ok := parseKey(raw)
			l.foreign = l.foreign || !ok
			l.directed[key] = struct{}{}
		case setNodes:
			var addr netip.Addr
			l.foreign = l.foreign || json.Unmarshal(raw, &addr) != nil
			l.nodes[addr] = struct{}{}
		}
	}
}

// spreadName has the tier, "client-" and the number.
var spreadName = regexp.MustCompile(`^(first|second)-(client-)?([1-9][0-9]{0,8})$`)

func (l *listing) addSpread(f family, o object, spreads map[string]*spread) {
	name := spreadName.FindStringSubmatch(o.Name)
	d := definition{typ: "integer", value: "ADDR", size: ipvs.NumSlots}
	if name == nil || !d.matches(f, o) {
		l.foreign = true
		return
	}
	tier := slices.Index(tierNames[:], name[1])
	id, _ := strconv.Atoi(name[3])
	s := &spread{id: id, content: newContent(name[2] != "")}
	for _, raw := range o.Elem {
		var pair []json.RawMessage
		var slot uint16
		var gateway netip.Addr
		ok := json.Unmarshal(raw, &pair) == nil && len(pair) == 2 && json.Unmarshal(pair[0], &slot) == nil &&
			json.Unmarshal(pair[1], &gateway) == nil && slot < ipvs.NumSlots
		peer, known := peerOf(gateway)
		if !ok || !known {
			l.foreign = true
			return
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
}

// addVirtuals reads the map of virtual servers of a tier.
func (l *listing) addVirtuals(tier int, o object, spreads map[string]*spread) {
	l.foreign = l.foreign || o.Name == ""
	for _, raw := range o.Elem {
		var pair []json.RawMessage
		var verdict map[string]struct{ Target string }
		ok := json.Unmarshal(raw, &pair) == nil && len(pair) == 2 && json.Unmarshal(pair[1], &verdict) == nil
		if !ok {
			l.foreign = true
			continue
		}
		key, isKey := parseKey(pair[0])
		s := spreads[verdict[verdictNames[tier]].Target]
		if !isKey || s == nil {
			l.foreign = true
			continue
		}
		s.refs++
		l.tiers[tier].of[key] = s
	}
}

// addErrors reads the map of ICMP errors, which follows from the others.
func (l *listing) addErrors(f family, o object) {
	l.foreign = l.foreign || o.Name == ""
	l.errors = make(map[ipvs.Key]string, len(o.Elem))
	for _, raw := range o.Elem {
		var pair []json.RawMessage
		var verdict struct{ Goto struct{ Target string } }
		if json.Unmarshal(raw, &pair) != nil || len(pair) != 2 || json.Unmarshal(pair[1], &verdict) != nil {
			l.foreign = true
			continue
		}
		key, isKey := f.parseErrorKey(pair[0])
		if !isKey || verdict.Goto.Target != errorChain(l.directed, &l.tiers, key) {
			l.foreign = true
		}
		l.errors[key] = verdict.Goto.Target
	}
	l.foreign = l.foreign || len(l.errors) != len(l.directed)
}

// parseErrorKey parses a virtual server whose parts are integers, which nft writes as text if they have many digits.
func (f family) parseErrorKey(raw json.RawMessage) (key ipvs.Key, ok bool) {
	var element struct{ Concat []json.RawMessage }
	if json.Unmarshal(raw, &element) != nil || len(element.Concat) != 3 {
		return key, false
	}
	addr, isNumber := new(big.Int).SetString(strings.Trim(string(element.Concat[0]), `"`), 0)
	octets := f.gateway(0).AsSlice() // of the family's length
	if !isNumber || addr.Sign() < 0 || addr.BitLen() > 8*len(octets) {
		return key, false
	}
	key.Addr, _ = netip.AddrFromSlice(addr.FillBytes(octets))
	protocol, known := parseProtocol(element.Concat[1])
	key.Protocol = protocol
	return key, known && json.Unmarshal(element.Concat[2], &key.Port) == nil
}

// parseKey parses a virtual server.
func parseKey(raw json.RawMessage) (key ipvs.Key, ok bool) {
	var element struct{ Concat []json.RawMessage }
	if json.Unmarshal(raw, &element) != nil || len(element.Concat) != 3 {
		return key, false
	}
	parts := element.Concat
	protocol, known := parseProtocol(parts[1])
	key.Protocol = protocol
	ok = known && json.Unmarshal(parts[0], &key.Addr) == nil && json.Unmarshal(parts[2], &key.Port) == nil
	return key, ok && key.Addr.IsValid()
}

// parseProtocol parses a protocol: its name, or its number if there is no /etc/protocols, as in a small image.
func parseProtocol(raw json.RawMessage) (ipvs.Protocol, bool) {
	var number uint8
	if json.Unmarshal(raw, &number) == nil {
		return ipvs.Protocol(number), true
	}
	var name string
	if json.Unmarshal(raw, &name) != nil {
		return 0, false
	}
	for _, p := range []ipvs.Protocol{ipvs.TCP, ipvs.UDP, ipvs.SCTP} {
		if strings.EqualFold(name, p.String()) {
			return p, true
		}
	}
	return 0, false
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
