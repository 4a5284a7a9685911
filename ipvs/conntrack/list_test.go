package conntrack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// message is an entry in the kernel's format: UDP from client to dst, answered by src.
func message(id uint32, dst, src netip.AddrPort) []byte { return withStatus(0, id, dst, src) }

// withStatus is message with a status (include/uapi/linux/netfilter/nf_conntrack_common.h).
func withStatus(status, id uint32, dst, src netip.AddrPort) []byte {
	client := netip.MustParseAddrPort("192.0.2.9:4000")
	if dst.Addr().Is6() {
		client = netip.MustParseAddrPort("[2001:db8::9]:4000")
	}
	b := []byte{unix.AF_INET, 0, 0, 0}
	b = append(b, tupleOf(ipvs.UDP, nl.CTA_TUPLE_ORIG, client, dst).Serialize()...)
	b = append(b, tupleOf(ipvs.UDP, nl.CTA_TUPLE_REPLY, src, client).Serialize()...)
	b = append(b, nl.NewRtAttr(nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, status)).Serialize()...)
	return append(b, nl.NewRtAttr(ctaID, binary.BigEndian.AppendUint32(nil, id)).Serialize()...)
}

// tupleOf is one direction of an entry in the kernel's format.
func tupleOf(protocol ipvs.Protocol, kind int, from, to netip.AddrPort) *nl.RtAttr {
	kinds := [2]int{nl.CTA_IP_V4_SRC, nl.CTA_IP_V4_DST}
	if from.Addr().Is6() {
		kinds = [2]int{nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST}
	}
	t := nl.NewRtAttr(unix.NLA_F_NESTED|kind, nil)
	ip := t.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
	ip.AddRtAttr(kinds[0], from.Addr().AsSlice())
	ip.AddRtAttr(kinds[1], to.Addr().AsSlice())
	proto := t.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	proto.AddRtAttr(nl.CTA_PROTO_NUM, []byte{byte(protocol)})
	proto.AddRtAttr(nl.CTA_PROTO_SRC_PORT, binary.BigEndian.AppendUint16(nil, from.Port()))
	proto.AddRtAttr(nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, to.Port()))
	return t
}

var (
	vip  = netip.MustParseAddrPort("203.0.113.4:53")
	dns  = ipvs.Key{Addr: vip.Addr(), Protocol: ipvs.UDP, Port: 53}
	pod1 = netip.MustParseAddrPort("198.51.100.1:53")
	pod2 = netip.MustParseAddrPort("198.51.100.2:53")
)

// An interrupted listing is restarted, for every form of the error. Its result counts only if every attempt is
// interrupted.
func TestInterrupted(t *testing.T) {
	table := ipvs.Table{dns: {RealServers: map[netip.AddrPort]ipvs.RealServer{pod2: {Weight: 1}}}}
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
		}, table)
		if err != nil || calls != 3 || len(stale) != 2 || string(stale[0].identity) == string(stale[1].identity) {
			t.Errorf("%v: %d calls, %d stale, %v; want 3, entries 1 and 3 once each", interruption, calls, len(stale), err)
		}
	}
	calls := 0
	stale, err := list(func(found func([]byte)) error {
		calls++
		found(message(1, vip, pod1))
		return nl.ErrDumpInterrupted
	}, table)
	if !errors.Is(err, unix.EINTR) || calls != attempts || len(stale) != 1 {
		t.Errorf("interrupted for ever: %d calls, %d stale, %v", calls, len(stale), err)
	}
	calls = 0
	_, err = list(func(func([]byte)) error { calls++; return unix.EPERM }, table)
	if !errors.Is(err, unix.EPERM) || calls != 1 {
		t.Errorf("no permission: %d calls, %v", calls, err)
	}
}

