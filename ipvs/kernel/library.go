package kernel

import (
	"errors"
	"fmt"
	"io"
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
