package nft

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/ironlb/ironlb/ipvs"
)

// errForeignContent reports foreign content in IronLB's table.
var errForeignContent = errors.New("unexpected content")

// list returns the elements of the table's sets, and the remaining definition as text that changes with any edit of a
// rule, a chain or a set. Without a table both are empty. For foreign content it returns errForeignContent together
// with the text. With terse it reads only the text.
//
// One run of nft returns both; knftables can list neither a rule's text nor all sets at once.
func list(ctx context.Context, f family, terse bool) (ipvs.Filter, string, error) {
	args := []string{"--json", "list", "table", string(f.nft), TableName}
	if terse {
		args = append([]string{"--terse"}, args...)
	}
	cmd := exec.CommandContext(ctx, "nft", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	switch {
	case err != nil && strings.Contains(stderr.String(), "No such file or directory"):
		return ipvs.Filter{}, "", nil
	case err != nil:
		return nil, "", fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return parse(f, out)
}

// parse parses the output of "nft --json list table" of a family.
func parse(f family, out []byte) (ipvs.Filter, string, error) {
	var listing struct {
		Objects []map[string]json.RawMessage `json:"nftables"`
	}
	if err := json.Unmarshal(out, &listing); err != nil {
		return nil, "", fmt.Errorf("parse the output of nft: %w", err)
	}
	have := make(ipvs.Filter)
	var shape strings.Builder
	var errs []error
	for _, object := range listing.Objects {
		for kind, raw := range object {
			switch kind {
			case "metainfo": // the version of nft
			case "set":
				definition, err := parseSet(f, have, raw)
				errs = append(errs, err)
				fmt.Fprintf(&shape, "set %s\n", definition)
			default:
				fmt.Fprintf(&shape, "%s %s\n", kind, raw)
			}
		}
	}
	return have, shape.String(), errors.Join(errs...)
}

// parseSet puts the elements of a set into have and returns the definition of the set without them.
func parseSet(f family, have ipvs.Filter, raw []byte) ([]byte, error) {
	var set map[string]json.RawMessage
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, fmt.Errorf("parse a set: %w", err)
	}
	var name string
	if err := json.Unmarshal(set["name"], &name); err != nil {
		return nil, fmt.Errorf("parse the name of a set: %w", err)
	}
	var elements []json.RawMessage
	if elem, ok := set["elem"]; ok {
		if err := json.Unmarshal(elem, &elements); err != nil {
			return nil, fmt.Errorf("parse the elements of set %s: %w", name, err)
		}
	}
	delete(set, "elem")
	definition, err := json.Marshal(set) // sorts the keys
	if err != nil {
		return nil, err
	}
	var errs []error
	kind := setNamed(name)
	for _, raw := range elements {
		element, ok := parseElement(f, kind, raw)
		if !ok {
			errs = append(errs, fmt.Errorf("%w in set %s: %s", errForeignContent, name, raw))
			continue
		}
		have[element] = struct{}{}
	}
	return definition, errors.Join(errs...)
}

// setNamed returns the set of that name, 0 if there is none.
func setNamed(name string) ipvs.Set {
	for s := range ipvs.NumSets {
		if shapes[s] != 0 && s.String() == name {
			return s
		}
	}
	return 0
}

// parseElement parses an element of a set. An element with a comment or a time-out is foreign.
func parseElement(f family, s ipvs.Set, raw []byte) (ipvs.Element, bool) {
	e := ipvs.Element{Set: s}
	parts := []json.RawMessage{raw}
	if shape := shapeOf(s); shape == pair || shape == server || shape == serverFrom {
		var concatenation struct {
			Concat []json.RawMessage `json:"concat"`
		}
		if json.Unmarshal(raw, &concatenation) != nil {
			return e, false
		}
		parts = concatenation.Concat
	}
	ok := false
	switch shape, n := shapeOf(s), len(parts); {
	case shape == address && n == 1:
		e.Key.Addr, ok = parseAddr(parts[0])
	case shape == pair && n == 2:
		var again netip.Addr
		e.Key.Addr, ok = parseAddr(parts[0])
		again, _ = parseAddr(parts[1])
		ok = ok && again == e.Key.Addr
	case shape == prefix && n == 1:
		e.Prefix, ok = parsePrefix(parts[0])
	case shape == incoming && n == 1:
		e.Prefix, ok = f.everything, json.Unmarshal(parts[0], &e.Interface) == nil
	case shape == server && n == 3:
		e.Key, ok = parseKey(parts)
	case shape == serverFrom && n == 4:
		if e.Key, ok = parseKey(parts); ok {
			e.Prefix, ok = parsePrefix(parts[3])
		}
	}
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
