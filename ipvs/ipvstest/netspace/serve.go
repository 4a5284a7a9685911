package netspace

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is the timeout of every wait for an answer that should come at once.
const patience = 5 * time.Second

// ServeTCP answers each line of each connection with the given name, the client's address as seen by the server, and as
// many octets as the line has (AskLong).
func (s *Space) ServeTCP(t testing.TB, addr, name string) {
	t.Helper()
	var listener net.Listener
	s.Must(t, func() (err error) {
		listener, err = net.Listen(only("tcp", addr), addr)
		return err
	})
	serve(t, listener, name)
}

// only returns the network of one family: the unspecified address of IPv6 would otherwise listen on both.
func only(network, addr string) string {
	if netip.MustParseAddrPort(addr).Addr().Is4() {
		return network + "4"
	}
	return network + "6"
}

func serve(t testing.TB, listener net.Listener, name string) {
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answer(conn, name)
		}
	}()
}

func answer(conn net.Conn, name string) {
	defer conn.Close()
	from := conn.RemoteAddr().(*net.TCPAddr).IP.String()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if _, err := conn.Write(padded(name+" "+from, len(lines.Bytes())+1)); err != nil {
			return
		}
	}
}

// ServeUDP answers each packet with the given name and the client's address as seen by the server.
func (s *Space) ServeUDP(t testing.TB, addr, name string) {
	t.Helper()
	var conn net.PacketConn
	s.Must(t, func() (err error) {
		conn, err = net.ListenPacket(only("udp", addr), addr)
		return err
	})
	t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, maxQuestion)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(padded(name+" "+from.(*net.UDPAddr).IP.String(), n), from)
		}
	}()
}

// Dial connects from the namespace; from may contain the source address or be empty. The network may be "sctp", too.
func (s *Space) Dial(network, from, to string) (net.Conn, error) {
	return s.DialWithin(0, network, from, to)
}

// DialWithin is Dial with its own timeout, unless that is zero.
func (s *Space) DialWithin(limit time.Duration, network, from, to string) (net.Conn, error) {
	if network == "sctp" {
		return s.dialSCTP(cmp.Or(limit, patience), from, to)
	}
	dialer := net.Dialer{Timeout: cmp.Or(limit, patience)}
	switch {
	case from == "":
	case strings.HasPrefix(network, "udp"):
		dialer.LocalAddr = &net.UDPAddr{IP: net.ParseIP(from)}
	case strings.HasPrefix(network, "ip"):
		dialer.LocalAddr = &net.IPAddr{IP: net.ParseIP(from)}
	default:
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	var conn net.Conn
	err := s.Do(func() (err error) {
		conn, err = dialer.Dial(network, to)
		return err
	})
	return conn, err
}

// Ask sends one line over a new connection and returns the answer.
func (s *Space) Ask(network, to string) (string, error) {
	conn, err := s.Dial(network, "", to)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return AskOn(conn)
}

// question is long enough to be quoted in an ICMP error (8 octets).
const question = "who are you\n"

// maxQuestion bounds the length of a question, and of its answer.
const maxQuestion = 1 << 15

// padded returns a line of at least n octets.
func padded(text string, n int) []byte {
	return append([]byte(text), strings.Repeat(" ", max(0, n-len(text)-1))+"\n"...)
}

// AskLong is AskOnWithin with a question of n octets, and an answer of the same length.
func AskLong(limit time.Duration, conn net.Conn, n int) (string, error) {
	return ask(limit, conn, padded("long", n))
}

// AskOn sends one line over an open connection and returns the answer.
func AskOn(conn net.Conn) (string, error) { return AskOnWithin(0, conn) }

// AskOnWithin is AskOn with its own timeout, unless that is zero. A packet filter that discards what this host sends
// fails the write (EPERM), with or without a rejection. The answer is therefore awaited in any case: only an ICMP error
// counts as a refusal.
func AskOnWithin(limit time.Duration, conn net.Conn) (string, error) {
	return ask(limit, conn, []byte(question))
}

// ask sends the question and returns the answer, which is one line.
func ask(limit time.Duration, conn net.Conn, question []byte) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(cmp.Or(limit, patience))); err != nil {
		return "", err
	}
	if _, err := conn.Write(question); err != nil && !errors.Is(err, syscall.EPERM) {
		return "", err
	}
	var answer []byte
	for buffer := make([]byte, maxQuestion); !bytes.HasSuffix(answer, []byte("\n")); {
		n, err := conn.Read(buffer)
		if answer = append(answer, buffer[:n]...); err != nil {
			return strings.TrimSpace(string(answer)), err
		}
	}
	return strings.TrimSpace(string(answer)), nil
}

// Retransmitted returns the number of segments that a TCP socket has retransmitted, also when its connection has ended.
func Retransmitted(conn net.Conn) (uint32, error) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var info *unix.TCPInfo
	var failed error
	err = raw.Control(func(fd uintptr) { info, failed = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO) })
	if err := errors.Join(err, failed); err != nil {
		return 0, fmt.Errorf("read TCP_INFO: %w", err)
	}
	return info.Total_retrans, nil
}

// NFT runs a script of nft in the namespace of the calling thread.
func NFT(script string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s\n%s", err, out, script)
	}
	return nil
}

// echoRequests are an ICMP echo request (RFC 792) with its checksum and an ICMPv6 one (RFC 4443), whose checksum the
// kernel fills in.
var echoRequests = map[bool][]byte{false: {8, 0, 0xf7, 0xff, 0, 0, 0, 0}, true: {128, 0, 0, 0, 0, 0, 0, 0}}

// Ping waits for the answer to an ICMP echo request.
func (s *Space) Ping(to string) error { return s.PingWithin(0, to) }

// PingWithin is Ping with its own timeout, unless that is zero.
func (s *Space) PingWithin(limit time.Duration, to string) error {
	is6 := netip.MustParseAddr(to).Is6()
	network, reply := "ip4:icmp", byte(0)
	if is6 {
		network, reply = "ip6:ipv6-icmp", 129
	}
	conn, err := s.Dial(network, "", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(cmp.Or(limit, patience))); err != nil {
		return err
	}
	if _, err := conn.Write(echoRequests[is6]); err != nil {
		return err
	}
	buffer := make([]byte, 100)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return err
		}
		header := 0 // raw IPv6 sockets return none
		if !is6 {
			header = int(buffer[0]&0xf) * 4
		}
		if n > header && buffer[header] == reply {
			return nil
		}
	}
}
