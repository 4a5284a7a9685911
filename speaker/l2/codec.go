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

// unicast tells whether the address can be that of one station.
func (m mac) unicast() bool { return m[0]&1 == 0 && m != mac{} }

// message is what a frame of either protocol says.
type message struct {
	// dst is where the frame was sent to, group where a question for its target may be sent to beside the station itself.
	dst, group mac
	// from is the hardware address that the sender gives for itself.
	from mac
	// sender is the address that it says is its own; unspecified in a probe.
	sender netip.Addr
	// target is the address that it asks for; the zero Addr if it asks for none.
	target netip.Addr
	// reply is set if the frame may be an answer: an ARP reply that is not gratuitous, an advertisement. An unsolicited
	// advertisement is the same as the answer to a probe (RFC 4861, 7.2.4).
	reply bool
}

// probe tells whether the sender asks because it wants to use the target itself.
func (m message) probe() bool { return m.target.IsValid() && m.sender.IsUnspecified() }

// station is who we are on an interface.
type station struct {
	mac mac
	// router is set while the interface forwards IPv6; what we say must not contradict the kernel.
	router bool
}

// codec is ARP or neighbour discovery: what differs between the families is here, everything else is done once.
type codec interface {
	// family is the name in metrics and messages.
	family() string
	// etherType of its frames, and how many bytes of one are read.
	etherType() int
	snap() int
	// relevant is the part of the socket filter that tells its questions and claims from other frames. sender and target
	// are the offsets of the addresses in the frame.
	relevant() []bpf.Instruction
	offsets() (sender, target uint32)
	// parse refuses what is not exactly a question or a claim.
	parse(frame []byte) (message, error)
	// answer returns the frame that answers a question.
	answer(self station, m message) []byte
	// announcement returns the frame that tells all stations where an address is, in one of the forms; nil if the
	// protocol does not have that form.
	announcement(self station, addr netip.Addr, f form) []byte
	// probe returns the frame that asks all stations whether one has the address.
	probe(self station, addr netip.Addr) []byte
}

// form of an announcement.
type form int

const (
	// asRequest is the one that stations understand best: a gratuitous ARP request, an unsolicited advertisement.
	asRequest form = iota
	// asReply is for those that look at ARP replies only.
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
