package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// message is an entry as the kernel writes it: UDP from client to dst, answered by src.
func message(id uint32, dst, src netip.AddrPort) []byte {
	tuple := func(kind int, from, to netip.AddrPort) *nl.RtAttr {
		kinds := [2]int{nl.CTA_IP_V4_SRC, nl.CTA_IP_V4_DST}
		if from.Addr().Is6() {
			kinds = [2]int{nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST}
		}
		t := nl.NewRtAttr(unix.NLA_F_NESTED|kind, nil)
		ip := t.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
		ip.AddRtAttr(kinds[0], from.Addr().AsSlice())
		ip.AddRtAttr(kinds[1], to.Addr().AsSlice())
		proto := t.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
		proto.AddRtAttr(nl.CTA_PROTO_NUM, []byte{unix.IPPROTO_UDP})
		proto.AddRtAttr(nl.CTA_PROTO_SRC_PORT, binary.BigEndian.AppendUint16(nil, from.Port()))
		proto.AddRtAttr(nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, to.Port()))
		return t
	}
	client := netip.MustParseAddrPort("192.0.2.9:4000")
	if dst.Addr().Is6() {
		client = netip.MustParseAddrPort("[2001:db8::9]:4000")
	}
	b := []byte{unix.AF_INET, 0, 0, 0}
	b = append(b, tuple(nl.CTA_TUPLE_ORIG, client, dst).Serialize()...)
	b = append(b, tuple(nl.CTA_TUPLE_REPLY, src, client).Serialize()...)
	b = append(b, nl.NewRtAttr(nl.CTA_STATUS, []byte{0, 0, 0, 1}).Serialize()...)
	return append(b, nl.NewRtAttr(ctaID, binary.BigEndian.AppendUint32(nil, id)).Serialize()...)
}

var (
	vip  = netip.MustParseAddrPort("203.0.113.4:53")
	dns  = ipvs.Key{Addr: vip.Addr(), Protocol: ipvs.UDP, Port: 53}
	pod1 = netip.MustParseAddrPort("198.51.100.1:53")
	pod2 = netip.MustParseAddrPort("198.51.100.2:53")
)

// A listing that was interrupted is begun anew, however it is said; what it found counts only if that never helps.
func TestInterrupted(t *testing.T) {
	serving := map[ipvs.Key][]netip.AddrPort{dns: {pod2}}
	for _, interruption := range []error{nl.ErrDumpInterrupted, unix.EINTR, fmt.Errorf("receive: %w", unix.EINTR)} {
		calls := 0
		stale, err := list(func(found func([]byte)) error {
			calls++
			found(message(1, vip, pod1))
			if calls < 3 {
				return interruption
			}
			found(message(2, vip, pod2))
			found(message(3, vip, pod1))
			return nil
		}, serving)
		if err != nil || calls != 3 || len(stale) != 2 || string(stale[0].identity) == string(stale[1].identity) {
			t.Errorf("%v: %d calls, %d stale, %v; want 3, entries 1 and 3 once each", interruption, calls, len(stale), err)
		}
	}
	calls := 0
	stale, err := list(func(found func([]byte)) error {
		calls++
		found(message(1, vip, pod1))
		return nl.ErrDumpInterrupted
	}, serving)
	if !errors.Is(err, unix.EINTR) || calls != attempts || len(stale) != 1 {
		t.Errorf("interrupted for ever: %d calls, %d stale, %v", calls, len(stale), err)
	}
	calls = 0
	if _, err := list(func(func([]byte)) error { calls++; return unix.EPERM }, serving); !errors.Is(err, unix.EPERM) || calls != 1 {
		t.Errorf("no permission: %d calls, %v", calls, err)
	}
}

func TestParse(t *testing.T) {
	for _, to := range []string{"203.0.113.4:53", "[2001:db8::4]:53"} {
		dst := netip.MustParseAddrPort(to)
		src := netip.AddrPortFrom(dst.Addr().Next(), 5353)
		e, ok := parse(message(7, dst, src))
		if want := (ipvs.Key{Addr: dst.Addr(), Protocol: ipvs.UDP, Port: 53}); !ok || e.to != want || e.from != src {
			t.Errorf("%v: %+v, %v; want %v answered by %v", to, e, ok, want, src)
		}
	}
	for _, b := range [][]byte{nil, {2, 0, 0, 0}, message(1, vip, pod1)[:60]} {
		if e, ok := parse(b); ok {
			t.Errorf("%x: %+v", b, e)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(message(1, vip, pod1))
	f.Add(message(1, netip.MustParseAddrPort("[2001:db8::4]:53"), netip.MustParseAddrPort("[2001:db8::5]:53")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, ok := parse(b); ok && (!e.to.Addr.IsValid() || !e.from.IsValid() || len(e.identity) > len(b)) {
			t.Errorf("%+v", e)
		}
	})
}

func TestFilters(t *testing.T) {
	serving := map[ipvs.Key][]netip.AddrPort{}
	for port := range uint16(each) {
		serving[ipvs.Key{Addr: dns.Addr, Protocol: ipvs.UDP, Port: port + 1}] = nil
	}
	six := ipvs.Key{Addr: netip.MustParseAddr("2001:db8::4"), Protocol: ipvs.UDP, Port: 53}
	serving[six] = nil
	if got := filters(serving); len(got) != each+1 || got[each] != (filter{unix.AF_INET6, six}) {
		t.Errorf("few: %v", got)
	}
	serving[dns] = nil
	if got := filters(serving); fmt.Sprint(got) != "[UDP UDP [2001:db8::4]:53]" || got[0].family != unix.AF_INET {
		t.Errorf("many: %v", got)
	}
}
