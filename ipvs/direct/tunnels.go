package direct

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/inetconf"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
	"github.com/ironlb/ironlb/ipvs/routewatch"
)

// Device1 and Device2 are the names of the tunnels: to the node of a slot, and to the node that had the slot before.
const (
	Device1 = devicePrefix + "1"
	Device2 = devicePrefix + "2"

	devicePrefix = "ironlb-t"
)

var devices = [numTiers]string{first: Device1, second: Device2}

// tunnels are the known devices and their entries.
type tunnels struct {
	self  netip.Addr
	nodes []netip.Addr
	index [numTiers]int
	// has6 is set if the devices have IPv6.
	has6    bool
	entries map[entry]struct{}
	// obsolete are entries to delete when no rule refers to them any more.
	obsolete map[entry]struct{}
	mtu      int
	// underlay are the interfaces on which tunnel packets leave.
	underlay map[int]struct{}
}

// entry is a neighbor of a tunnel, or a forwarding entry of the device.
type entry struct {
	tier int
	fdb  bool
	addr netip.Addr
	mac  [6]byte
}

// hardwareAddr returns the address of a node's tunnels. A frame with the receiver's own address as its source would be
// dropped, so each node has another one.
func hardwareAddr(node netip.Addr) (mac [6]byte) {
	if node.Is4() {
		raw := node.As4()
		mac[0], mac[1] = 0x02, 0x4c
		copy(mac[2:], raw[:])
		return mac
	}
	hash := fnv.New64a()
	raw := node.As16()
	hash.Write(raw[:])
	copy(mac[:], hash.Sum(nil))
	mac[0] = 0x06 // locally administered, and none of IPv4
	return mac
}

// entriesOf returns the entries of the tunnels for some nodes; numbers are their indices.
func (t *tunnels) entriesOf(into map[entry]struct{}, numbers []int, nodes []netip.Addr) {
	for _, i := range numbers {
		if nodes[i] == t.self || !nodes[i].IsValid() {
			continue
		}
		mac := hardwareAddr(nodes[i])
		for tier := range devices {
			into[entry{tier: tier, fdb: true, addr: nodes[i], mac: mac}] = struct{}{}
			into[entry{tier: tier, addr: gateway4(uint16(i)), mac: mac}] = struct{}{}
			if t.has6 {
				into[entry{tier: tier, addr: gateway6(uint16(i)), mac: mac}] = struct{}{}
			}
		}
	}
}

// sources returns the addresses from which the table of a family accepts packets of the tunnels.
func (t *tunnels) sources(want ipvs.Direct, family int) map[netip.Addr]struct{} {
	sources := make(map[netip.Addr]struct{})
	if familyOf(want.Self) != family {
		return sources
	}
	for _, addr := range want.Nodes {
		if addr.IsValid() && addr != want.Self {
			sources[addr] = struct{}{}
		}
	}
	return sources
}

// ensure creates and corrects the tunnels, and adds the entries of new nodes. Without full it relies on the known
// state.
func (t *tunnels) ensure(d *Driver, want ipvs.Direct, full bool) (frame, error) {
	if !full && want.Self == t.self && slices.Equal(want.Nodes, t.nodes) {
		return d.frame, nil
	}
	full = full || want.Self != t.self
	added := make([]int, 0, len(want.Nodes))
	for i, addr := range want.Nodes {
		if full || i >= len(t.nodes) || t.nodes[i] != addr {
			added = append(added, i)
		}
	}
	if full {
		*t = tunnels{self: want.Self, has6: hasIPv6()}
	}
	if err := t.measure(d, want, added); err != nil {
		return frame{}, err
	}
	if err := t.devices(d); err != nil {
		return frame{}, err
	}
	if full {
		var err error
		if t.entries, err = t.list(d); err != nil {
			return frame{}, err
		}
	}
	if err := t.add(d, want, added); err != nil {
		return frame{}, err
	}
	t.nodes = slices.Clone(want.Nodes)
	return frame{self: want.Self, port: d.cfg.Port, mtu: t.mtu, devices: t.index}, nil
}

