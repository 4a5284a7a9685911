package plan

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// bgpCommand changes BGP objects, and reports whether the command was one of them.
func (f *fixture) bgpCommand(words []string) bool {
	switch {
	case words[0] == "peer":
		f.view.BGPPeers[words[1]] = parsePeer(words[2], words[3:])
	case words[0] == "route":
		f.view.BGPAdvertisements[words[1]] = parseRoute(words[2:])
	case words[0] == "delete" && words[1] == "peer":
		delete(f.view.BGPPeers, words[2])
	case words[0] == "delete" && words[1] == "route":
		delete(f.view.BGPAdvertisements, words[2])
	default:
		return false
	}
	return true
}

// parsePeer parses a BGPPeer: as=MINE/THEIRS, external or internal for a dynamic one, dual, nodes=LABEL=VALUE, id=IP,
// source=IP, created=N, wrong=REASON, password=TEXT, gr=DURATION, hold=DURATION, port=N, bfd=DURATIONxN.
func parsePeer(address string, words []string) view.BGPPeer {
	p := view.BGPPeer{Address: netip.MustParseAddr(address), Port: 179, MyASN: 65000, PeerASN: 65001}
	for _, w := range words {
		switch key, value, _ := strings.Cut(w, "="); key {
		case "as":
			mine, theirs, _ := strings.Cut(value, "/")
			p.MyASN, p.PeerASN = uint32(atoi(mine)), uint32(atoi(theirs))
		case "external":
			p.PeerASN, p.Dynamic = 0, view.AnyExternal
		case "internal":
			p.PeerASN, p.Dynamic = 0, view.AnyInternal
		case "dual":
			p.DualStack = true
		case "nodes":
			label, v, _ := strings.Cut(value, "=")
			p.Nodes = append(p.Nodes, pools.Selector{{Key: label, Operator: pools.In, Values: []string{v}}})
		case "id":
			p.RouterID = netip.MustParseAddr(value)
		case "source":
			p.Source = netip.MustParseAddr(value)
		case "created":
			p.Created = int64(atoi(value))
		case "wrong":
			p.Wrong, p.Message = view.Reason(value), "as the View reports"
		case "password":
			p.Password = view.Secret(value)
		case "gr":
			p.GracefulRestart, p.RestartTime = true, duration(value)
		case "hold":
			p.HoldTime = duration(value)
		case "port":
			p.Port = uint16(atoi(value))
		case "bfd":
			interval, n, _ := strings.Cut(value, "x")
			p.BFD = view.BFD{Receive: duration(interval), Transmit: duration(interval), Multiplier: uint8(atoi(n))}
		default:
			panic(key)
		}
	}
	return p
}

// parseRoute parses a BGPAdvertisement: the fields of an L2Advertisement, and peers=A,B, length=N, length6=N, pref=N,
// communities=A:B,A:B:C, missing=NAME.
func parseRoute(words []string) view.BGPAdvertisement {
	a := view.BGPAdvertisement{Length4: 32, Length6: 128}
	var others []string
	for _, w := range words {
		switch key, value, _ := strings.Cut(w, "="); key {
		case "peers":
			a.Peers = strings.Split(value, ",")
		case "length":
			a.Length4 = atoi(value)
		case "length6":
			a.Length6 = atoi(value)
		case "pref":
			a.Attributes.LocalPref = uint32(atoi(value))
		case "missing":
			a.Missing = []string{value}
		case "communities":
			var small []uint32
			var large []view.LargeCommunity
			for _, text := range strings.Split(value, ",") {
				var n []uint32
				for _, part := range strings.Split(text, ":") {
					v, err := strconv.ParseUint(part, 10, 32)
					if err != nil {
						panic(err)
					}
					n = append(n, uint32(v))
				}
				if len(n) == 2 {
					small = append(small, n[0]<<16|n[1])
				} else {
					large = append(large, view.LargeCommunity{Global: n[0], Local1: n[1], Local2: n[2]})
				}
			}
			a.Attributes.Communities, a.Attributes.LargeCommunities = view.NewCommunitySet(small...), view.NewLargeCommunitySet(large...)
		default:
			others = append(others, w)
		}
	}
	a.Advertisement = parseAdvertisement(others)
	return a
}

// bgp plans a node and returns the lines about its BGP that are new or gone since the last call.
func (f *fixture) bgp(node string) []string {
	lines := strings.Split(strings.TrimRight(bgpText(f.plan(node)), "\n"), "\n")
	if f.published == nil {
		f.published = map[string][]string{}
	}
	var out []string
	for _, l := range f.published[node] {
		if !slices.Contains(lines, l) && l != "" {
			out = append(out, "- "+l)
		}
	}
	for _, l := range lines {
		if !slices.Contains(f.published[node], l) && l != "" {
			out = append(out, "+ "+l)
		}
	}
	f.published[node] = lines
	if len(out) == 0 {
		out = []string{"the same"}
	}
	return out
}

