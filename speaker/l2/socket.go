package l2

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// system is the interface to the operating system.
type system interface {
	// observe lists the interfaces of the calling thread's network namespace.
	observe() (*network, error)
	// open opens the socket for a family on an interface there. It reads nothing before pass is called.
	open(l link, family int) (socket, error)
}

// socket reads and writes the frames of one family on one interface.
type socket interface {
	// pass makes read return the frames that concern these addresses. After an error the socket is unusable.
	pass(addrs addrSet) error
	// read fails with ENETDOWN once when the interface goes down.
	read(buf []byte) (int, error)
	// send never blocks: if the kernel has no room, the frame is lost, as it could be on the wire.
	send(frame []byte) error
	// router reports whether the interface forwards IPv6, in the calling thread's network namespace.
	router() bool
	close()
}

// kernel implements system.
type kernel struct{}

func (kernel) observe() (*network, error) { return observe() }

func (kernel) open(l link, family int) (socket, error) {
	s := &packetSocket{link: l, codec: codecs[family], parts: exactLimit}
	if family == ipv6 {
		if err := s.needsIPv6(); err != nil {
			return nil, err
		}
		s.groups = &groups{link: l}
	}
	none, err := filter(s.codec, nil, exactLimit)
	if err != nil {
		return nil, fmt.Errorf("assemble the socket filter: %w", err)
	}
	ifi := &net.Interface{Index: l.index, Name: l.name, HardwareAddr: l.mac[:]}
	if s.conn, err = packet.Listen(ifi, packet.Raw, s.codec.etherType(), &packet.Config{Filter: none}); err != nil {
		return nil, fmt.Errorf("open a packet socket on %s (it needs CAP_NET_RAW): %w", l.name, err)
	}
	if s.raw, err = s.conn.SyscallConn(); err != nil {
		s.conn.Close()
		return nil, fmt.Errorf("open a packet socket on %s: %w", l.name, err)
	}
	return s, nil
}

// packetSocket implements socket by AF_PACKET. It needs no address on the interface, not even a link-local one.
type packetSocket struct {
	link   link
	codec  codec
	conn   *packet.Conn
	raw    syscall.RawConn
	groups *groups // nil except for IPv6
	// parts is the number of prefixes in a filter that the kernel accepts.
	parts int
}

// needsIPv6 fails if the kernel accepts no IPv6 packets on the interface: answering would be useless.
func (s *packetSocket) needsIPv6() error {
	if off, err := s.conf6("disable_ipv6"); err != nil || off {
		return fmt.Errorf("answer for IPv6 on %s: IPv6 is off there: set sysctl net.ipv6.conf.%s.disable_ipv6=0, or name another interface",
			s.link.name, strings.ReplaceAll(s.link.name, ".", "/"))
	}
	return nil
}

// conf6 reads a boolean IPv6 parameter of the interface.
func (s *packetSocket) conf6(key string) (bool, error) {
	value, err := os.ReadFile(filepath.Join("/proc/sys/net/ipv6/conf", s.link.name, key))
	return err == nil && strings.TrimSpace(string(value)) != "0", err
}

func (s *packetSocket) router() bool {
	if s.groups == nil {
		return false
	}
	on, _ := s.conf6("forwarding")
	return on
}

// pass joins the groups first: frames for the filter must reach it.
func (s *packetSocket) pass(addrs addrSet) error {
	if s.groups != nil {
		if err := s.groups.set(addrs); err != nil {
			return err
		}
	}
	list := make([]netip.Addr, 0, len(addrs))
	for a := range addrs {
		list = append(list, a)
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return s.attach(list)
}

// attach attaches the filter. The kernel charges it to the socket together with the one that it replaces, up to
// net.core.optmem_max (sk_filter_charge, net/core/filter.c): 20 kB before Linux 6.7. A filter that is too long is
// rebuilt with fewer prefixes; then more foreign frames wake the process, but the answers are the same.
func (s *packetSocket) attach(list []netip.Addr) error {
	for {
		prog, err := filter(s.codec, list, s.parts)
		if err != nil {
			return fmt.Errorf("assemble the socket filter of %s: %w", s.link.name, err)
		}
		err = s.conn.SetBPF(prog)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.ENOMEM) || s.parts == 1:
			return fmt.Errorf("attach the socket filter of %s: %w", s.link.name, err)
		}
		s.parts /= 2
	}
}

func (s *packetSocket) read(buf []byte) (int, error) {
	n, _, err := s.conn.ReadFrom(buf)
	return n, err
}

func (s *packetSocket) send(frame []byte) error {
	var err error
	if rawErr := s.raw.Write(func(fd uintptr) bool {
		_, err = unix.Write(int(fd), frame) // bound to the interface and its EtherType
		return true
	}); rawErr != nil {
		return rawErr
	}
	return err
}

func (s *packetSocket) close() {
	_ = s.conn.Close()
	if s.groups != nil {
		s.groups.close()
	}
}
