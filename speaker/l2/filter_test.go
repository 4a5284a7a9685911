package l2

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/net/bpf"
)

// pass runs the part of the filter after the packet's metadata, which the virtual machine does not know, on a frame.
func pass(t *testing.T, addrs []netip.Addr, f frame) bool {
	t.Helper()
	prog := append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 38, Size: 4},
	}, match(addrs)...)
	vm, err := bpf.NewVM(prog)
	if err != nil {
		t.Fatal(err)
	}
	n, err := vm.Run(f.bytes())
	if err != nil {
		t.Fatal(err)
	}
	return n == frameLen
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
	for _, n := range []int{0, 1, 2, exactLimit} {
		addrs := addrsFrom("203.0.113.10", n)
		if _, err := filter(addrs); err != nil {
			t.Fatal(err)
		}
		for last := range 256 {
			target := netip.AddrFrom4([4]byte{203, 0, 113, byte(last)})
			want := last >= 10 && last < 10+n
			if got := pass(t, addrs, request(func(f *frame) { f.targetIP = target })); got != want {
				t.Errorf("%d addresses: request for %v passed: %v, want %v", n, target, got, want)
			}
		}
	}
}

func TestFilterFallsBackToTheCommonPrefix(t *testing.T) {
	addrs := addrsFrom("203.0.113.0", exactLimit+1) // .0 to .64: the common prefix is 203.0.113.0/25
	if _, err := filter(addrs); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]bool{
		"203.0.113.0": true, "203.0.113.64": true, "203.0.113.127": true, "203.0.113.128": false, "198.51.100.1": false,
	} {
		if got := pass(t, addrs, request(func(f *frame) { f.targetIP = netip.MustParseAddr(target) })); got != want {
			t.Errorf("request for %s passed: %v, want %v", target, got, want)
		}
	}
}

func TestCommon(t *testing.T) {
	network, mask := common([]netip.Addr{netip.MustParseAddr("0.0.0.1"), netip.MustParseAddr("255.0.0.0")})
	if network != 0 || mask != 0 {
		t.Errorf("nothing in common: %08x/%08x", network, mask)
	}
	network, mask = common([]netip.Addr{vip, vip})
	if want := binary.BigEndian.Uint32([]byte{203, 0, 113, 4}); network != want || mask != ^uint32(0) {
		t.Errorf("all in common: %08x/%08x", network, mask)
	}
}
