package direct

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/inetconf"
)

// devices creates the tunnels, or corrects those that exist.
func (t *tunnels) devices(d *Driver) error {
	for tier := range devices {
		if err := t.device(d, tier); err != nil {
			return err
		}
	}
	return nil
}

// wanted returns a tunnel as it should be. Its second device shares the UDP port of the first.
func (t *tunnels) wanted(d *Driver, tier int) *netlink.Vxlan {
	attrs := netlink.NewLinkAttrs()
	mac := hardwareAddr(t.self)
	attrs.Name, attrs.MTU, attrs.HardwareAddr = devices[tier], t.mtu, mac[:]
	return &netlink.Vxlan{LinkAttrs: attrs, VxlanId: tier + 1, SrcAddr: t.self.AsSlice(), Port: int(d.cfg.Port)}
}

// same reports whether an existing device has all that only a new device can have, apart from IPv6.
func same(have, want *netlink.Vxlan) bool {
	return have.VxlanId == want.VxlanId && have.Port == want.Port && have.SrcAddr.Equal(want.SrcAddr) && !have.Learning &&
		have.Group == nil && have.VtepDevIndex == 0 && slices.Equal(have.HardwareAddr, want.HardwareAddr)
}

func (t *tunnels) device(d *Driver, tier int) error {
	want := t.wanted(d, tier)
	link, err := d.link.LinkByName(want.Name)
	var missing netlink.LinkNotFoundError
	if err != nil && !errors.As(err, &missing) {
		return fmt.Errorf("find interface %s: %w", want.Name, err)
	}
	if err == nil {
		have, is := link.(*netlink.Vxlan)
		if !is {
			return nameTaken(link)
		}
		if same(have, want) && (!t.has6 || enablesIPv6(want.Name)) {
			return t.complete(d, tier, have)
		}
		if err := d.link.LinkDel(link); err != nil {
			return fmt.Errorf("delete interface %s: %w", want.Name, err)
		}
	}
	if err := d.link.LinkAdd(want); err != nil {
		return problemOf(want, err)
	}
	if link, err = d.link.LinkByName(want.Name); err != nil {
		return fmt.Errorf("find interface %s: %w", want.Name, err)
	}
	return t.complete(d, tier, link.(*netlink.Vxlan))
}

func nameTaken(link netlink.Link) error {
	err := fmt.Errorf("interface %s is of kind %s: delete or rename it", link.Attrs().Name, link.Type())
	return &Problem{NameTaken, err}
}

// problemOf returns the reason why a tunnel cannot be added or set up.
func problemOf(want *netlink.Vxlan, err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return &Problem{NoVXLAN, fmt.Errorf("add interface %s: %w: run \"modprobe vxlan\" on the node", want.Name, err)}
	case errors.Is(err, unix.EADDRINUSE), errors.Is(err, unix.EEXIST):
		return &Problem{PortTaken, fmt.Errorf(
			"add interface %s: UDP port %d is in use (%w): configure another one on all nodes", want.Name, want.Port, err)}
	}
	return fmt.Errorf("add interface %s: %w", want.Name, err)
}

// complete sets what can be changed in a device.
func (t *tunnels) complete(d *Driver, tier int, have *netlink.Vxlan) error {
	t.index[tier] = have.Index
	if have.MTU != t.mtu {
		if err := d.link.LinkSetMTU(have, t.mtu); err != nil {
			return fmt.Errorf("set the MTU of interface %s to %d: %w", have.Name, t.mtu, err)
		}
	}
	if err := setSysctls(have, sysctls(tier, t.has6)); err != nil {
		return err
	}
	for _, name := range []string{"accept_ra", "autoconf"} { // where they are read-only, the rules alone drop advertisements
		_ = os.WriteFile(conf6+have.Name+"/"+name, []byte("0"), 0o644)
	}
	if have.RawFlags&unix.IFF_NOARP == 0 { // all neighbors are known, and no address is announced there
		if err := d.link.LinkSetARPOff(have); err != nil {
			return fmt.Errorf("disable ARP on interface %s: %w", have.Name, err)
		}
	}
	if have.Flags&net.FlagUp == 0 {
		if err := d.link.LinkSetUp(have); err != nil {
			return problemOf(t.wanted(d, tier), err)
		}
	}
	missing, err := t.missingAddrs(d, tier)
	if err != nil {
		return err
	}
	for _, addr := range missing {
		if err := d.link.AddrReplace(have, addr); err != nil {
			return fmt.Errorf("add %v to interface %s: %w", addr.IPNet, have.Name, err)
		}
	}
	return nil
}

