package conntrack

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// Many entries are deleted with few messages. Entries that expired meanwhile, or cannot be deleted, do not block
// others.
func TestRemove(t *testing.T) {
	const n = 3*removeMost + 5
	node := netspace.New(t)
	key := ipvs.Key{Addr: vip.Addr(), Protocol: ipvs.TCP, Port: vip.Port()}
	node.Must(t, func() error {
		if err := establish(n, func(i int) []byte {
			return established(netip.AddrPortFrom(netip.MustParseAddr("192.0.2.9"), uint16(20_000+i)), vip, pod1)
		}); err != nil {
			return err
		}
		listed := func(want int) []entry {
			t.Helper()
			f := filter{family: unix.AF_INET, key: key}
			all, err := list(func(found func([]byte)) error { return dump(f, found) }, ipvs.Table{key: {}})
			if err != nil || len(all) != want {
				t.Errorf("%d entries, %v; want %d", len(all), err, want)
			}
			return all
		}
		all := listed(n)
		if deleted, err := remove(all[:70]); deleted != 70 || err != nil {
			t.Errorf("deleted %d, %v; want 70", deleted, err)
		}
		listed(n - 70)
		half := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil) // without a protocol; without a tuple all entries would be deleted
		half.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil).AddRtAttr(nl.CTA_IP_V4_DST, vip.Addr().AsSlice())
		all[80].identity = half.Serialize()
		deleted, err := remove(all)
		if deleted != n-71 || !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), key.String()) {
			t.Errorf("deleted %d, %v; want %d, and an error of %v", deleted, err, n-71, key)
		}
		if err != nil && strings.Contains(err.Error(), "\n") { // an expired entry is not an error
			t.Errorf("more than one error: %v", err)
		}
		listed(1)
		return nil
	})
}