// add sets the missing entries, and finds the obsolete ones.
func (t *tunnels) add(d *Driver, want ipvs.Direct, added []int) error {
	wanted := make(map[entry]struct{})
	t.entriesOf(wanted, added, want.Nodes)
	for e := range wanted {
		if _, has := t.entries[e]; has {
			continue
		}
		if err := d.link.NeighSet(t.neighbor(e)); err != nil {
			return fmt.Errorf("add %v: %w", e, err)
		}
		t.entries[e] = struct{}{}
	}
	all := make([]int, len(want.Nodes))
	for i := range all {
		all[i] = i
	}
	clear(wanted)
	t.entriesOf(wanted, all, want.Nodes)
	t.obsolete = make(map[entry]struct{})
	for e := range t.entries {
		if _, is := wanted[e]; !is {
			t.obsolete[e] = struct{}{}
		}
	}
	return nil
}

// prune deletes the obsolete entries. One of a neighbor that has another hardware address now is replaced already.
func (t *tunnels) prune(d *Driver) error {
	for e := range t.obsolete {
		delete(t.entries, e)
		if !e.fdb && t.replaced(e) {
			continue
		}
		if err := d.link.NeighDel(t.neighbor(e)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete %v: %w", e, err)
		}
	}
	t.obsolete = nil
	return nil
}

func (t *tunnels) replaced(e entry) bool {
	peer, ok := peerOf(e.addr)
	if !ok || int(peer) >= len(t.nodes) || !t.nodes[peer].IsValid() {
		return false
	}
	e.mac = hardwareAddr(t.nodes[peer])
	_, has := t.entries[e]
	return has
}

func (t *tunnels) neighbor(e entry) *netlink.Neigh {
	n := &netlink.Neigh{
		LinkIndex: t.index[e.tier], State: unix.NUD_PERMANENT, IP: e.addr.AsSlice(), HardwareAddr: e.mac[:],
	}
	if e.fdb {
		n.Family, n.Flags = unix.AF_BRIDGE, unix.NTF_SELF
	}
	return n
}

func (e entry) String() string {
	kind := "neighbor"
	if e.fdb {
		kind = "forwarding entry"
	}
	return fmt.Sprintf("%s %v lladdr %v dev %s", kind, e.addr, net.HardwareAddr(e.mac[:]), devices[e.tier])
}

// list returns the entries of the devices.
func (t *tunnels) list(d *Driver) (map[entry]struct{}, error) {
	entries := make(map[entry]struct{})
	for tier, index := range t.index {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
			found, err := complete(func() ([]netlink.Neigh, error) { return d.link.NeighList(index, family) })
			if err != nil {
				return nil, fmt.Errorf("list the neighbors of %s: %w", devices[tier], err)
			}
			for _, n := range found {
				addr, ok := netip.AddrFromSlice(n.IP)
				if !ok || n.State&unix.NUD_PERMANENT == 0 || len(n.HardwareAddr) != 6 {
					continue // the kernel's own, for multicast
				}
				entries[entry{tier: tier, fdb: family == unix.AF_BRIDGE, addr: addr.Unmap(), mac: [6]byte(n.HardwareAddr)}] = struct{}{}
			}
		}
	}
	return entries, nil
}

