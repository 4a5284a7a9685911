package l2

import (
	"errors"
	"net/netip"

	"github.com/mdlayher/ethernet"
	"golang.org/x/net/bpf"
)

// headerLen is the length of an Ethernet header without a tag.
const headerLen = 14

// mac is an Ethernet address.
type mac [6]byte

var broadcast = mac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// unicast reports whether the address can be that of one station.
func (m mac) unicast() bool { return m[0]&1 == 0 && m != mac{} }

// message is the content of a frame of either protocol.
type message struct {
	// dst is the frame's destination; group is the other permitted destination of requests for its target, besides
	// the station itself.
	dst, group mac
	// from is the hardware address that the sender advertises for itself.
	from mac
	// sender is the sender's own address; unspecified in a probe.
	sender netip.Addr
	// target is the address that the frame asks for; the zero Addr if there is none.
	target netip.Addr
	// reply is set if the frame may be an answer: an ARP reply that is not gratuitous, an advertisement. An unsolicited
	// advertisement is the same as the answer to a probe (RFC 4861, 7.2.4).
	reply bool
}

// probe reports whether the sender probes for the target because it intends to use it.
func (m message) probe() bool { return m.target.IsValid() && m.sender.IsUnspecified() }

// station is this node on an interface.
type station struct {
	mac mac
	// router is set while the interface forwards IPv6; advertisements must not contradict the kernel.
	router bool
}

var errNotUntagged = errors.New("not an untagged Ethernet frame of the EtherType")

// parseFrame rejects a frame that is tagged, which the library accepts, or of another EtherType.
func parseFrame(b []byte, t ethernet.EtherType) (f ethernet.Frame, err error) {
	if err := f.UnmarshalBinary(b); err != nil {
		return f, err
	}
	if f.EtherType != t || f.VLAN != nil {
		return f, errNotUntagged
	}
	return f, nil
}

// frame returns a frame of the station. The library pads it to Ethernet's minimum length, which is the task of the
// network card.
func (s station) frame(dst mac, t ethernet.EtherType, payload []byte) ([]byte, error) {
	f := ethernet.Frame{Destination: dst[:], Source: s.mac[:], EtherType: t, Payload: payload}
	b, err := f.MarshalBinary()
	if err != nil {
		return nil, err
	}
	return b[:headerLen+len(payload)], nil
}

// codec is ARP or neighbor discovery: it contains all that differs between the families.
type codec interface {
	// family is the label in metrics and messages.
	family() string
	// etherType is that of its frames, snap the number of bytes read of each.
	etherType() int
	snap() int
	// relevant is the part of the socket filter that selects requests and uses. sender and target are the offsets of
	// the addresses in the frame.
	relevant() []bpf.Instruction
	offsets() (sender, target uint32)
	// parse rejects a frame that is not exactly a request or the use of an address.
	parse(frame []byte) (message, error)
	// answer returns the answer to a request. Like the others, it fails only for an address of another family.
	answer(self station, m message) ([]byte, error)
	// announcement returns the frame that announces an address to all stations, in one of the forms; nil if the
	// protocol does not have that form.
	announcement(self station, addr netip.Addr, f form) ([]byte, error)
	// probe returns the frame that probes all stations for the address.
	probe(self station, addr netip.Addr) ([]byte, error)
}

// form of an announcement.
type form int

const (
	// asRequest is the form that most stations process: a gratuitous ARP request, an unsolicited advertisement.
	asRequest form = iota
	// asReply is for stations that process only ARP replies.
	asReply
)

// families are IPv4 and IPv6, as indexes.
const (
	ipv4 = iota
	ipv6
	families
)

var codecs = [families]codec{ipv4: arpCodec{}, ipv6: ndpCodec{}}

func familyOf(addr netip.Addr) int {
	if addr.Is4() {
		return ipv4
	}
	return ipv6
}
