package router

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Config of a router, limited to what both kinds support.
type Config struct {
	ASN       uint32
	ID        netip.Addr
	Neighbors []Neighbor
	// Announce are prefixes advertised to every neighbor.
	Announce []netip.Prefix
	// BIRD and FRR are appended to the configuration of that kind.
	BIRD, FRR string
}

// Neighbor is a session of the router. Zero fields are the usual defaults.
type Neighbor struct {
	Name string
	// Address of the neighbor, with the interface if it is link-local. Local is the router's own address; if unset, the
	// kernel chooses it.
	Address, Local netip.Addr
	// ASN of the neighbor. 0 accepts any other than the router's.
	ASN      uint32
	Password string
	// MultiHop is the number of hops, 0 for a neighbor on the link.
	MultiHop int
	// TTLSecurity accepts only packets with a TTL of 255.
	TTLSecurity bool
	// Active makes the router connect; otherwise it only listens.
	Active bool
	// IPv4 and IPv6 are the address families; without both, the family of Address.
	IPv4, IPv6 bool
	// Hold time, 0 for the router's default.
	Hold time.Duration
	// BFD timers; the zero value disables BFD.
	BFD BFDTimers
	// BFDGraceful makes BIRD keep the routes of a graceful restart while BFD is down, as FRR does by default.
	BFDGraceful bool
}

// BFDTimers are the timers of both directions.
type BFDTimers struct {
	Interval   time.Duration
	Multiplier int
}

func (n Neighbor) families() (four, six bool) {
	if !n.IPv4 && !n.IPv6 {
		return n.Address.Is4(), n.Address.Is6()
	}
	return n.IPv4, n.IPv6
}

// lines builds the text of a configuration.
type lines struct{ strings.Builder }

func (l *lines) add(format string, args ...any) { fmt.Fprintf(l, format+"\n", args...) }

func (l *lines) addIf(cond bool, format string, args ...any) {
	if cond {
		l.add(format, args...)
	}
}

// bird returns the configuration file of BIRD.
func (c Config) bird() string {
	var l lines
	l.add("log stderr all;")
	l.add("timeformat protocol iso long us; timeformat route iso long us; timeformat log iso long us; timeformat base iso long us;")
	l.add("router id %v;", c.ID)
	l.add("protocol device { scan time 1; }")
	l.add("protocol direct { ipv4; ipv6; interface \"*\"; }") // resolves next hops of multihop sessions
	for _, family := range []string{"ipv4", "ipv6"} {
		l.add("protocol kernel kernel_%s { merge paths on limit 64; %s { import none; export filter { if source = RTS_BGP then accept; reject; }; }; }", family, family)
		l.add("protocol static static_%s { %s;", family, family)
		for _, p := range c.Announce {
			l.addIf(p.Addr().Is4() == (family == "ipv4"), "  route %v unreachable;", p)
		}
		l.add("}")
	}
	l.add("protocol bfd bfd1 {")
	for _, n := range c.Neighbors {
		if t := n.BFD; t.Multiplier > 0 {
			timers := fmt.Sprintf("interval %d ms; multiplier %d; idle tx interval 1 s;", t.Interval.Milliseconds(), t.Multiplier)
			l.addIf(n.MultiHop == 0, "  interface \"*\" { %s };", timers)
			l.addIf(n.MultiHop > 0, "  multihop { %s };", timers)
		}
	}
	l.add("}")
	for _, n := range c.Neighbors {
		n.bird(&l, c.ASN)
	}
	l.add("%s", c.BIRD)
	return l.String()
}