// complete repeats a dump that a concurrent change interrupted.
func complete[T any](list func() ([]T, error)) ([]T, error) {
	const tries = 5
	for range tries - 1 {
		if all, err := list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return list()
}

// measure sets the MTU to what fits the routes to all nodes.
func (t *tunnels) measure(d *Driver, want ipvs.Direct, added []int) error {
	if d.cfg.MTU != 0 {
		t.mtu = d.cfg.MTU
		return nil
	}
	overhead := families[familyOf(want.Self)].vxlan
	least, links := 0, make(map[int]int)
	if t.underlay == nil {
		t.underlay = make(map[int]struct{})
	}
	for _, i := range added {
		if addr := want.Nodes[i]; addr.IsValid() && addr != want.Self {
			n, err := t.pathMTU(d, addr, links)
			if err != nil {
				return err
			}
			if n != 0 && (least == 0 || n < least) {
				least = n
			}
		}
	}
	switch {
	case least != 0 && (t.mtu == 0 || least-overhead < t.mtu):
		t.mtu = least - overhead
	case t.mtu == 0:
		t.mtu = 1500 - overhead
	}
	return nil
}

// pathMTU returns the MTU of the route to a node, 0 without a route.
func (t *tunnels) pathMTU(d *Driver, addr netip.Addr, links map[int]int) (int, error) {
	routes, err := d.link.RouteGet(addr.AsSlice())
	if err != nil || len(routes) == 0 {
		return 0, nil // no route yet; the packets are lost until there is one
	}
	index := routes[0].LinkIndex
	if _, known := links[index]; !known {
		link, err := d.link.LinkByIndex(index)
		if err != nil {
			return 0, fmt.Errorf("read the interface of the route to %v: %w", addr, err)
		}
		links[index] = link.Attrs().MTU
		t.underlay[index] = struct{}{}
	}
	if routes[0].MTU != 0 {
		return min(routes[0].MTU, links[index]), nil
	}
	return links[index], nil
}

// intact reports whether the devices and their entries are as known. It lists them only after an event.
func (t *tunnels) intact(d *Driver) (bool, error) {
	if t.index[first] == 0 {
		return true, nil
	}
	if t.has6 != hasIPv6() {
		return false, nil
	}
	for tier := range devices {
		if !sysctlsMet(tier, t.has6) {
			return false, nil
		}
	}
	changed, err := d.events.Changed(func(m syscall.NetlinkMessage) bool {
		index, ok := routewatch.Interface(m)
		_, under := t.underlay[index]
		return ok && (under || slices.Contains(t.index[:], index))
	})
	if err != nil || !changed {
		return err == nil, err
	}
	again := tunnels{self: t.self, nodes: t.nodes, index: t.index}
	all := make([]int, len(t.nodes))
	for i := range all {
		all[i] = i
	}
	if err := again.measure(d, ipvs.Direct{Self: t.self, Nodes: t.nodes}, all); err != nil || again.mtu != t.mtu {
		return false, err
	}
	for tier := range devices {
		if !t.deviceIntact(d, tier) {
			return false, nil
		}
	}
	entries, err := t.list(d)
	return err == nil && maps.Equal(entries, t.entries), err
}

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

// noIPv6 is why a node cannot direct IPv6.
func noIPv6() error {
	return &Problem{NoIPv6, errors.New("the tunnels cannot have IPv6: load the kernel module ipv6, and set the sysctl " +
		"net.ipv6.conf.default.disable_ipv6 to 0")}
}

// conf6 has the kernel's parameters of IPv6.
const conf6 = "/proc/sys/net/ipv6/conf/"

// exists reports whether the kernel has a family. Its table exists whenever the tunnels do, whatever is directed: all
// that it does not accept ends there.
func exists(family int) bool {
	_, err := os.Stat(conf6)
	return family == nftwatch.IP || err == nil
}

// hasIPv6 reports whether all tunnels have IPv6, or can.
func hasIPv6() bool {
	for _, name := range devices {
		if !enablesIPv6(name) && !enablesIPv6("default") {
			return false
		}
	}
	return true
}

// enablesIPv6 reports whether a device has IPv6, or this process may enable it: /proc/sys is read-only in a container
// without privileges. A new device has what "default" has. The kernel has no IPv6 if that is missing.
func enablesIPv6(device string) bool {
	path := disableIPv6(device)
	value, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err == nil && string(value) == "0\n" {
		return true
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	return file.Close() == nil
}

// disableIPv6 is the path of a parameter of a device that only a write sets.
func disableIPv6(device string) string { return conf6 + device + "/disable_ipv6" }
