package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net/netip"
	"sync"

	mobyipvs "github.com/moby/ipvs"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// library are the calls of moby/ipvs that this package makes, one request at a time. Flush, which deletes the virtual
// servers of all programs, is not among them.
type library interface {
	NewService(*mobyipvs.Service) error
	UpdateService(*mobyipvs.Service) error
	DelService(*mobyipvs.Service) error
	GetService(*mobyipvs.Service) (*mobyipvs.Service, error)
	GetServices() ([]*mobyipvs.Service, error)
	NewDestination(*mobyipvs.Service, *mobyipvs.Destination) error
	UpdateDestination(*mobyipvs.Service, *mobyipvs.Destination) error
	DelDestination(*mobyipvs.Service, *mobyipvs.Destination) error
	GetDestinations(*mobyipvs.Service) ([]*mobyipvs.Destination, error)
	GetConfig() (*mobyipvs.Config, error)
	SetConfig(*mobyipvs.Config) error
	Close()
}

// loading serializes the library's first use, which logs.
var loading sync.Mutex

// openLibrary opens a socket of the library in the namespace. The netlink family must exist: the library requests its
// number once in the life of a process, and without it reports success for requests that the kernel ignores.
func openLibrary(ns netns.NsHandle) (library, error) {
	loading.Lock()
	defer loading.Unlock()
	// It runs modprobe at its first use and logs a failure, which means nothing once the family exists.
	out := logrus.StandardLogger().Out
	logrus.SetOutput(io.Discard)
	defer logrus.SetOutput(out)
	var handle *mobyipvs.Handle
	err := within(ns, func() (err error) {
		handle, err = mobyipvs.New("")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open the IPVS netlink socket: %w", err)
	}
	if err := reaches(handle); err != nil {
		handle.Close()
		return nil, err
	}
	return handle, nil
}

// reaches checks that the requests of the library reach IPVS, by a request for a virtual server that need not exist.
// They do not if the library could not read the number of the family, or the module was loaded again with another one.
func reaches(l library) error {
	_, err := l.GetService(serviceOf(probeKey, ipvs.Settings{}))
	var errno unix.Errno
	switch {
	case err == nil, errors.Is(err, unix.ESRCH):
		return nil
	case errors.As(err, &errno) && errno != unix.ENOENT: // no such family
		return fmt.Errorf("find %v: %w", probeKey, explain(err))
	}
	return fmt.Errorf("%w: module ip_vs was loaded or replaced too late for this process: restart it (%w)",
		ipvs.ErrNoModule, err)
}

// Persistence always uses the client's full address.
const (
	netmaskIPv4 = math.MaxUint32 // a mask
	netmaskIPv6 = 128            // a length (net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_add_service)
)

func familyOf(addr netip.Addr) uint16 {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func netmaskOf(addr netip.Addr) uint32 {
	if addr.Is4() {
		return netmaskIPv4
	}
	return netmaskIPv6
}

// serviceOf returns a virtual server in the library's form.
func serviceOf(key ipvs.Key, settings ipvs.Settings) *mobyipvs.Service {
	return &mobyipvs.Service{
		AddressFamily: familyOf(key.Addr), Protocol: uint16(key.Protocol), Address: key.Addr.AsSlice(), Port: key.Port,
		SchedName: settings.Scheduler, Flags: uint32(settings.Flags &^ ipvs.Hashed), Timeout: settings.Timeout,
		Netmask: netmaskOf(key.Addr),
	}
}

// destinationOf returns a real server in the library's form.
func destinationOf(addr netip.AddrPort, rs ipvs.RealServer) *mobyipvs.Destination {
	return &mobyipvs.Destination{
		AddressFamily: familyOf(addr.Addr()), Address: addr.Addr().AsSlice(), Port: addr.Port(),
		Weight: int(rs.Weight), ConnectionFlags: uint32(rs.Forward),
	}
}

// readService reads a virtual server. One of a firewall mark has no address; it is not IronLB's, and ok is false.
func readService(s *mobyipvs.Service) (key ipvs.Key, settings ipvs.Settings, ok bool) {
	addr, valid := netip.AddrFromSlice(s.Address)
	if s.FWMark != 0 || !valid {
		return key, settings, false
	}
	key = ipvs.Key{Addr: addr, Protocol: ipvs.Protocol(s.Protocol), Port: s.Port}
	settings = ipvs.Settings{Scheduler: s.SchedName, Flags: ipvs.Flags(s.Flags) &^ ipvs.Hashed, Timeout: s.Timeout}
	return key, persistent(settings), true
}

// settings returns the settings of a virtual server; the error is ESRCH if there is none. Always repeated, it must take
// less time than a request of the library (BenchmarkList).
func (c *conn) settings(key ipvs.Key) (ipvs.Settings, error) {
	if key.Addr.Is4() && optionsFit {
		if settings, err := c.settingsOption(key); err == nil || errors.Is(err, unix.ESRCH) {
			return settings, err
		}
	}
	return c.service(key)
}

// service is settings for either family.
func (c *conn) service(key ipvs.Key) (settings ipvs.Settings, err error) {
	start := len(c.out)
	c.begin(cmdGetService, unix.NLM_F_ACK)
	c.out = appendService(c.out, key, nil)
	endRequest(c.out, start)
	err = errMessage
	sent := c.exchange(func(message []byte) {
		settings, err = readSettings(message)
	}, func(_ uint32, errno unix.Errno) { err = errno })
	if sent != nil {
		c.drain()
		return ipvs.Settings{}, sent
	}
	return settings, err
}

// readSettings parses the settings of a virtual server.
func readSettings(message []byte) (settings ipvs.Settings, err error) {
	if len(message) < genlHeader {
		return settings, errMessage
	}
	for kind, nest := range attributes(message[genlHeader:]) {
		if kind != attrService {
			continue
		}
		for kind, v := range attributes(nest) {
			switch kind {
			case svcScheduler:
				settings.Scheduler = unix.ByteSliceToString(v)
			case svcFlags:
				settings.Flags = ipvs.Flags(uint32Of(v)) &^ ipvs.Hashed
			case svcTimeout:
				settings.Timeout = uint32Of(v)
			}
		}
	}
	if settings.Scheduler == "" {
		return settings, errMessage
	}
	return persistent(settings), nil
}

// persistent returns the settings without a time-out that has no effect: the kernel keeps one without persistence. Like
// ipvsadm, this package ignores it.
func persistent(settings ipvs.Settings) ipvs.Settings {
	if settings.Flags&ipvs.Persistent == 0 {
		settings.Timeout = 0
	}
	return settings
}

// attributes iterates over attributes by kind, and stops at a truncated one.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			size := int(binary.NativeEndian.Uint16(b))
			if size < unix.SizeofNlAttr || size > len(b) {
				return
			}
			kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(kind, b[unix.SizeofNlAttr:size]) {
				return
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

func uint32Of(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func portOf(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

// addrOf parses an address, which the kernel sends in 16 octets for either family.
func addrOf(b []byte, v4 bool) netip.Addr {
	switch {
	case v4 && len(b) >= 4:
		return netip.AddrFrom4([4]byte(b))
	case !v4 && len(b) >= 16:
		return netip.AddrFrom16([16]byte(b))
	}
	return netip.Addr{}
}

var errMessage = errors.New("the kernel sent a message that cannot be read")

// dests returns the real servers of a virtual server of either family.
func (c *conn) dests(key ipvs.Key) (map[netip.AddrPort]ipvs.RealServer, error) {
	reals := map[netip.AddrPort]ipvs.RealServer{}
	start := len(c.out)
	c.begin(cmdGetDest, unix.NLM_F_DUMP)
	c.out = appendService(c.out, key, nil)
	endRequest(c.out, start)
	var unread error
	var errno unix.Errno
	err := c.exchange(func(message []byte) {
		addr, rs, err := readDest(message, key.Addr.Is4())
		if err != nil {
			unread = err
			return
		}
		reals[addr] = rs
	}, func(_ uint32, err unix.Errno) { errno = err })
	switch {
	case err != nil:
		c.drain()
		return nil, err
	case errno != 0:
		return nil, errno
	}
	return reals, unread
}

// readDest parses a real server of a virtual server of the family.
func readDest(message []byte, v4 bool) (addr netip.AddrPort, rs ipvs.RealServer, err error) {
	if len(message) < genlHeader {
		return addr, rs, errMessage
	}
	var ip netip.Addr
	var port uint16
	for kind, nest := range attributes(message[genlHeader:]) {
		if kind != attrDest {
			continue
		}
		for kind, v := range attributes(nest) {
			switch kind {
			case destAddr:
				ip = addrOf(v, v4)
			case destPort:
				port = portOf(v)
			case destForward:
				rs.Forward = ipvs.Forward(uint32Of(v) & forwardMask)
			case destWeight:
				rs.Weight = uint32Of(v)
			}
		}
	}
	if !ip.IsValid() {
		return addr, rs, errMessage
	}
	return netip.AddrPortFrom(ip, port), rs, nil
}
