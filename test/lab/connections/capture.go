package connections

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// capture records the packets of connections to some targets, sent and received.
type capture struct {
	conn    *packet.Conn
	targets []netip.AddrPort
	ended   chan struct{}

	mu    sync.Mutex
	flows map[flow]*Wire
}

type flow struct {
	target netip.AddrPort
	port   uint16 // of the client
}

// headers is the number of bytes that a packet is cut to.
const headers = 128

func startCapture(name string, targets []netip.AddrPort) (*capture, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("capture on %s: %w", name, err)
	}
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Val: unix.ETH_P_IP, SkipFalse: 3},
		bpf.LoadAbsolute{Off: 23, Size: 1},
		bpf.JumpIf{Val: unix.IPPROTO_TCP, SkipFalse: 5},
		bpf.RetConstant{Val: headers},
		bpf.JumpIf{Val: unix.ETH_P_IPV6, SkipFalse: 3},
		bpf.LoadAbsolute{Off: 20, Size: 1},
		bpf.JumpIf{Val: unix.IPPROTO_TCP, SkipFalse: 1},
		bpf.RetConstant{Val: headers},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return nil, fmt.Errorf("capture on %s: %w", name, err)
	}
	conn, err := packet.Listen(ifi, packet.Raw, unix.ETH_P_ALL, &packet.Config{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("capture on %s: %w", name, err)
	}
	if err := widen(conn); err != nil {
		return nil, errors.Join(fmt.Errorf("capture on %s: %w", name, err), conn.Close())
	}
	c := &capture{conn: conn, targets: targets, ended: make(chan struct{}), flows: map[flow]*Wire{}}
	go c.read()
	return c, nil
}

// widen enlarges the receive buffer: the client may be late.
func widen(conn *packet.Conn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	control := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20) })
	return errors.Join(control, err)
}

func (c *capture) read() {
	defer close(c.ended)
	buf := make([]byte, headers)
	for {
		n, _, err := c.conn.ReadFrom(buf)
		if err != nil {
			return // closed
		}
		c.take(buf[:n], time.Now())
	}
}

// stop ends the capture and returns the number of lost packets.
func (c *capture) stop() (dropped int, err error) {
	stats, err := c.conn.Stats()
	if err == nil {
		dropped = int(stats.Drops)
	}
	err = errors.Join(err, c.conn.Close())
	<-c.ended
	return dropped, err
}

func (c *capture) wire(target netip.AddrPort, port uint16) Wire {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.flows[flow{target, port}]
	if w == nil {
		return Wire{}
	}
	out := *w
	out.From = slices.Clone(w.From)
	return out
}

// Flags of TCP.
const (
	flagSYN = 1 << 1
	flagRST = 1 << 2
	flagACK = 1 << 4
)

func (c *capture) take(frame []byte, now time.Time) {
	s, ok := parse(frame)
	if !ok {
		return
	}
	sent := slices.Contains(c.targets, s.dst)
	f := flow{s.dst, s.src.Port()}
	if !sent {
		if f = (flow{s.src, s.dst.Port()}); !slices.Contains(c.targets, s.src) {
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.flows[f]
	if w == nil {
		w = &Wire{}
		c.flows[f] = w
	}
	syn := s.flags & (flagSYN | flagACK)
	switch {
	case sent && syn == flagSYN:
		if w.SYNs++; w.SYN.IsZero() {
			w.SYN = now
		}
	case sent:
	case s.flags&flagRST != 0:
		if w.Reset.IsZero() {
			w.Reset, w.ResetBy = now, s.station
		}
	case syn == flagSYN|flagACK && w.SYNACK.IsZero():
		w.SYNACK = now
	case s.data && (len(w.From) == 0 || w.From[len(w.From)-1] != s.station):
		w.From = append(w.From, s.station)
	}
}

// segment is a TCP packet, with the station that sent its frame.
type segment struct {
	station  string
	src, dst netip.AddrPort
	flags    byte
	data     bool
}

const etherLen = 14

// parse reads a frame, without IPv6 extension headers.
func parse(b []byte) (s segment, ok bool) {
	if len(b) < etherLen+20 {
		return s, false
	}
	s.station = net.HardwareAddr(b[6:12]).String()
	ether, ip := binary.BigEndian.Uint16(b[12:]), b[etherLen:]
	var src, dst netip.Addr
	var head, total int
	switch {
	case ether == unix.ETH_P_IP && ip[9] == unix.IPPROTO_TCP:
		src, dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		head, total = int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
	case ether == unix.ETH_P_IPV6 && len(ip) >= 40 && ip[6] == unix.IPPROTO_TCP:
		src, dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		head, total = 40, 40+int(binary.BigEndian.Uint16(ip[4:]))
	default:
		return s, false
	}
	if len(ip) < head+20 {
		return s, false
	}
	tcp := ip[head:]
	s.src, s.dst = netip.AddrPortFrom(src, binary.BigEndian.Uint16(tcp)), netip.AddrPortFrom(dst, binary.BigEndian.Uint16(tcp[2:]))
	s.flags = tcp[13]
	s.data = total > head+int(tcp[12]>>4)*4
	return s, true
}
