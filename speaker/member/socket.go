package member

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
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

type option struct{ level, name, value int }

// arrival is a datagram's metadata.
type arrival struct {
	size, index int
	hops        int
	source      netip.Addr
	// group is set if it was sent to the group, broadcast if it was sent to all hosts of a segment.
	group, broadcast bool
	stamp            int64 // time of arrival by CLOCK_REALTIME in ns, 0 if unknown
}

// groups are the sockets that have joined the group, one per interface and family. The kernel drops datagrams that
// arrive by another interface, and a flood on one interface fills no other's buffer.
type groups struct {
	sockets []*socket
	failed  map[string]string // last logged errors, by interface
}

// intake records what the loop reads, and when.
type intake struct {
	// polled is the end of the last poll; offset is CLOCK_REALTIME less the time since the start, at the last read.
	polled time.Time
	offset time.Duration
	// read counts the datagrams since the time since. busy is set if they are too many to let any wait.
	read  int
	since time.Time
	busy  bool
}

// batch is the memory for the datagrams of one recvmmsg(2).
type batch struct {
	headers [batchSize]mmsghdr
	vectors [batchSize]unix.Iovec
	names   [batchSize]unix.RawSockaddrInet6 // also fits unix.RawSockaddrInet4
	control [batchSize][256]byte
	data    [batchSize][MaxDatagram + 1]byte
}

// mmsghdr is struct mmsghdr (recvmmsg(2)).
type mmsghdr struct {
	unix.Msghdr
	size uint32
	_    [unsafe.Sizeof(uintptr(0)) - 4]byte
}

// socketFilter is the input of a socket filter.
type socketFilter struct {
	cluster uint64
	keys    [][4]byte
	// indexes are the interfaces on which broadcasts are accepted. The group has a socket per interface.
	indexes []int
}

const (
	// hopLimit is the hop limit of sent datagrams: on arrival it shows that no router forwarded them (RFC 5082).
	hopLimit = 255
	// controlPriority is TC_PRIO_CONTROL (include/uapi/linux/pkt_sched.h), controlClass is CS6 (RFC 2474).
	controlPriority, controlClass = 7, 0xc0
	// receiveBuffer holds the datagrams of half a second from about a hundred nodes.
	receiveBuffer = 4 << 20
)

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

// The speakers' groups are of link-local scope and reserved by RFC 4727. A switch with snooping forwards 224.0.0.0/24
// to all ports regardless of membership (RFC 4541 section 2.1.2), and ff02::/16 as it does for neighbor discovery, by
// MLD reports (section 3). Other users of these groups have another port, or no valid tag.
var (
	group4 = netip.AddrFrom4([4]byte{224, 0, 0, 254})
	group6 = netip.MustParseAddr("ff02::114")
)

// join updates the memberships to the interfaces. It returns the failures that are new since the last call, by
// interface: there datagrams to the group are not received, and this node sends by broadcast.
func (g *groups) join(port uint16, families []bool, have ports) map[string]error {
	kept := g.sockets[:0]
	for _, s := range g.sockets {
		if p, still := have.byName[have.byIndex[s.index]]; still && (s.v6 || p.v4) {
			kept = append(kept, s)
		} else {
			s.close()
		}
	}
	clear(g.sockets[len(kept):])
	g.sockets = kept
	failed, added := map[string]string{}, map[string]error{}
	for name, p := range have.byName {
		for _, v6 := range families {
			if g.find(p.index, v6) != nil || !v6 && !p.v4 {
				continue
			}
			s, err := openGroup(port, p.index, v6)
			switch {
			case err == nil:
				g.sockets = append(g.sockets, s)
			case !v6 || !p.v4: // with IPv4 present, IPv6 may be disabled
				if failed[name] = err.Error(); g.failed[name] != err.Error() {
					added[name] = err
				}
			}
		}
	}
	g.failed = failed
	return added
}

