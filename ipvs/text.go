package ipvs

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Compare orders keys by address, port and protocol.
func (k Key) Compare(l Key) int {
	return cmp.Or(k.Addr.Compare(l.Addr), cmp.Compare(k.Port, l.Port), cmp.Compare(k.Protocol, l.Protocol))
}

// String returns the key as printed by ipvsadm, "TCP 203.0.113.4:80".
func (k Key) String() string {
	return fmt.Sprintf("%v %v", k.Protocol, netip.AddrPortFrom(k.Addr, k.Port))
}

// normal returns the settings without flags that the kernel sets by itself.
func (s Settings) normal() Settings {
	s.Flags &^= Hashed
	return s
}

// String returns the settings as printed by ipvsadm, "rr persistent 10800".
func (s Settings) String() string {
	s = s.normal()
	text := s.Scheduler
	if s.Flags&Persistent != 0 {
		text += fmt.Sprintf(" persistent %d", s.Timeout)
	}
	if rest := s.Flags &^ Persistent; rest != 0 {
		text += fmt.Sprintf(" flags 0x%x", uint32(rest))
	}
	return text
}

// String returns the forwarding method as printed by ipvsadm.
func (f Forward) String() string {
	switch f {
	case Masquerade:
		return "Masq"
	case localNode:
		return "Local"
	case Tunnel:
		return "Tunnel"
	}
	return fmt.Sprintf("Forward(%d)", uint8(f))
}

// String returns forwarding method and weight.
func (r RealServer) String() string {
	return fmt.Sprintf("%v %d", r.Forward, r.Weight)
}

// Keys returns the keys of the table in order.
func (t Table) Keys() []Key {
	return slices.SortedFunc(maps.Keys(t), Key.Compare)
}

// String returns the table as printed by "ipvsadm -Ln", without the columns of counters and sorted.
func (t Table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-4s %s %s\n", "Prot", "LocalAddress:Port", "Scheduler Flags")
	fmt.Fprintf(&b, "  %-2s %-28s %-7s %s\n", "->", "RemoteAddress:Port", "Forward", "Weight")
	for _, key := range t.Keys() {
		vs := t[key]
		fmt.Fprintf(&b, "%-4v %v %v\n", key.Protocol, netip.AddrPortFrom(key.Addr, key.Port), vs.Settings)
		for _, addr := range slices.SortedFunc(maps.Keys(vs.RealServers), netip.AddrPort.Compare) {
			rs := vs.RealServers[addr]
			fmt.Fprintf(&b, "  %-2s %-28v %-7v %d\n", "->", addr, rs.Forward, rs.Weight)
		}
	}
	return b.String()
}
