package l2

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/net/bpf"
)

// pass runs the part of the filter after the packet's metadata, which the virtual machine does not support, on a frame.
func pass(t *testing.T, c codec, addrs []netip.Addr, frame []byte) bool {
	t.Helper()
	if _, err := filter(c, addrs, exactLimit); err != nil {
		t.Fatal(err)
	}
	return run(t, wanted(c, addrs, exactLimit), frame)
}

func run(t *testing.T, prog []bpf.Instruction, frame []byte) bool {
	t.Helper()
	vm, err := bpf.NewVM(prog)
	if err != nil {
		t.Fatal(err)
	}
	n, err := vm.Run(frame)
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

func addrsFrom(first string, n int) []netip.Addr {
	a := netip.MustParseAddr(first)
	var out []netip.Addr
	for range n {
		out = append(out, a)
		a = a.Next()
	}
	return out
}

func TestFilterMatchesTheAddresses(t *testing.T) {
	arpRequest := func(a netip.Addr) []byte { return request(func(f *arpFrame) { f.targetIP = a }).bytes() }
	use := func(a netip.Addr) []byte {
		return request(func(f *arpFrame) { f.op, f.senderIP, f.targetIP = opReply, a, host }).bytes()
	}
	question6 := func(a netip.Addr) []byte { return solicit(func(n *neighbor) { n.target = a }).bytes() }
	use6 := func(a netip.Addr) []byte {
		return solicit(func(n *neighbor) { n.kind, n.target = typeAdvertisement, a }).bytes()
	}
	source6 := func(a netip.Addr) []byte { return solicit(func(n *neighbor) { n.from = a }).bytes() }
	for name, tt := range map[string]struct {
		codec codec
		first string
		frame func(netip.Addr) []byte
	}{
		"ARP request": {arpCodec{}, "203.0.113.10", arpRequest}, "ARP use": {arpCodec{}, "203.0.113.10", use},
		"solicitation": {ndpCodec{}, "2001:db8:1::a", question6}, "advertisement": {ndpCodec{}, "2001:db8:1::a", use6},
		"solicitation from": {ndpCodec{}, "2001:db8:1::a", source6},
	} {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{0, 1, 2, exactLimit} {
				addrs := addrsFrom(tt.first, n)
				if _, err := filter(tt.codec, addrs, exactLimit); err != nil {
					t.Fatal(err)
				}
				prog := wanted(tt.codec, addrs, exactLimit)
				base := netip.MustParseAddr(tt.first).AsSlice()
				for last := range 256 {
					base[len(base)-1] = byte(last)
					a, _ := netip.AddrFromSlice(base)
					if got, want := run(t, prog, tt.frame(a)), last >= 10 && last < 10+n; got != want {
						t.Errorf("%d addresses: %v passed: %v, want %v", n, a, got, want)
					}
				}
			}
		})
	}
}

func TestFilterMatchesTheKindOfFrame(t *testing.T) {
	for name, change := range map[string]func([]byte){
		"other EtherType": func(b []byte) { b[12] = 9 },
		"reverse ARP":     func(b []byte) { b[21] = 3 },
	} {
		b := request(nil).bytes()
		change(b)
		if pass(t, arpCodec{}, []netip.Addr{vip}, b) {
			t.Errorf("%s passed", name)
		}
	}
	for name, change := range map[string]func([]byte){
		"other EtherType":      func(b []byte) { b[12] = 9 },
		"UDP":                  func(b []byte) { b[20] = 17 },
		"forwarded":            func(b []byte) { b[21] = 254 },
		"router advertisement": func(b []byte) { b[54] = 134 },
	} {
		b := solicit(nil).bytes()
		change(b)
		if pass(t, ndpCodec{}, []netip.Addr{vip6}, b) {
			t.Errorf("%s passed", name)
		}
	}
	if !pass(t, arpCodec{}, []netip.Addr{vip}, request(nil).bytes()) || !pass(t, ndpCodec{}, []netip.Addr{vip6}, solicit(nil).bytes()) {
		t.Error("nothing passes: this test proves nothing")
	}
}

// Thousands of addresses in several pools: each one passes, nothing outside the pools does, and the kernel accepts the
// program.
func TestFilterOfThousands(t *testing.T) {
	const limit = 4096 // BPF_MAXINSNS
	for c, pools := range map[codec][]string{
		arpCodec{}: {"192.0.2.16", "198.51.100.0", "203.0.113.64"}, ndpCodec{}: {"2001:db8:1::", "2001:db8:2:3::1:0", "2001:db8:ffff::8000"},
	} {
		var addrs []netip.Addr
		for _, first := range pools {
			addrs = append(addrs, addrsFrom(first, 100)...)
		}
		raw, err := filter(c, addrs, exactLimit)
		if err != nil || len(raw) > limit {
			t.Fatalf("%d instructions, %v", len(raw), err)
		}
		prog := wanted(c, addrs, exactLimit)
		arpRequest := func(a netip.Addr) bool {
			if a.Is4() {
				return run(t, prog, request(func(f *arpFrame) { f.targetIP = a }).bytes())
			}
			return run(t, prog, solicit(func(n *neighbor) { n.target = a }).bytes())
		}
		for _, a := range addrs {
			if !arpRequest(a) {
				t.Fatalf("%v does not pass", a)
			}
		}
		for _, a := range []string{"192.0.2.15", "192.0.3.1", "198.51.99.255", "203.0.113.63", "2001:db8:1::100", "2001:db8:2::", "2001:db8:ffff::7fff"} {
			if a := netip.MustParseAddr(a); (a.Is4() == addrs[0].Is4()) && arpRequest(a) {
				t.Errorf("%v passes", a)
			}
		}
	}
}

func TestCoverHoldsAllAddresses(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var addrs []netip.Addr
		six := random.IntN(2) == 0
		for range 1 + random.IntN(300) {
			b := netip.MustParseAddr("2001:db8::").As16()
			for i := 4; i < 16; i++ {
				b[i] = byte(random.IntN(1 << random.IntN(9)))
			}
			if six {
				addrs = append(addrs, netip.AddrFrom16(b))
			} else {
				addrs = append(addrs, netip.AddrFrom4([4]byte(b[12:])))
			}
		}
		limit := 1 + random.IntN(exactLimit)
		got := cover(addrs, limit)
		if len(got) > limit {
			t.Fatalf("%d prefixes, want at most %d", len(got), limit)
		}
		for _, a := range addrs {
			if !slices.ContainsFunc(got, func(p netip.Prefix) bool { return p.Contains(a) }) {
				t.Fatalf("%v is not in %v", a, got)
			}
		}
		slices.SortFunc(addrs, netip.Addr.Compare)
		if distinct := slices.Compact(addrs); len(distinct) <= limit && len(got) != len(distinct) {
			t.Fatalf("%d prefixes for %d addresses, although %d may be", len(got), len(distinct), limit)
		}
	}
}

func TestCover(t *testing.T) {
	addrs := append(addrsFrom("203.0.113.0", 65), addrsFrom("198.51.100.4", 2)...)
	for limit, want := range map[int][]string{
		1: {"192.0.0.0/4"},
		2: {"198.51.100.4/31", "203.0.113.0/25"},
		3: {"198.51.100.4/31", "203.0.113.0/26", "203.0.113.64/32"},
	} {
		var got []string
		for _, p := range cover(addrs, limit) {
			got = append(got, p.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("at most %d: %v, want %v", limit, got, want)
		}
	}
}
