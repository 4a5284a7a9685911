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

// errForeignContent says that somebody put into our table what we never do.
var errForeignContent = errors.New("unexpected content")

// list returns what the sets of our table hold, and the rest of the table as text that changes with any edit of a rule,
// a chain or a set. Without a table both are empty. Content that is not ours gives errForeignContent beside the rest.
//
// One run of nft gives both; knftables can list neither a rule's text nor all sets at once.
func list(ctx context.Context) (ipvs.Firewall, string, error) {
	cmd := exec.CommandContext(ctx, "nft", "--json", "list", "table", "ip", TableName)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	switch {
	case err != nil && strings.Contains(stderr.String(), "No such file or directory"):
		return ipvs.Firewall{}.Clone(), "", nil
	case err != nil:
		return ipvs.Firewall{}, "", fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return parse(out)
}

// parse reads the output of "nft --json list table".
func parse(out []byte) (ipvs.Firewall, string, error) {
	var listing struct {
		Objects []map[string]json.RawMessage `json:"nftables"`
	}
	if err := json.Unmarshal(out, &listing); err != nil {
		return ipvs.Firewall{}, "", fmt.Errorf("parse the output of nft: %w", err)
	}
	have := ipvs.Firewall{}.Clone()
	var shape strings.Builder
	var errs []error
	for _, object := range listing.Objects {
		for kind, raw := range object {
			switch kind {
			case "metainfo": // the version of nft
			case "set":
				definition, err := parseSet(have, raw)
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
func parseSet(have ipvs.Firewall, raw []byte) ([]byte, error) {
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
	for _, element := range elements {
		if !addElement(have, name, element) {
			errs = append(errs, fmt.Errorf("%w in set %s: %s", errForeignContent, name, element))
		}
	}
	return definition, errors.Join(errs...)
}

func addElement(have ipvs.Firewall, set string, raw []byte) bool {
	switch set {
	case addressSet:
		addr, ok := parseAddr(raw)
		if ok {
			have.Addrs[addr] = struct{}{}
		}
		return ok
	case servedSet, masqueradeSet:
		key, ok := parseKey(raw)
		if ok && set == servedSet {
			have.Served[key] = struct{}{}
		} else if ok {
			have.Masquerade[key] = struct{}{}
		}
		return ok
	}
	return false
}

func parseAddr(raw []byte) (netip.Addr, bool) {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(text)
	return addr, err == nil
}

func parseKey(raw []byte) (ipvs.Key, bool) {
	var element struct {
		Concat []json.RawMessage `json:"concat"`
	}
	if json.Unmarshal(raw, &element) != nil || len(element.Concat) != 3 {
		return ipvs.Key{}, false
	}
	addr, ok := parseAddr(element.Concat[0])
	protocol, known := parseProtocol(element.Concat[1])
	var port uint16
	if !ok || !known || json.Unmarshal(element.Concat[2], &port) != nil {
		return ipvs.Key{}, false
	}
	return ipvs.Key{Addr: addr, Protocol: protocol, Port: port}, true
}

// parseProtocol reads a protocol: its name, or its number where there is no /etc/protocols, as in a small image.
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