func (t *tunnels) missingAddrs(d *Driver, tier int) ([]*netlink.Addr, error) {
	link := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: devices[tier], Index: t.index[tier]}}
	have, err := complete(func() ([]netlink.Addr, error) { return d.link.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the addresses of interface %s: %w", devices[tier], err)
	}
	return slices.DeleteFunc(tunnelAddrs(tier, t.has6), func(want *netlink.Addr) bool {
		return slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IPNet.String() == want.IPNet.String() })
	}), nil
}

// deviceIntact reports whether a tunnel is as this package made it.
func (t *tunnels) deviceIntact(d *Driver, tier int) bool {
	want := t.wanted(d, tier)
	link, err := d.link.LinkByName(want.Name)
	if err != nil {
		return false
	}
	have, is := link.(*netlink.Vxlan)
	if !is || have.Index != t.index[tier] || !same(have, want) || have.MTU != t.mtu {
		return false
	}
	if have.Flags&net.FlagUp == 0 || have.RawFlags&unix.IFF_NOARP == 0 {
		return false
	}
	missing, err := t.missingAddrs(d, tier)
	return err == nil && len(missing) == 0
}

// remove deletes the tunnels.
func (t *tunnels) remove(d *Driver) error {
	var errs []error
	for _, name := range devices {
		link, err := d.link.LinkByName(name)
		var missing netlink.LinkNotFoundError
		switch {
		case errors.As(err, &missing):
			continue
		case err != nil:
			errs = append(errs, fmt.Errorf("find interface %s: %w", name, err))
			continue
		}
		if _, ours := link.(*netlink.Vxlan); !ours {
			continue
		}
		if err := d.link.LinkDel(link); err != nil {
			errs = append(errs, fmt.Errorf("delete interface %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// sysctl is a kernel parameter of a device. Where netlink can set it, no right to write to /proc/sys is needed: that is
// read-only in a container without privileges.
type sysctl struct {
	path, value string
	netlink     func(link netlink.Link) error // nil: only a write sets it
}

const addrGenModeNone = 1 // IN6_ADDR_GEN_MODE_NONE (include/uapi/linux/if_link.h)

// sysctls return the parameters of a tunnel. A strict reverse path filter would drop what comes out of it; 2 is looser
// than a 1 for all interfaces, and the greatest value is in effect. The kernel generates no IPv6 address, also if IPv6
// is enabled later.
func sysctls(tier int, has6 bool) []sysctl {
	ipv4, ipv6 := "/proc/sys/net/ipv4/conf/"+devices[tier]+"/", conf6+devices[tier]+"/"
	all := []sysctl{
		{ipv4 + "rp_filter", "2", func(l netlink.Link) error { return inetconf.Set(l, inetconf.RPFilter, 2) }},
		{ipv4 + "forwarding", "1", func(l netlink.Link) error { return inetconf.Set(l, inetconf.Forwarding, 1) }},
	}
	if _, err := os.Stat(ipv6); has6 || err == nil {
		generate := func(l netlink.Link) error { return netlink.LinkSetIP6AddrGenMode(l, addrGenModeNone) }
		all = append(all, sysctl{ipv6 + "addr_gen_mode", "1", generate})
	}
	if has6 {
		all = append(all, sysctl{disableIPv6(devices[tier]), "0", nil})
	}
	return all
}

// setSysctls sets the parameters that differ.
func setSysctls(link netlink.Link, all []sysctl) error {
	for _, s := range all {
		if s.met() {
			continue
		}
		set := s.netlink
		if set == nil {
			set = func(netlink.Link) error { return os.WriteFile(s.path, []byte(s.value), 0o644) }
		}
		if err := set(link); err != nil {
			return fmt.Errorf("set sysctl %s to %s: %w", strings.TrimPrefix(s.path, "/proc/sys/"), s.value, err)
		}
	}
	return nil
}

func sysctlsMet(tier int, has6 bool) bool {
	return !slices.ContainsFunc(sysctls(tier, has6), func(s sysctl) bool { return !s.met() })
}

func (s sysctl) met() bool {
	value, err := os.ReadFile(s.path)
	return err == nil && string(value) == s.value+"\n"
}

// tunnelAddrs are the addresses of a device, which give it the route to its gateways; the loose reverse path filter
// needs one of IPv4, too. They are the same on all nodes.
func tunnelAddrs(tier int, has6 bool) []*netlink.Addr {
	addrs := []*netlink.Addr{{
		IPNet: &net.IPNet{IP: net.IPv4(169, 254, 64, byte(tier+1)).To4(), Mask: net.CIDRMask(network4.Bits(), 32)},
		Scope: unix.RT_SCOPE_LINK,
	}}
	if has6 {
		ip := net.ParseIP("fe80::73:" + strconv.Itoa(tier+1))
		addrs = append(addrs, &netlink.Addr{
			IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(64, 128)}, Scope: unix.RT_SCOPE_LINK, Flags: unix.IFA_F_NODAD,
		})
	}
	return addrs
}