// bgpText returns the BGP part of a plan as text.
func bgpText(d *Desired) string {
	var b strings.Builder
	if len(d.BGP.Peers) > 0 {
		fmt.Fprintf(&b, "router id %v\n", d.BGP.RouterID)
		if d.BGP.NodeDecommissioning {
			b.WriteString("node decommissioning\n")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.BGP.Peers)) {
		fmt.Fprintf(&b, "peer %s%s\n", name, peerText(d.BGP.Peers[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(d.PeerProblems)) {
		fmt.Fprintf(&b, "peer %s %s: %s\n", name, d.PeerProblems[name].Reason, d.PeerProblems[name].Message)
	}
	for _, prefix := range slices.SortedFunc(maps.Keys(d.BGP.Routes), netip.Prefix.Compare) {
		fmt.Fprintf(&b, "route %v", prefix)
		route := d.BGP.Routes[prefix]
		for _, peer := range slices.Sorted(maps.Keys(route)) {
			fmt.Fprintf(&b, " %s(%s)", peer, attributesText(route[peer]))
		}
		if under := d.Under[prefix]; len(under) > 0 {
			fmt.Fprintf(&b, " under%s", words(under))
		}
		b.WriteString("\n")
	}
	for _, addr := range slices.SortedFunc(maps.Keys(d.Routed), netip.Addr.Compare) {
		fmt.Fprintf(&b, "routed %v %s %v\n", addr, d.Routed[addr].Reason, d.Routed[addr].Prefixes)
	}
	for _, c := range slices.SortedFunc(maps.Keys(d.LocalPrefs), func(a, b routes.LocalPrefs) int {
		return cmp.Or(cmp.Compare(a.Lower, b.Lower), cmp.Compare(a.Higher, b.Higher))
	}) {
		fmt.Fprintf(&b, "localPref of %s and %s differs for %d\n", c.Lower, c.Higher, d.LocalPrefs[c])
	}
	return b.String()
}

// peerText returns every field of a session that is not zero.
func peerText(p routes.Peer) string {
	var b strings.Builder
	v := reflect.ValueOf(p)
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsZero() {
			fmt.Fprintf(&b, " %s=%v", v.Type().Field(i).Name, f.Interface())
		}
	}
	return b.String()
}

func attributesText(a view.Attributes) string {
	var out []string
	if a.LocalPref > 0 {
		out = append(out, fmt.Sprint(a.LocalPref))
	}
	for _, c := range a.Communities.Communities() {
		out = append(out, fmt.Sprintf("%d:%d", c>>16, c&0xffff))
	}
	for _, c := range a.LargeCommunities.LargeCommunities() {
		out = append(out, fmt.Sprintf("%d:%d:%d", c.Global, c.Local1, c.Local2))
	}
	return strings.Join(out, " ")
}

// bgp changes a BGP object, or the state of this node.
func (s step) bgp(v *view.View, r *rand.Rand) view.Touched {
	name := fmt.Sprint("r", s.b)
	switch s.kind {
	case 22, 23:
		p := view.BGPPeer{Address: one(r, netip.MustParseAddr("192.0.2.254"), netip.MustParseAddr("2001:db8::fe")), Port: 179, MyASN: 65000,
			PeerASN: one[uint32](r, 65000, 65001), DualStack: r.IntN(2) == 0, HoldTime: one(r, 0, 9*time.Second), Created: int64(r.IntN(3))}
		if r.IntN(4) == 0 {
			p.Nodes = []pools.Selector{{{Key: "zone", Operator: pools.In, Values: []string{fmt.Sprint(r.IntN(2))}}}}
		}
		if r.IntN(4) == 0 {
			p.RouterID = netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(2))})
		}
		if r.IntN(5) == 0 {
			p.Wrong, p.Message = routes.PasswordMissing, "gone"
		}
		incremental.Set(v.BGPPeers, name, p, r.IntN(6) > 0)
		return view.Touched{BGPPeers: map[string]struct{}{name: {}}}
	case 24, 25:
		a := view.BGPAdvertisement{Advertisement: randomAdvertisement(r), Length4: one(r, 32, 32, 24, 31), Length6: one(r, 128, 64)}
		a.Interfaces = nil
		if r.IntN(3) == 0 {
			a.Peers = []string{fmt.Sprint("r", r.IntN(3))}
		}
		if r.IntN(8) == 0 {
			a.Missing = []string{"nowhere"}
		}
		a.Attributes = view.Attributes{LocalPref: one[uint32](r, 0, 0, 100, 200), Communities: view.NewCommunitySet(uint32(r.IntN(3)))}
		if r.IntN(2) == 0 {
			a.Attributes.LargeCommunities = view.NewLargeCommunitySet(view.LargeCommunity{Global: 65000, Local1: uint32(r.IntN(2)), Local2: 1})
		}
		incremental.Set(v.BGPAdvertisements, fmt.Sprint("a", s.a), a, r.IntN(5) > 0)
		return view.Touched{BGPAdvertisements: true}
	}
	n := v.Nodes["n1"]
	n.BeingDeleted = !n.BeingDeleted
	incremental.Set(v.Nodes, "n1", n, r.IntN(4) > 0)
	return view.Touched{Nodes: map[string]struct{}{"n1": {}}}
}