// find returns the group socket of an interface, nil if there is none.
func (g *groups) find(index int, v6 bool) *socket {
	for _, s := range g.sockets {
		if s.index == index && s.v6 == v6 {
			return s
		}
	}
	return nil
}

func (g *groups) close() {
	for _, s := range g.sockets {
		s.close()
	}
}

// openGroup opens a socket that receives the group on an interface and sends to it there. A unicast socket on the same
// port must be open.
func openGroup(port uint16, index int, v6 bool) (*socket, error) {
	return open(&socket{v6: v6, port: port, index: index}, func(s *socket) error {
		shared, bound := option{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1}, option{unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, index}
		if err := s.set(shared, bound); err != nil {
			return err
		}
		if err := unix.Bind(s.fd, s.address(s.to())); err != nil {
			return fmt.Errorf("bind to %v, UDP port %d: %w", s.to(), port, err)
		}
		if v6 {
			membership := &unix.IPv6Mreq{Multiaddr: group6.As16(), Interface: uint32(index)}
			if err := unix.SetsockoptIPv6Mreq(s.fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, membership); err != nil {
				return fmt.Errorf("join %v: %w", group6, err)
			}
			return nil
		}
		membership := &unix.IPMreqn{Multiaddr: group4.As4(), Ifindex: int32(index)}
		if err := unix.SetsockoptIPMreqn(s.fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, membership); err != nil {
			return fmt.Errorf("join %v: %w", group4, err)
		}
		loop := option{unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP, 0}
		return s.set(option{unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, hopLimit}, loop)
	})
}

// to returns the group of the socket's family.
func (s *socket) to() netip.Addr {
	if s.v6 {
		return group6
	}
	return group4
}

// Unicast datagrams arrive on two sockets per family: the kernel puts routine heartbeats into the second one, which the
// loop polls only while the core is attentive. So they do not wake it, and a flood of them fills no buffer but theirs.