// The status contains whether there was an answer. An entry without a status counts as answered.
func TestAnswered(t *testing.T) {
	const confirmed, assured, seenReply = 1 << 3, 1 << 2, 1 << 1
	for status, want := range map[uint32]bool{confirmed: false, confirmed | assured: false, confirmed | seenReply: true} {
		if e, ok := parse(withStatus(status, 7, vip, pod1)); !ok || e.answered != want {
			t.Errorf("status %#x: answered %v, %v; want %v", status, e.answered, ok, want)
		}
	}
	full := message(7, vip, pod1)
	attribute := nl.NewRtAttr(nl.CTA_STATUS, make([]byte, 4)).Serialize()
	if e, ok := parse(bytes.Replace(full, attribute, nil, 1)); !ok || !e.answered {
		t.Errorf("without a status: answered %v, %v; want it", e.answered, ok)
	}
}

// Entries to delete, by protocol and by the answering address: see Clean.
func TestStale(t *testing.T) {
	reals := map[netip.AddrPort]ipvs.RealServer{pod1: {Weight: 1}, pod2: {}}
	gone := netip.MustParseAddrPort("198.51.100.3:53")
	for _, c := range []struct {
		from      netip.AddrPort
		answered  bool
		tcp, sctp bool
		udp       bool
	}{
		{pod1, true, false, false, false},
		{pod1, false, false, false, false},
		{pod2, true, false, false, true},
		{pod2, false, true, true, true},
		{gone, true, true, false, true},
		{gone, false, true, true, true},
		{vip, true, true, true, true},
		{vip, false, true, true, true},
	} {
		for protocol, want := range map[ipvs.Protocol]bool{ipvs.TCP: c.tcp, ipvs.SCTP: c.sctp, ipvs.UDP: c.udp} {
			e := entry{to: ipvs.Key{Addr: vip.Addr(), Protocol: protocol, Port: vip.Port()}, from: c.from, answered: c.answered}
			if got := e.stale(reals); got != want {
				t.Errorf("%v from %v, answered %v: stale %v, want %v", protocol, c.from, c.answered, got, want)
			}
		}
	}
	// A real server equal to the virtual server, as of a hostPort that is the NodePort, does not count as untranslated.
	itself := entry{to: ipvs.Key{Addr: vip.Addr(), Protocol: ipvs.TCP, Port: vip.Port()}, from: vip, answered: true}
	if itself.stale(map[netip.AddrPort]ipvs.RealServer{vip: {}}) {
		t.Error("a connection to a real server that drains is stale")
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
		if e, ok := parse(b); ok && (!e.to.Addr.IsValid() || !e.from.IsValid() || len(e.identity) > len(b) || !hasTuple(e)) {
			t.Errorf("%+v", e)
		}
	})
}

// hasTuple reports whether the identity of the entry includes its tuple, so that no other entry is deleted.
func hasTuple(e entry) bool {
	for kind, a := range attributes(e.identity) {
		if kind == nl.CTA_TUPLE_ORIG && parseTuple(a.value).dst == e.to.Addr {
			return true
		}
	}
	return false
}

func TestFilters(t *testing.T) {
	table := ipvs.Table{}
	for port := range uint16(each - 1) {
		table[ipvs.Key{Addr: dns.Addr, Protocol: ipvs.UDP, Port: 1000 + port}] = ipvs.VirtualServer{}
	}
	six := ipvs.Key{Addr: netip.MustParseAddr("2001:db8::4"), Protocol: ipvs.UDP, Port: 53}
	table[six] = ipvs.VirtualServer{}
	if got := filters(table); len(got) != each || !slices.Contains(got, filter{unix.AF_INET6, six}) {
		t.Errorf("few: %v", got)
	}
	table[dns] = ipvs.VirtualServer{}
	if got := filters(table); !slices.Equal(got, []filter{{}}) {
		t.Errorf("many of both families: %v", got)
	}
	delete(table, six)
	table[ipvs.Key{Addr: dns.Addr, Protocol: ipvs.UDP, Port: 1}] = ipvs.VirtualServer{}
	if got := filters(table); !slices.Equal(got, []filter{{unix.AF_INET, ipvs.Key{Protocol: ipvs.UDP}}}) {
		t.Errorf("many of one protocol: %v", got)
	}
	table[ipvs.Key{Addr: dns.Addr, Protocol: ipvs.TCP, Port: 53}] = ipvs.VirtualServer{}
	if got := filters(table); !slices.Equal(got, []filter{{}}) {
		t.Errorf("many of two protocols: %v", got)
	}
}
