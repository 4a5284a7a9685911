package l2

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

var (
	vip6  = netip.MustParseAddr("2001:db8::4")
	host6 = netip.MustParseAddr("2001:db8::c8")
)

// solicit is the host's solicitation for the VIP.
func solicit(change func(*neighbor)) neighbor {
	group := solicitedNode(vip6)
	n := neighbor{dst: groupMAC(group), src: asker, from: host6, to: group, kind: typeSolicitation, target: vip6, lladdr: asker}
	if change != nil {
		change(&n)
	}
	return n
}

func TestSolicitedNode(t *testing.T) {
	// The example of RFC 4291, 2.7.1, and RFC 2464, 7.
	group := solicitedNode(netip.MustParseAddr("2001:db8::1:800:200e:8c6c"))
	if group != netip.MustParseAddr("ff02::1:ff0e:8c6c") || groupMAC(group) != (mac{0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c}) {
		t.Errorf("%v, %x", group, groupMAC(group))
	}
	if groupMAC(allNodes) != (mac{0x33, 0x33, 0, 0, 0, 1}) {
		t.Errorf("all nodes: %x", groupMAC(allNodes))
	}
}

func TestNDPParse(t *testing.T) {
	groupOf, other := groupMAC(solicitedNode(vip6)), mac{2, 0, 0, 0, 0, 5}
	solicitation := message{dst: groupOf, group: groupOf, from: asker, sender: host6, target: vip6}
	with := func(change func(*message)) message { m := solicitation; change(&m); return m }
	tests := map[string]struct {
		change func(*neighbor)
		want   message
	}{
		"solicitation":                 {nil, solicitation},
		"without source option":        {func(n *neighbor) { n.lladdr = mac{} }, solicitation},
		"source option of another MAC": {func(n *neighbor) { n.lladdr = other }, with(func(m *message) { m.from = other })},
		"to one station":               {func(n *neighbor) { n.dst, n.to = self, vip6 }, with(func(m *message) { m.dst = self })},
		"group, in a unicast frame":    {func(n *neighbor) { n.dst = self }, with(func(m *message) { m.dst = self })},
		"duplicate address detection":  {func(n *neighbor) { n.from, n.lladdr = netip.IPv6Unspecified(), mac{} }, with(func(m *message) { m.sender = netip.IPv6Unspecified() })},
		"advertisement": {func(n *neighbor) { n.kind = typeAdvertisement; n.to = allNodes; n.dst = groupMAC(allNodes) },
			message{dst: groupMAC(allNodes), from: asker, sender: vip6, reply: true}},
		"advertisement, no option": {func(n *neighbor) { n.kind = typeAdvertisement; n.lladdr = mac{} },
			message{dst: groupOf, from: asker, sender: vip6, reply: true}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := (ndpCodec{}).parse(solicit(tt.change).bytes()); err != nil || got != tt.want {
				t.Errorf("%+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

// RFC 4861, 7.1.1 and 7.1.2, require discarding these packets.
func TestNDPRefuses(t *testing.T) {
	if _, err := (ndpCodec{}).parse(sealed(solicit(nil).bytes())); err != nil {
		t.Fatal("this test proves nothing:", err)
	}
	mapped := netip.MustParseAddr("::ffff:203.0.113.4")
	tests := map[string][]byte{
		"forwarded":                          func() []byte { b := solicit(nil).bytes(); b[21] = 64; return b }(),
		"other next header":                  func() []byte { b := solicit(nil).bytes(); b[20] = 17; return b }(),
		"IPv4":                               func() []byte { b := solicit(nil).bytes(); b[14] = 0x45; return b }(),
		"checksum":                           func() []byte { b := solicit(nil).bytes(); b[56]++; return b }(),
		"cut":                                solicit(nil).bytes()[:headerLen+ip6Len+neighborLen],
		"code":                               func() []byte { b := solicit(nil).bytes(); b[55] = 1; return sealed(b) }(),
		"other type":                         func() []byte { b := solicit(nil).bytes(); b[54] = 134; return sealed(b) }(),
		"router solicitation":                func() []byte { b := solicit(nil).bytes(); b[54] = 133; return sealed(b) }(),
		"redirect":                           func() []byte { b := solicit(nil).bytes(); b[54] = 137; return sealed(b) }(),
		"payload beyond the end":             func() []byte { b := solicit(nil).bytes(); b[19]++; return b }(),
		"payload of 8 bytes":                 func() []byte { b := solicit(nil).bytes(); b[19] = 8; return b }(),
		"tagged":                             func() []byte { b := solicit(nil).bytes(); return slices.Concat(b[:12], []byte{0x81, 0, 0, 7}, b[12:]) }(),
		"mapped target":                      solicit(func(n *neighbor) { n.target = mapped; n.to = solicitedNode(mapped) }).bytes(),
		"option length 0":                    func() []byte { b := solicit(nil).bytes(); b[79] = 0; return sealed(b) }(),
		"option too long":                    func() []byte { b := solicit(nil).bytes(); b[79] = 2; return sealed(b) }(),
		"group as target":                    solicit(func(n *neighbor) { n.target = allNodes }).bytes(),
		"group as source":                    solicit(func(n *neighbor) { n.from = allNodes }).bytes(),
		"other destination":                  solicit(func(n *neighbor) { n.to = allNodes }).bytes(),
		"detection with source option":       solicit(func(n *neighbor) { n.from = netip.IPv6Unspecified() }).bytes(),
		"detection to one station":           solicit(func(n *neighbor) { n.from, n.lladdr, n.to = netip.IPv6Unspecified(), mac{}, vip6 }).bytes(),
		"solicited advertisement to a group": solicit(func(n *neighbor) { n.kind, n.flags = typeAdvertisement, flagSolicited }).bytes(),
	}
	for name, b := range tests {
		if got, err := (ndpCodec{}).parse(b); err == nil {
			t.Errorf("%s: parsed as %+v", name, got)
		}
	}
}

func TestNDPFrames(t *testing.T) {
	router, plain := station{mac: self, router: true}, station{mac: self}
	solicitation := message{dst: self, from: asker, sender: host6, target: vip6}
	probe := message{dst: self, from: asker, sender: netip.IPv6Unspecified(), target: vip6}
	all := neighbor{dst: mac{0x33, 0x33, 0, 0, 0, 1}, src: self, from: vip6, to: allNodes, kind: typeAdvertisement,
		flags: flagOverride, target: vip6, lladdr: self}
	with := func(change func(*neighbor)) neighbor { n := all; change(&n); return n }
	answer := func(n *neighbor) { n.dst, n.to, n.flags = asker, host6, flagSolicited|flagOverride }
	tests := map[string]struct {
		frame []byte
		want  neighbor
	}{
		"announcement of a router": {must(ndpCodec{}.announcement(router, vip6, asRequest)),
			with(func(n *neighbor) { n.flags |= flagRouter })},
		"announcement":       {must(ndpCodec{}.announcement(plain, vip6, asRequest)), all},
		"answer":             {must(ndpCodec{}.answer(plain, solicitation)), with(answer)},
		"answer of a router": {must(ndpCodec{}.answer(router, solicitation)), with(func(n *neighbor) { answer(n); n.flags |= flagRouter })},
		"defence":            {must(ndpCodec{}.answer(plain, probe)), all},
		"probe": {must(ndpCodec{}.probe(router, vip6)), neighbor{dst: mac{0x33, 0x33, 0xff, 0, 0, 4}, src: self,
			from: netip.IPv6Unspecified(), to: netip.MustParseAddr("ff02::1:ff00:4"), kind: typeSolicitation, target: vip6}},
	}
	for name, tt := range tests {
		if want := tt.want.bytes(); !bytes.Equal(tt.frame, want) {
			t.Errorf("%s: %x, want %x", name, tt.frame, want)
		}
	}
	if frame, err := (ndpCodec{}).announcement(plain, vip6, asReply); frame != nil || err != nil {
		t.Errorf("there is no reply form, got %x, %v", frame, err)
	}
	for name, err := range map[string]error{
		"announcement": second(ndpCodec{}.announcement(plain, vip, asRequest)),
		"probe":        second(ndpCodec{}.probe(plain, vip)),
		"answer":       second(ndpCodec{}.answer(plain, message{from: asker, sender: host, target: vip})),
	} {
		if err == nil {
			t.Errorf("%s: no error for an IPv4 address", name)
		}
	}
}

// Options other than the link-layer address of Ethernet are ignored, even those that the library rejects: RFC 4861,
// 7.1.1 and 7.1.2.
func TestNDPOptions(t *testing.T) {
	other, third := mac{2, 0, 0, 0, 0, 5}, mac{2, 0, 0, 0, 0, 6}
	link := func(kind byte, m mac) []byte { return append([]byte{kind, 1}, m[:]...) }
	sized := func(kind, units byte) []byte { return append([]byte{kind, units}, make([]byte, 8*int(units)-2)...) }
	for name, tt := range map[string]struct {
		kind    byte
		options []byte
		want    mac
	}{
		"none":                       {typeSolicitation, nil, asker},
		"of the other direction":     {typeSolicitation, link(optionTarget, other), asker},
		"of the other direction, NA": {typeAdvertisement, link(optionSource, other), asker},
		"target":                     {typeAdvertisement, link(optionTarget, other), other},
		"twice: the last counts":     {typeSolicitation, slices.Concat(link(optionSource, other), link(optionSource, third)), third},
		"InfiniBand's length":        {typeSolicitation, sized(optionSource, 3), asker},
		"nonce, RFC 3971":            {typeSolicitation, slices.Concat(sized(14, 1), link(optionSource, other)), other},
		"signature, 264 bytes":       {typeSolicitation, slices.Concat(sized(12, 33), link(optionSource, other)), other},
		"longest":                    {typeSolicitation, slices.Concat(link(optionSource, other), sized(253, 160)), other},
		"empty list of name servers": {typeSolicitation, slices.Concat(sized(25, 1), link(optionSource, other)), other},
		"broken list of domains":     {typeSolicitation, slices.Concat(sized(31, 2), link(optionSource, other)), other},
		"prefix without a prefix":    {typeAdvertisement, slices.Concat(sized(3, 1), link(optionTarget, other)), other},
	} {
		b := sealed(slices.Concat(solicit(func(n *neighbor) { n.kind, n.lladdr = tt.kind, mac{} }).bytes(), tt.options))
		if got, err := (ndpCodec{}).parse(b); err != nil || got.from != tt.want {
			t.Errorf("%s: from %x, %v; want %x", name, got.from, err, tt.want)
		}
	}
	for name, options := range map[string][]byte{
		"length 0": {optionSource, 0, 0, 0, 0, 0, 0, 0}, "cut": {optionSource, 2, 0, 0, 0, 0, 0, 0}, "one byte": {optionSource},
		"length 0 of an unknown option, after a good one": append(link(optionSource, other), 253, 0, 0, 0, 0, 0, 0, 0),
	} {
		b := sealed(slices.Concat(solicit(func(n *neighbor) { n.lladdr = mac{} }).bytes(), options))
		if got, err := (ndpCodec{}).parse(b); err == nil {
			t.Errorf("%s: parsed as %+v", name, got)
		}
	}
}

// sealed sets the payload length and checksum after a change of the ICMPv6 message.
func sealed(b []byte) []byte {
	message := b[headerLen+ip6Len:]
	binary.BigEndian.PutUint16(b[headerLen+4:], uint16(len(message)))
	message[2], message[3] = 0, 0
	binary.BigEndian.PutUint16(message[2:], checksum(netip.AddrFrom16([16]byte(b[22:38])), netip.AddrFrom16([16]byte(b[38:54])), message))
	return b
}

// FuzzParseNDP: the codec and the one of the tests accept the same frames, and find the same in them.
func FuzzParseNDP(f *testing.F) {
	f.Add(solicit(nil).bytes())
	f.Add(solicit(func(n *neighbor) { n.from, n.lladdr = netip.IPv6Unspecified(), mac{} }).bytes())
	f.Add(must(ndpCodec{}.announcement(station{mac: self}, vip6, asRequest)))
	f.Add(make([]byte, 90))
	f.Add([]byte{})
	for _, frame := range captured(f) {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		wantBoth(t, b)
		if len(b) < headerLen+ip6Len+neighborLen {
			return
		}
		wantBoth(t, sealed(bytes.Clone(b[:min(len(b), 1514)]))) // the fuzzer seldom finds a checksum
	})
}

// wantBoth checks that both codecs find the same in a frame.
func wantBoth(t *testing.T, b []byte) {
	t.Helper()
	got, err := ndpCodec{}.parse(b)
	n, otherErr := parseNeighbor(b)
	want, ok := n.message()
	ok = ok && otherErr == nil && !n.target.Is4In6() // the library refuses that, no address of ours is one
	if ok != (err == nil) || ok && got != want {
		t.Errorf("%x: %+v, %v; want %+v, %v", b, got, err, want, otherErr)
	}
}