func (n Neighbor) bird(l *lines, asn uint32) {
	l.add("protocol bgp %s {", n.Name)
	local := ""
	if n.Local.IsValid() {
		local = n.Local.String() + " "
	}
	l.add("  local %sas %d;", local, asn)
	if n.ASN == 0 {
		l.add("  neighbor %v external;", n.Address)
	} else {
		l.add("  neighbor %v as %d;", n.Address, n.ASN)
	}
	l.addIf(n.Password != "", "  password %q;", n.Password)
	l.addIf(n.TTLSecurity, "  ttl security on;")
	l.addIf(n.MultiHop > 0, "  multihop %d;", n.MultiHop)
	l.addIf(n.MultiHop == 0, "  direct;") // internal sessions are multihop by default
	l.addIf(!n.Active, "  passive on;")
	l.addIf(n.Hold > 0, "  hold time %d; keepalive time %d;", int(n.Hold.Seconds()), max(1, int(n.Hold.Seconds())/3))
	l.addIf(n.BFD.Multiplier > 0 && !n.BFDGraceful, "  bfd on;")
	l.addIf(n.BFD.Multiplier > 0 && n.BFDGraceful, "  bfd graceful;")
	l.add("  error wait time 1, 2; connect retry time 1; connect delay time 1;")
	four, six := n.families()
	const channel = "{ import all; export where source = RTS_STATIC; next hop self; };"
	l.addIf(four, "  ipv4 %s", channel)
	l.addIf(six, "  ipv6 %s", channel)
	l.add("}")
}

// frr returns FRR's integrated configuration file.
func (c Config) frr() string {
	var l lines
	l.add("frr defaults datacenter\nlog stdout informational\nip nht resolve-via-default\nipv6 nht resolve-via-default")
	// Neighbors are held back until route maps take effect: for 5 s by default (bgp_config_end in bgpd/bgp_vty.c).
	l.add("bgp route-map delay-timer 1")
	for _, p := range c.Announce {
		l.addIf(p.Addr().Is4(), "ip route %v blackhole", p)
		l.addIf(p.Addr().Is6(), "ipv6 route %v blackhole", p)
	}
	l.add("router bgp %d", c.ASN)
	l.add(" bgp router-id %v\n no bgp ebgp-requires-policy\n no bgp default ipv4-unicast\n no bgp network import-check\n no bgp suppress-duplicates", c.ID)
	l.add(" bgp bestpath as-path multipath-relax\n timers bgp 30 90")
	for _, n := range c.Neighbors {
		n.frr(&l)
	}
	for family, ipv4 := range map[string]bool{"ipv4": true, "ipv6": false} {
		l.add(" address-family %s unicast\n  maximum-paths 64\n  maximum-paths ibgp 64", family)
		for _, p := range c.Announce {
			l.addIf(p.Addr().Is4() == ipv4, "  network %v", p)
		}
		for _, n := range c.Neighbors {
			if four, six := n.families(); ipv4 && four || !ipv4 && six {
				l.add("  neighbor %v activate", n.Address.WithZone(""))
				l.add("  neighbor %v route-map LEARN in", n.Address.WithZone(""))
			}
		}
		l.add(" exit-address-family")
	}
	l.add("exit")
	// Without it, FRR prefers the link-local next hop to the global one.
	l.add("route-map LEARN permit 10\n set ipv6 next-hop prefer-global\nexit")
	l.add("%s", c.FRR)
	return l.String()
}

func (n Neighbor) frr(l *lines) {
	addr := n.Address.WithZone("")
	if n.ASN == 0 {
		l.add(" neighbor %v remote-as external", addr)
	} else {
		l.add(" neighbor %v remote-as %d", addr, n.ASN)
	}
	l.addIf(n.Address.Zone() != "", " neighbor %v interface %s", addr, n.Address.Zone())
	l.add(" neighbor %v description %s", addr, n.Name)
	l.addIf(n.Local.IsValid(), " neighbor %v update-source %v", addr, n.Local)
	l.addIf(n.Password != "", " neighbor %v password %s", addr, n.Password)
	l.addIf(n.TTLSecurity, " neighbor %v ttl-security hops 1", addr)
	l.addIf(n.MultiHop > 0, " neighbor %v ebgp-multihop %d", addr, n.MultiHop)
	l.addIf(!n.Active, " neighbor %v passive", addr)
	l.addIf(n.Hold > 0, " neighbor %v timers %d %d", addr, max(1, int(n.Hold.Seconds())/3), int(n.Hold.Seconds()))
	l.add(" neighbor %v timers connect 1", addr)
	if t := n.BFD; t.Multiplier > 0 {
		ms := t.Interval.Milliseconds()
		l.add(" neighbor %v bfd %d %d %d", addr, t.Multiplier, ms, ms)
	}
}
