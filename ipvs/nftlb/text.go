package nftlb

import (
	"encoding/json"
	"net/netip"
	"strconv"
	"strings"

	"github.com/ironlb/ironlb/ipvs"
)

// The comments of elements hold what the rules cannot express, in ipvsadm's notation: "rr persistent 10800 flags 0x10"
// for a virtual server, "Masq 1" for a slot.

// parseSettings parses the comment of a virtual server.
func parseSettings(text string) (ipvs.Settings, bool) {
	words := strings.Fields(text)
	if len(words)%2 == 0 {
		return ipvs.Settings{}, false
	}
	settings := ipvs.Settings{Scheduler: words[0]}
	for i := 1; i < len(words); i += 2 {
		n, err := strconv.ParseUint(words[i+1], 0, 32)
		switch {
		case err != nil:
			return ipvs.Settings{}, false
		case words[i] == "persistent":
			settings.Flags |= ipvs.Persistent
			settings.Timeout = uint32(n)
		case words[i] == "flags":
			settings.Flags |= ipvs.Flags(n)
		}
	}
	return settings, checkScheduler(settings.Scheduler) == nil && settings.String() == text
}

// parseReal parses the comment of a slot.
func parseReal(text string) (ipvs.RealServer, bool) {
	method, weight, _ := strings.Cut(text, " ")
	n, err := strconv.ParseUint(weight, 10, 16)
	rs := ipvs.RealServer{Weight: uint32(n)}
	for _, rs.Forward = range []ipvs.Forward{ipvs.Masquerade, ipvs.Tunnel} {
		if err == nil && rs.Forward.String() == method {
			return rs, true
		}
	}
	return ipvs.RealServer{}, false
}

// keyText returns a virtual server as the parts of an element's key. The protocol is a number: a small image has no
// names.
func keyText(key ipvs.Key) []string {
	return []string{key.Addr.String(), strconv.Itoa(int(key.Protocol)), strconv.Itoa(int(key.Port))}
}

// realText returns a real server as the parts of an element's key or value.
func realText(real netip.AddrPort) []string {
	return []string{real.Addr().String(), strconv.Itoa(int(real.Port()))}
}

// parts are the parts of a concatenation in nft's JSON.
type parts []json.RawMessage

func (p parts) addr(i int) (addr netip.Addr, ok bool) {
	return addr, i < len(p) && json.Unmarshal(p[i], &addr) == nil && addr.IsValid()
}

func (p parts) number(i int) (n uint32, ok bool) {
	return n, i < len(p) && json.Unmarshal(p[i], &n) == nil
}

// protocol parses a protocol: its name, or its number if there is no /etc/protocols, as in a small image.
func (p parts) protocol(i int) (ipvs.Protocol, bool) {
	if n, ok := p.number(i); ok {
		return ipvs.Protocol(n), n < 1<<8
	}
	var name string
	if i < len(p) && json.Unmarshal(p[i], &name) == nil {
		for _, protocol := range protocols {
			if strings.EqualFold(name, protocol.String()) {
				return protocol, true
			}
		}
	}
	return 0, false
}

// key parses a virtual server from the parts beginning at i.
func (p parts) key(i int) (ipvs.Key, bool) {
	addr, ok1 := p.addr(i)
	protocol, ok2 := p.protocol(i + 1)
	port, ok3 := p.number(i + 2)
	return ipvs.Key{Addr: addr, Protocol: protocol, Port: uint16(port)}, ok1 && ok2 && ok3 && port < 1<<16
}

// addrPort parses an address and a port from the parts beginning at i.
func (p parts) addrPort(i int) (netip.AddrPort, bool) {
	addr, ok1 := p.addr(i)
	port, ok2 := p.number(i + 1)
	return netip.AddrPortFrom(addr, uint16(port)), ok1 && ok2 && port < 1<<16
}

// elementKey is the key of an element of a set or map, with nft's additional fields.
type elementKey struct {
	parts parts
	// timeout and expires are seconds, 0 without a time-out.
	timeout, expires uint32
}

// parseKey parses an element of a set, or the key of an element of a map.
func parseKey(raw json.RawMessage) (elementKey, bool) {
	var outer struct {
		Elem *struct {
			Val              json.RawMessage
			Timeout, Expires uint32
		}
		Concat parts
	}
	if json.Unmarshal(raw, &outer) != nil {
		return elementKey{parts: parts{raw}}, true // a single value
	}
	if outer.Elem == nil {
		return elementKey{parts: outer.Concat}, outer.Concat != nil
	}
	key, ok := parseKey(outer.Elem.Val)
	key.timeout, key.expires = outer.Elem.Timeout, outer.Elem.Expires
	return key, ok
}
