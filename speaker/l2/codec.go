package l2

import (
	"net/netip"

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
	// dst is the frame's destination; group is the destination to which requests for its target may be sent, besides
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

// codec is ARP or neighbour discovery: it contains all that differs between the families.
type codec interface {
	// family is the label in metrics and messages.
	family() string
	// etherType is that of its frames, snap the number of bytes read of each.
	etherType() int
	snap() int
	// relevant is the part of the socket filter that selects requests and claims. sender and target are the offsets of
	// the addresses in the frame.
	relevant() []bpf.Instruction
	offsets() (sender, target uint32)
	// parse rejects a frame that is not exactly a request or a claim.
	parse(frame []byte) (message, error)
	// answer returns the answer to a request.
	answer(self station, m message) []byte
	// announcement returns the frame that announces an address to all stations, in one of the forms; nil if the
	// protocol does not have that form.
	announcement(self station, addr netip.Addr, f form) []byte
	// probe returns the frame that probes all stations for the address.
	probe(self station, addr netip.Addr) []byte
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
