package health

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// newTransport opens a connection per request: a node that has lost its state must not appear healthy through an old
// one.
func newTransport() http.RoundTripper {
	return &http.Transport{
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 8 << 10,
	}
}

// newClient follows no redirect: the health of another server is irrelevant.
func newClient(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ask returns the weight of a node that responds with 200, and otherwise the reason. The body is not read.
func ask(ctx context.Context, client *http.Client, c Check) (uint32, error) {
	u := url.URL{Scheme: "http", Host: netip.AddrPortFrom(c.Addr, c.Port).String(), Path: c.Path}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("User-Agent", "ironlb-speaker")
	response, err := client.Do(request)
	if err != nil {
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
			err = wrapped.Err // without the URL, which the log line already has
		}
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("status %d", response.StatusCode)
	}
	return weight(response.Header.Get(weightHeader)), nil
}

// weight parses the header: 1 if it is missing or not a number, limited to the maximum weight of a real server.
func weight(header string) uint32 {
	n, err := strconv.ParseUint(header, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return ipvs.MaxWeight
	case err != nil:
		return 1
	}
	return uint32(min(n, ipvs.MaxWeight))
}

// A TCP header without options, and its flags (RFC 9293, section 3.1).
const (
	tcpHeader                 = 20
	flagSYN, flagRST, flagACK = 0x02, 0x04, 0x10
)

// halfOpen checks whether a TCP port accepts connections without opening one. It sends a SYN from a port without a
// socket, so that the kernel answers the SYN-ACK with a reset (RFC 9293, section 3.10.7.1) and the program behind the
// port is not involved. A connection that is opened and closed would count there: a database may block this node for it
// (max_connect_errors of MySQL).
//
// It returns nil for a SYN-ACK, ECONNREFUSED for a reset or an ICMP error with that meaning, and another error if
// nothing was received when ctx ends. It needs CAP_NET_RAW.
func halfOpen(ctx context.Context, to netip.AddrPort) error {
	network := "ip6:tcp"
	if to.Addr().Is4() {
		network = "ip4:tcp"
	}
	conn, err := net.DialIP(network, nil, &net.IPAddr{IP: to.Addr().AsSlice(), Zone: to.Addr().Zone()})
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	source, _ := netip.AddrFromSlice(conn.LocalAddr().(*net.IPAddr).IP)
	if to.Addr().Is4() {
		source = source.Unmap()
	}
	from, release, err := reservePort(source)
	if err != nil {
		return err
	}
	defer release()
	seq := rand.Uint32()
	if _, err := conn.Write(synSegment(from, to, seq)); err != nil {
		return err
	}
	for buffer := make([]byte, 128); ; { // all TCP segments from that address
		n, _, err := conn.ReadFromIP(buffer)
		if err != nil {
			return err
		}
		if flags, ok := answerTo(from.Port(), to.Port(), seq, buffer[:n]); ok {
			if flags&flagRST != 0 {
				return syscall.ECONNREFUSED
			}
			return nil
		}
	}
}

// reservePort reserves a port without a listener until release.
func reservePort(source netip.Addr) (from netip.AddrPort, release func(), err error) {
	family, addr := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: source.As16()})
	if source.Is4() {
		family, addr = unix.AF_INET, &unix.SockaddrInet4{Addr: source.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return from, nil, os.NewSyscallError("socket", err)
	}
	release = func() { _ = unix.Close(fd) }
	if err := unix.Bind(fd, addr); err != nil {
		release()
		return from, nil, fmt.Errorf("bind to %v: %w", source, err)
	}
	switch addr, _ := unix.Getsockname(fd); addr := addr.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(source, uint16(addr.Port)), release, nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(source, uint16(addr.Port)), release, nil
	}
	release()
	return from, nil, fmt.Errorf("bind to %v: no port", source)
}

// synSegment is a SYN without options.
func synSegment(from, to netip.AddrPort, seq uint32) []byte {
	b := make([]byte, tcpHeader)
	binary.BigEndian.PutUint16(b, from.Port())
	binary.BigEndian.PutUint16(b[2:], to.Port())
	binary.BigEndian.PutUint32(b[4:], seq)
	b[12] = tcpHeader / 4 << 4
	b[13] = flagSYN
	binary.BigEndian.PutUint16(b[14:], 64240) // window
	binary.BigEndian.PutUint16(b[16:], checksum(from.Addr(), to.Addr(), b))
	return b
}

// checksum returns the checksum of a TCP segment with its pseudo-header (RFC 9293, section 3.1; RFC 8200, section 8.1).
func checksum(from, to netip.Addr, segment []byte) uint16 {
	sum := uint32(unix.IPPROTO_TCP) + uint32(len(segment))
	for _, part := range [][]byte{from.AsSlice(), to.AsSlice(), segment} {
		for ; len(part) > 1; part = part[2:] {
			sum += uint32(binary.BigEndian.Uint16(part))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// answerTo returns the flags of a segment if it answers the SYN: a SYN-ACK or a reset that acknowledges it (RFC 9293,
// section 3.10.7.3).
func answerTo(from, to uint16, seq uint32, segment []byte) (flags byte, ok bool) {
	if len(segment) < tcpHeader || binary.BigEndian.Uint16(segment) != to || binary.BigEndian.Uint16(segment[2:]) != from {
		return 0, false
	}
	flags = segment[13]
	return flags, flags&flagACK != 0 && flags&(flagSYN|flagRST) != 0 && binary.BigEndian.Uint32(segment[8:]) == seq+1
}
