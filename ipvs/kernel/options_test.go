package kernel

import (
	"maps"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// Both ways of listing real servers agree: for few, for as many as fit into the first buffer, and for more.
func TestOptionsAgreeWithNetlink(t *testing.T) {
	k := openTest(t)
	key := ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.UDP, Port: 53}
	for _, n := range []int{0, 1, 31, 32, 33, 200} {
		vs := ipvs.VirtualServer{Settings: ipvs.Settings{Scheduler: "rr"}, RealServers: map[netip.AddrPort]ipvs.RealServer{}}
		for i := range n {
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + i)}), uint16(5000+i))
			vs.RealServers[at] = ipvs.RealServer{Weight: uint32(i * 300), Forward: []ipvs.Forward{ipvs.Masquerade, ipvs.Tunnel}[i%2]}
		}
		have, err := k.List()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Apply(ipvs.Diff(have, ipvs.Table{key: vs})); err != nil {
			t.Fatal(err)
		}
		for _, expected := range []int{0, n, usualReals} {
			byOption, err := k.conn.destsOption(key, expected)
			if err != nil {
				t.Fatalf("%d: by option: %v", n, err)
			}
			if !maps.Equal(byOption, vs.RealServers) {
				t.Errorf("%d, %d expected: by option %v, want %v", n, expected, byOption, vs.RealServers)
			}
		}
		byNetlink, err := k.conn.dests(key)
		if err != nil || !maps.Equal(byNetlink, vs.RealServers) {
			t.Errorf("%d: by netlink %v, %v, want %v", n, byNetlink, err, vs.RealServers)
		}
	}
}

// Both ways of reading the settings of a virtual server agree.
func TestSettingsOptionAgreesWithNetlink(t *testing.T) {
	k := openTest(t)
	key := ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.UDP, Port: 53}
	for _, want := range []ipvs.Settings{
		{Scheduler: "rr"}, {Scheduler: "mh", Flags: 0x18}, {Scheduler: "wlc", Flags: ipvs.Persistent, Timeout: 10800},
	} {
		if _, err := k.Apply([]ipvs.Op{{Action: ipvs.AddVirtual, Virtual: key, Settings: want}}); err != nil {
			t.Fatal(err)
		}
		byOption, err := k.conn.settingsOption(key)
		byNetlink, netlinkErr := k.conn.service(key)
		if err != nil || netlinkErr != nil || byOption != want || byNetlink != want {
			t.Errorf("by option %v, %v, by netlink %v, %v, want %v", byOption, err, byNetlink, netlinkErr, want)
		}
	}
	key.Port++
	_, err := k.conn.settingsOption(key)
	_, netlinkErr := k.conn.service(key)
	if err != unix.ESRCH || netlinkErr != unix.ESRCH {
		t.Errorf("of one that is not there: by option %v, by netlink %v, want %v", err, netlinkErr, unix.ESRCH)
	}
}

func openTest(t *testing.T) *Kernel {
	t.Helper()
	k, err := OpenAt(netspace.New(t).NS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}
