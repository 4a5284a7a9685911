package member

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// hopLimit is the hop limit of sent datagrams: on arrival it shows that no router forwarded them (RFC 5082).
	hopLimit = 255
	// controlPriority is TC_PRIO_CONTROL (include/uapi/linux/pkt_sched.h), controlClass is CS6 (RFC 2474).
	controlPriority, controlClass = 7, 0xc0
	// receiveBuffer holds the datagrams of half a second from about a hundred nodes.
	receiveBuffer = 4 << 20
)

// socket is a UDP socket of one family: one for unicast and broadcast on all interfaces, or one per interface for the
// group.
type socket struct {
	fd   int
	v6   bool
	port uint16
	// index is the interface of a group socket, else 0.
	index int
	// filtered is set once it has a filter.
	filtered bool
	drops    uint32 // the value of the last call of dropped
	out      []byte // control message for sending by broadcast
	// deferred is set for the second socket of a pair, paired for the first one.
	deferred, paired bool
	// room is how many datagrams its buffer holds at least.
	room int
	// emptied is when it was last empty; stamped is set if the kernel's times of arrival since then are of one clock.
	emptied time.Time
	stamped bool
}

// openSocket opens the socket for unicast and broadcast in the network namespace of the calling thread. It fails if
// another process has one on this port.
func openSocket(port uint16, v6 bool) (*socket, error) {
	return open(&socket{v6: v6, port: port}, func(s *socket) error {
		if !v6 { // the group has its own sockets
			if err := s.set(option{unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0}); err != nil {
				return err
			}
		}
		if err := unix.Bind(s.fd, s.any()); err != nil {
			return fmt.Errorf("bind UDP port %d (%s) for the speakers' datagrams: %w; is another speaker running on this node?",
				port, s.family(), err)
		}
		// From here on the group sockets may share the port. Another speaker binds without this option, and fails.
		return s.set(option{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1})
	})
}

// open creates a socket, sets the common options, and calls bind for the rest.
func open(s *socket, bind func(*socket) error) (*socket, error) {
	family := unix.AF_INET
	options := []option{
		{unix.SOL_SOCKET, unix.SO_BROADCAST, 1}, {unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1},
		{unix.IPPROTO_IP, unix.IP_PKTINFO, 1}, {unix.IPPROTO_IP, unix.IP_RECVTTL, 1}, {unix.IPPROTO_IP, unix.IP_TTL, hopLimit},
		{unix.IPPROTO_IP, unix.IP_TOS, controlClass},
	}
	if s.v6 {
		family = unix.AF_INET6
		options = []option{
			{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1}, {unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1}, {unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hopLimit}, {unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, hopLimit},
			{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 0}, {unix.IPPROTO_IPV6, unix.IPV6_TCLASS, controlClass},
		}
	}
	var err error
	if s.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("open an %s socket for the speakers' datagrams: %w", s.family(), err)
	}
	// These two need privileges that a speaker may lack; without them it works, with less buffer.
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	if size, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err == nil {
		s.room = size / slotSize
	}
	_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_PRIORITY, controlPriority)
	if err = s.set(options...); err == nil {
		err = bind(s)
	}
	if err != nil {
		unix.Close(s.fd)
		return nil, err
	}
	return s, nil
}

// any returns the wildcard address of its family.
func (s *socket) any() unix.Sockaddr {
	if s.v6 {
		return &unix.SockaddrInet6{Port: int(s.port)}
	}
	return &unix.SockaddrInet4{Port: int(s.port)}
}

type option struct{ level, name, value int }

func (s *socket) set(options ...option) error {
	for _, o := range options {
		if err := unix.SetsockoptInt(s.fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("set option %d/%d of the %s socket for the speakers' datagrams: %w",
				o.level, o.name, s.family(), err)
		}
	}
	return nil
}

func (s *socket) family() string {
	if s.v6 {
		return "IPv6"
	}
	return "IPv4"
}