// pair opens the second socket for a socket of openSocket. On an error the first one receives everything.
func pair(s *socket) (*socket, error) {
	shared := option{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1}
	if err := s.set(shared); err != nil {
		return nil, err
	}
	second, err := open(&socket{v6: s.v6, port: s.port, deferred: true}, func(second *socket) error {
		options := []option{shared, {unix.SOL_SOCKET, unix.SO_REUSEADDR, 1}}
		if !s.v6 {
			options = append(options, option{unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0})
		}
		if err := second.set(options...); err != nil {
			return err
		}
		if err := unix.Bind(second.fd, second.any()); err != nil {
			return fmt.Errorf("bind UDP port %d (%s) again: %w", s.port, s.family(), err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	// The kernel runs the program on a unicast datagram, without its UDP header, for the index of its socket.
	program := append(whileRoutine(0, 1), bpf.RetConstant{Val: 1}, bpf.RetConstant{Val: 0})
	if err := s.attachProgram(program, unix.SO_ATTACH_REUSEPORT_CBPF); err != nil {
		second.close()
		return nil, fmt.Errorf("separate routine heartbeats (%s): %w", s.family(), err)
	}
	s.paired = true
	return second, nil
}

// whileRoutine returns instructions that continue if a datagram is a routine heartbeat, as Routine reports, and
// otherwise skip some. The datagram begins at an offset.
func whileRoutine(offset uint32, skip uint8) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: offset + 3, Size: 1}, // the length of the node name
		bpf.TAX{},
		bpf.LoadIndirect{Off: offset + headerSize, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: fieldHello, SkipTrue: skip + 2},
		bpf.LoadIndirect{Off: offset + flagsAt, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: flagRoutine, SkipTrue: skip},
	}
}

// ownClass returns instructions that drop a broadcast that the other socket of a pair accepts: each gets a copy.
func (s *socket) ownClass() []bpf.Instruction {
	switch {
	case s.deferred:
		return append(whileRoutine(payload, 1), bpf.Jump{Skip: 1}, bpf.RetConstant{Val: 0})
	case s.paired:
		return append(whileRoutine(payload, 1), bpf.RetConstant{Val: 0})
	}
	return nil
}

// dropsElsewhere returns how many other sockets have dropped their copy of an accepted datagram.
func (s *socket) dropsElsewhere(a arrival, sockets, deferred []*socket) (n int) {
	if !a.broadcast && !(s.v6 && a.group) {
		return 0
	}
	for _, of := range [][]*socket{sockets, deferred} {
		for _, o := range of {
			if o.v6 == s.v6 && o != s {
				n++
			}
		}
	}
	return n
}

const (
	// maxStep is the change of CLOCK_REALTIME against CLOCK_MONOTONIC between two reads that counts as a step.
	maxStep = time.Millisecond
	// maxRate is the number of datagrams per second from which none waits: more than the largest cluster sends.
	maxRate = 10_000
	// slotSize is the largest memory that a network driver uses for a short datagram, with the kernel's overhead.
	slotSize = 4352
)

// stepped reports whether CLOCK_REALTIME was set since the last call.
func (k *intake) stepped(start, now time.Time) bool {
	before := k.offset
	k.offset = time.Duration(now.UnixNano()) - now.Sub(start)
	return (k.offset - before).Abs() > maxStep
}

// add counts datagrams read from a socket at once.
func (k *intake) add(now time.Time, s *socket, n int) {
	if k.read += n; n > s.room/4 {
		k.busy, k.read, k.since = true, 0, now
		return
	}
	if age := now.Sub(k.since); age >= time.Second {
		k.busy = float64(k.read) > maxRate*age.Seconds()
		k.read, k.since = 0, now
	}
}

// age returns how long ago a datagram arrived, by the kernel's time, at most since the socket was last empty: so a step
// of CLOCK_REALTIME has no effect.
func (s *socket) age(stamp int64, now time.Time) time.Duration {
	if !s.stamped || stamp == 0 {
		return 0
	}
	return min(max(0, time.Duration(now.UnixNano()-stamp)), now.Sub(s.emptied))
}

// batchSize is how many datagrams one system call reads: those of one interval with a few nodes.
const batchSize = 16

// read reads datagrams of a socket, and reports whether none is left.
func (b *batch) read(s *socket) (n int, empty bool, err error) {
	for i := range b.headers {
		b.vectors[i].Base = &b.data[i][0]
		b.vectors[i].SetLen(len(b.data[i]))
		h := &b.headers[i].Msghdr
		*h = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&b.names[i])), Namelen: unix.SizeofSockaddrInet6,
			Iov: &b.vectors[i], Control: &b.control[i][0]}
		h.SetIovlen(1)
		h.SetControllen(len(b.control[i]))
	}
	count, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&b.headers[0])), batchSize,
		unix.MSG_DONTWAIT, 0, 0)
	switch {
	case errors.Is(errno, unix.EAGAIN):
		return 0, true, nil
	case errno != 0:
		return 0, false, errno
	}
	return int(count), count < batchSize, nil
}

// at returns a datagram of the last read, and its metadata.
func (b *batch) at(s *socket, i int) (a arrival, data []byte) {
	h := &b.headers[i]
	a.size = int(h.size)
	if h.Flags&unix.MSG_TRUNC != 0 {
		a.size = len(b.data[i]) // longer than any datagram of a speaker
	}
	switch name := &b.names[i]; name.Family {
	case unix.AF_INET:
		a.source = netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr)
	case unix.AF_INET6:
		a.source = netip.AddrFrom16(name.Addr)
	}
	s.control(b.control[i][:min(int(h.Controllen), len(b.control[i]))], &a)
	a.group = s.index != 0
	return a, b.data[i][:a.size]
}

