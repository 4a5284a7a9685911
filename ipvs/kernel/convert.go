package kernel

import (
	"fmt"
	"math"
	"net/netip"

	mobyipvs "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// Persistence always goes by the client's whole address.
const (
	netmaskIPv4 = math.MaxUint32 // a mask
	netmaskIPv6 = 128            // a length (net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_add_service)
)

// service returns a virtual server as the library wants it.
func service(key ipvs.Key, settings ipvs.Settings) *mobyipvs.Service {
	s := &mobyipvs.Service{
		Address:       key.Addr.AsSlice(),
		Protocol:      uint16(key.Protocol),
		Port:          key.Port,
		SchedName:     settings.Scheduler,
		Flags:         uint32(settings.Flags &^ ipvs.Hashed),
		Timeout:       settings.Timeout,
		AddressFamily: unix.AF_INET,
		Netmask:       netmaskIPv4,
	}
	if key.Addr.Is6() {
		s.AddressFamily, s.Netmask = unix.AF_INET6, netmaskIPv6
	}
	return s
}

// destination returns a real server as the library wants it.
func destination(addr netip.AddrPort, rs ipvs.RealServer) *mobyipvs.Destination {
	return &mobyipvs.Destination{
		Address:         addr.Addr().AsSlice(),
		Port:            addr.Port(),
		Weight:          int(rs.Weight),
		ConnectionFlags: uint32(rs.Forward),
	}
}

// keyOf returns the identity of a listed virtual server, and false for one of a firewall mark, which has no address.
func keyOf(s *mobyipvs.Service) (ipvs.Key, bool) {
	addr, ok := netip.AddrFromSlice(s.Address)
	if s.FWMark != 0 || !ok {
		return ipvs.Key{}, false
	}
	return ipvs.Key{Addr: addr, Protocol: ipvs.Protocol(s.Protocol), Port: s.Port}, true
}

// settingsOf returns the settings of a listed virtual server. The kernel keeps a time-out without persistence; ipvsadm
// and we do not speak of it.
func settingsOf(s *mobyipvs.Service) ipvs.Settings {
	settings := ipvs.Settings{Scheduler: s.SchedName, Flags: ipvs.Flags(s.Flags) &^ ipvs.Hashed}
	if settings.Flags&ipvs.Persistent != 0 {
		settings.Timeout = s.Timeout
	}
	return settings
}

// realOf returns a listed real server.
func realOf(d *mobyipvs.Destination) (netip.AddrPort, ipvs.RealServer, error) {
	addr, ok := netip.AddrFromSlice(d.Address)
	if !ok {
		return netip.AddrPort{}, ipvs.RealServer{}, fmt.Errorf("the kernel gave the address %v", d.Address)
	}
	return netip.AddrPortFrom(addr, d.Port), ipvs.RealServer{
		Weight:  uint32(d.Weight),
		Forward: ipvs.Forward(d.ConnectionFlags & mobyipvs.ConnectionFlagFwdMask),
	}, nil
}