// close closes the socket. Lists of the present tick that contain it then have no valid descriptor.
func (s *socket) close() {
	unix.Close(s.fd)
	s.fd = -1
}

// arrival is a datagram's metadata.
type arrival struct {
	size, index int
	hops        int
	source      netip.Addr
	// group is set if it was sent to the group, broadcast if it was sent to all hosts of a segment.
	group, broadcast bool
	stamp            int64 // time of arrival by CLOCK_REALTIME in ns, 0 if unknown
}

// control reads interface, hop limit and time of arrival from the control messages.
func (s *socket) control(oob []byte, a *arrival) {
	for len(oob) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
		if h.Len < unix.SizeofCmsghdr || uint64(h.Len) > uint64(len(oob)) {
			return
		}
		data := oob[unix.CmsgLen(0):h.Len]
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(data) >= 12:
			a.index = int(binary.NativeEndian.Uint32(data))
			a.broadcast = [4]byte(data[8:]) == allHosts.As4()
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= 20:
			a.index = int(binary.NativeEndian.Uint32(data[16:]))
			a.broadcast = [16]byte(data) == allNodes.As16()
		case len(data) >= 4 && (h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TTL || h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT):
			a.hops = int(binary.NativeEndian.Uint32(data))
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_TIMESTAMPNS && len(data) >= int(unsafe.Sizeof(unix.Timespec{})):
			a.stamp = (*unix.Timespec)(unsafe.Pointer(&data[0])).Nano()
		}
		next := unix.CmsgSpace(len(data))
		if next >= len(oob) {
			return
		}
		oob = oob[next:]
	}
}

// interfaceName returns the name of an interface by netdevice(7), or an empty string if it does not exist.
func (s *socket) interfaceName(index int) string {
	var request struct {
		name  [unix.IFNAMSIZ]byte
		index int32
		_     [20]byte
	}
	request.index = int32(index)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.fd), unix.SIOCGIFNAME, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return ""
	}
	return unix.ByteSliceToString(request.name[:])
}

// send sends to one address.
func (s *socket) send(to netip.Addr, data []byte) error {
	return unix.Sendto(s.fd, data, unix.MSG_DONTWAIT, s.address(to))
}

func (s *socket) address(to netip.Addr) unix.Sockaddr {
	if !s.v6 {
		return &unix.SockaddrInet4{Port: int(s.port), Addr: to.As4()}
	}
	address := &unix.SockaddrInet6{Port: int(s.port), Addr: to.As16()}
	if index, err := strconv.Atoi(to.Zone()); err == nil {
		address.ZoneId = uint32(index)
	}
	return address
}

var (
	// allHosts is the limited broadcast (RFC 919 section 7), allNodes RFC 4291 section 2.7.1.
	allHosts = netip.AddrFrom4([4]byte{255, 255, 255, 255})
	allNodes = netip.MustParseAddr("ff02::1")
)

// sendBroadcast sends to all hosts on the segment of an interface.
func (s *socket) sendBroadcast(index int, data []byte) error {
	info, kind, level, to := make([]byte, 12), unix.IP_PKTINFO, unix.IPPROTO_IP, allHosts
	binary.NativeEndian.PutUint32(info, uint32(index))
	if s.v6 {
		info, kind, level, to = make([]byte, 20), unix.IPV6_PKTINFO, unix.IPPROTO_IPV6, allNodes
		binary.NativeEndian.PutUint32(info[16:], uint32(index))
	}
	if s.out == nil {
		s.out = make([]byte, unix.CmsgSpace(len(info)))
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&s.out[0]))
	h.Level, h.Type = int32(level), int32(kind)
	h.SetLen(unix.CmsgLen(len(info)))
	copy(s.out[unix.CmsgLen(0):], info)
	_, err := unix.SendmsgN(s.fd, data, s.out, s.address(to), unix.MSG_DONTWAIT)
	return err
}
