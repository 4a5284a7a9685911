// Package capture reads the packets of a network namespace with the kernel's time stamps, so that the reader's own
// delay does not count.
package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Packet is a UDP or TCP packet over IPv4 or IPv6, without fragments and extension headers.
type Packet struct {
	// At is the kernel's time stamp; Outgoing is set if the packet is from this namespace.
	At       time.Time
	Outgoing bool
	// Protocol is unix.IPPROTO_UDP or unix.IPPROTO_TCP.
	Protocol byte
	From, To netip.AddrPort
	Payload  []byte
}

// longest is the maximum size of a packet: TCP is segmented only after this reader.
const longest = 1 << 16

// roomy is the size of the receive buffer, for a stalled reader.
const roomy = 4 << 20

// Start calls take with each packet on any interface of the calling thread's network namespace, until stop. The packet
// is valid until take returns.
func Start(take func(Packet)) (stop func(), err error) {
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return nil, fmt.Errorf("watch the wire (root?): %w", err)
	}
	timeout := unix.Timeval{Usec: 100000} // after it the reader checks for stop
	if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, roomy),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch the wire: %w", err)
	}
	ending, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer unix.Close(fd)
		read(fd, ending, take)
	}()
	return func() { close(ending); <-ended }, nil
}

func read(fd int, ending <-chan struct{}, take func(Packet)) {
	data, control := make([]byte, longest), make([]byte, 128)
	for {
		select {
		case <-ending:
			return
		default:
		}
		n, c, _, from, err := unix.Recvmsg(fd, data, control, 0)
		if err != nil {
			continue // the timeout, or an interface that went down
		}
		p, ok := parse(data[:n])
		messages, err := unix.ParseSocketControlMessage(control[:c])
		if !ok || err != nil || len(messages) == 0 || len(messages[0].Data) < int(unsafe.Sizeof(unix.Timespec{})) {
			continue
		}
		p.At = time.Unix((*unix.Timespec)(unsafe.Pointer(&messages[0].Data[0])).Unix())
		ll, _ := from.(*unix.SockaddrLinklayer)
		p.Outgoing = ll != nil && ll.Pkttype == unix.PACKET_OUTGOING
		take(p)
	}
}

// parse parses a packet that begins with an IP header (RFC 791, 3.1; RFC 8200, 3).
func parse(b []byte) (p Packet, ok bool) {
	var source, destination netip.Addr
	header, length := 40, 0
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		header, length, p.Protocol = int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:])), b[9]
		source, destination = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	case len(b) >= 40 && b[0]>>4 == 6:
		length, p.Protocol = header+int(binary.BigEndian.Uint16(b[4:])), b[6]
		source, destination = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	default:
		return p, false
	}
	if length > len(b) || header < 20 || length < header {
		return p, false
	}
	b = b[header:length] // the rest pads an Ethernet frame
	at := 8              // RFC 768
	switch p.Protocol {
	case unix.IPPROTO_TCP:
		if len(b) < 20 {
			return p, false
		}
		at = int(b[12]>>4) * 4 // RFC 9293, 3.1
	case unix.IPPROTO_UDP:
	default:
		return p, false
	}
	if len(b) < at || at < 8 {
		return p, false
	}
	p.From = netip.AddrPortFrom(source, binary.BigEndian.Uint16(b))
	p.To = netip.AddrPortFrom(destination, binary.BigEndian.Uint16(b[2:]))
	p.Payload = b[at:]
	return p, true
}