const (
	// payload is the offset of a datagram for the filter of a UDP socket: after the header (RFC 768).
	payload = 8
	// netOff is the offset of the network header for a filter (SKF_NET_OFF of linux/filter.h), wherever the socket's
	// own data begins.
	netOff = 0xfff00000
	// sample is the rate at which datagrams of another version, cluster or key pass the filter, one in sample, so that
	// the metrics and the log can report them.
	sample = 64
	// packetBroadcast and packetMulticast are PACKET_BROADCAST and PACKET_MULTICAST of linux/if_packet.h.
	packetBroadcast, packetMulticast = 1, 2
)

// program returns a filter program that passes datagrams of this version and cluster with one of the keys' ids. A flood
// of anything else neither wakes the process nor fills the buffer. The process checks the tag.
func (v socketFilter) program(s *socket) []bpf.Instruction {
	var p []bpf.Instruction
	drop := bpf.RetConstant{Val: 0}
	if s.index == 0 {
		if s.v6 { // the group has its own sockets; IPV6_MULTICAST_ALL would exclude broadcasts too
			group := group6.As16()
			p = append(p,
				bpf.LoadAbsolute{Off: netOff + 24, Size: 4}, // the destination (RFC 8200, 3)
				bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(group[:]), SkipTrue: 3},
				bpf.LoadAbsolute{Off: netOff + 36, Size: 4},
				bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(group[12:]), SkipTrue: 1},
				drop)
		}
		n, class := uint8(len(v.indexes)), s.ownClass()
		p = append(p,
			bpf.LoadExtension{Num: bpf.ExtType},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: packetBroadcast, SkipTrue: 1},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: packetMulticast, SkipTrue: n + 2 + uint8(len(class))},
			bpf.LoadExtension{Num: bpf.ExtInterfaceIndex})
		for i, index := range v.indexes {
			p = append(p, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(index), SkipTrue: n - uint8(i)})
		}
		p = append(append(p, drop), class...)
	}
	n := uint8(len(v.keys))
	p = append(p,
		bpf.LoadAbsolute{Off: payload, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 'I'<<8 | 'L', SkipTrue: 1},
		drop,
		bpf.LoadAbsolute{Off: payload + 2, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: wireVersion, SkipTrue: n + 5},
		bpf.LoadAbsolute{Off: payload + 8, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(v.cluster >> 32), SkipTrue: n + 3},
		bpf.LoadAbsolute{Off: payload + 12, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(v.cluster), SkipTrue: n + 1},
		bpf.LoadAbsolute{Off: payload + 4, Size: 4})
	for i, id := range v.keys {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(id[:]), SkipTrue: n - uint8(i) + 2})
	}
	p = append(p,
		bpf.LoadExtension{Num: bpf.ExtRand},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: sample - 1, SkipTrue: 1},
		drop,
		bpf.RetConstant{Val: 0xffff})
	return p
}

// attach attaches a filter to the socket.
func (s *socket) attach(v socketFilter) error {
	if err := s.attachProgram(v.program(s), unix.SO_ATTACH_FILTER); err != nil {
		return fmt.Errorf("filter the %s socket for the speakers' datagrams: %w", s.family(), err)
	}
	return nil
}

// attachProgram attaches a program to the socket by one of its options.
func (s *socket) attachProgram(instructions []bpf.Instruction, by int) error {
	program, err := bpf.Assemble(instructions)
	if err != nil {
		return fmt.Errorf("assemble the program: %w", err)
	}
	raw := make([]unix.SockFilter, len(program))
	for i, p := range program {
		raw[i] = unix.SockFilter{Code: p.Op, Jt: p.Jt, Jf: p.Jf, K: p.K}
	}
	prog := &unix.SockFprog{Len: uint16(len(raw)), Filter: &raw[0]}
	if err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, by, prog); err != nil {
		return fmt.Errorf("attach the program: %w", err)
	}
	return nil
}

// dropped returns how many datagrams the kernel has dropped at the socket since the last call: by the filter, or
// because the buffer was full.
func (s *socket) dropped() uint32 {
	var info [unix.SK_MEMINFO_VARS]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0
	}
	now := info[unix.SK_MEMINFO_DROPS]
	added := now - s.drops
	s.drops = now
	return added
}
