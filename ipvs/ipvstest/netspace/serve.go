package netspace

import (
	"bufio"
	"net"
	"strings"
	"testing"
	"time"
)

// patience bounds every wait of a test for an answer that ought to come at once.
const patience = 5 * time.Second

// ServeTCP answers each line of each connection with its own name and the address that the client seems to have.
func (s *Space) ServeTCP(t testing.TB, addr, name string) {
	t.Helper()
	var listener net.Listener
	s.Must(t, func() (err error) {
		listener, err = net.Listen("tcp4", addr)
		return err
	})
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
		if _, err := conn.Write([]byte(name + " " + from + "\n")); err != nil {
			return
		}
	}
}

// ServeUDP answers each packet with its own name and the address that the client seems to have.
func (s *Space) ServeUDP(t testing.TB, addr, name string) {
	t.Helper()
	var conn net.PacketConn
	s.Must(t, func() (err error) {
		conn, err = net.ListenPacket("udp4", addr)
		return err
	})
	t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			_, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo([]byte(name+" "+from.(*net.UDPAddr).IP.String()+"\n"), from)
		}
	}()
}

// Dial connects from the namespace; from may name the source address or be empty.
func (s *Space) Dial(network, from, to string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: patience}
	if from != "" {
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

// AskOn sends one line over an open connection and returns the answer.
func AskOn(conn net.Conn) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(question)); err != nil {
		return "", err
	}
	buffer := make([]byte, 100)
	n, err := conn.Read(buffer)
	return strings.TrimSpace(string(buffer[:n])), err
}

// echoRequest is an ICMP echo request (RFC 792) with its checksum.
var echoRequest = []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}

// Ping waits for the answer to an ICMP echo request.
func (s *Space) Ping(to string) error {
	conn, err := s.Dial("ip4:icmp", "", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := conn.Write(echoRequest); err != nil {
		return err
	}
	buffer := make([]byte, 100)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return err
		}
		if header := int(buffer[0]&0xf) * 4; n > header && buffer[header] == 0 {
			return nil // an echo reply
		}
	}
}