// followBGP is follow for BGP.
func followBGP(copied, d *Desired, c *Changed) {
	take(copied.BGP.Peers, d.BGP.Peers, c.Peers)
	take(copied.PeerProblems, d.PeerProblems, c.Peers)
	take(copied.Routed, d.Routed, c.Addrs)
	prefixes := map[netip.Prefix]struct{}{}
	for prefix := range c.Routes {
		prefixes[prefix] = struct{}{}
	}
	take(copied.BGP.Routes, d.BGP.Routes, prefixes)
	if c.RouterID {
		copied.BGP.RouterID = d.BGP.RouterID
	}
	if c.NodeDecommissioning {
		copied.BGP.NodeDecommissioning = d.BGP.NodeDecommissioning
	}
	if c.LocalPrefs {
		copied.LocalPrefs = maps.Clone(d.LocalPrefs)
	}
	clear(copied.Under)
	for a, routed := range copied.Routed {
		for _, prefix := range routed.Prefixes {
			if !prefix.IsSingleIP() {
				incremental.Index[netip.Prefix, netip.Addr](copied.Under).Add(prefix, a)
			}
		}
	}
}

// Routes are consistent: every route has a peer of this node and leads to an announced address, and every announced
// address has its routes.
func TestRoutesAreSound(t *testing.T) {
	announced, conflicts, drained := 0, 0, 0
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 7))
		v, p := view.New(), NewPlanner(randomOptions(r, "n1"))
		p.Plan(v, view.Touched{All: true}, time.Unix(0, 0))
		for i, s := range randomSteps(r, 200) {
			d, _ := p.Plan(v, s.apply(v), time.Unix(int64(i), 0))
			leads := map[netip.Prefix]bool{}
			for a, routed := range d.Routed {
				reported := slices.Contains([]view.Reason{view.Announced, view.NoEndpoint, view.GracefulShutdown}, routed.Reason)
				if reported != (len(routed.Prefixes) > 0) {
					t.Fatalf("seed %d, step %d: %v is %+v", seed, i, a, routed)
				}
				if _, unable := v.Unable[a]; reported && unable && !v.Unable[a].OnlyAnswering() {
					t.Fatalf("seed %d, step %d: %v is announced and %v", seed, i, a, v.Unable[a])
				}
				for _, prefix := range routed.Prefixes {
					leads[prefix] = true
					if !prefix.Contains(a) || len(d.BGP.Routes[prefix]) == 0 {
						t.Fatalf("seed %d, step %d: %v has no route %v in\n%s", seed, i, a, prefix, text(d))
					}
					announced++
				}
				if routed.Reason == view.GracefulShutdown {
					drained++
				}
			}
			for prefix, route := range d.BGP.Routes {
				for peer := range route {
					if _, has := d.BGP.Peers[peer]; !has || !leads[prefix] {
						t.Fatalf("seed %d, step %d: route %v to %s in\n%s", seed, i, prefix, peer, text(d))
					}
				}
			}
			conflicts += len(d.LocalPrefs)
		}
	}
	if announced < 1000 || conflicts < 100 || drained < 100 {
		t.Errorf("only %d announced, %d conflicts, %d draining were seen: the test proves little", announced, conflicts, drained)
	}
}

// Advertisements that contradict each other for internal peers only are evaluated again when a peer becomes internal or
// external.
func TestLocalPrefsFollowTheAS(t *testing.T) {
	v, p := manyRouted(3), NewPlanner(Options{Node: "a", BGP: true})
	v.BGPAdvertisements["all"] = view.BGPAdvertisement{Peers: []string{"r2"}, Length4: 32, Length6: 128, Attributes: view.Attributes{LocalPref: 50}}
	p.Plan(v, view.Touched{All: true}, time.Time{})
	for _, tt := range []struct {
		asn     uint32
		dynamic view.DynamicASN
		want    int
	}{{65000, view.NotDynamic, 3}, {65001, view.NotDynamic, 0}, {0, view.AnyInternal, 3}, {0, view.AnyExternal, 0}} {
		peer := v.BGPPeers["r2"]
		peer.PeerASN, peer.Dynamic = tt.asn, tt.dynamic
		v.BGPPeers["r2"] = peer
		d, c := p.Plan(v, view.Touched{BGPPeers: map[string]struct{}{"r2": {}}}, time.Time{})
		if got := d.LocalPrefs[routes.LocalPrefs{Lower: "all", Higher: "each"}]; got != tt.want || len(d.LocalPrefs) > 1 || !c.LocalPrefs {
			t.Errorf("AS %d, %d: %v, changed %v; want %d prefixes", tt.asn, tt.dynamic, d.LocalPrefs, c.LocalPrefs, tt.want)
		}
	}
}
