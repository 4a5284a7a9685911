package conntrack

import (
	"encoding/binary"
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

// Only entries of the default zone are deleted: those of another zone are other connections, of another network with
// the same addresses.
func TestOtherZone(t *testing.T) {
	node := netspace.New(t)
	zone := func(kind int) *nl.RtAttr { return nl.NewRtAttr(kind, binary.BigEndian.AppendUint16(nil, 7)) }
	node.Must(t, func() error {
		if err := establish(4, func(i int) []byte {
			client := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.9"), uint16(20_000+i))
			var more []*nl.RtAttr
			orig := tupleOf(ipvs.TCP, nl.CTA_TUPLE_ORIG, client, vip)
			switch i {
			case 1:
				more = append(more, zone(ctaZone))
			case 2:
				orig.AddRtAttr(ctaTupleZone, zone(ctaTupleZone).Data)
			case 3: // as 0, but in the other zone
				client = netip.AddrPortFrom(client.Addr(), 20_000)
				orig, more = tupleOf(ipvs.TCP, nl.CTA_TUPLE_ORIG, client, vip), append(more, zone(ctaZone))
			}
			return establishedAs(orig, tupleOf(ipvs.TCP, nl.CTA_TUPLE_REPLY, pod1, client), more...)
		}); err != nil {
			return err
		}
		key := ipvs.Key{Addr: vip.Addr(), Protocol: ipvs.TCP, Port: vip.Port()}
		deleted, err := Clean(t.Context(), ipvs.Table{key: {}})
		left := 0
		if err := dump(filter{family: unix.AF_INET, key: key}, func([]byte) { left++ }); err != nil {
			return err
		}
		if deleted != 1 || left != 3 || err != nil {
			t.Errorf("deleted %d, %v, and %d are left; want 1 and 3", deleted, err, left)
		}
		return nil
	})
}
