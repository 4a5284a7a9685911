package l2

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/link/dump"
	"github.com/ironlb/ironlb/speaker/view"
)

// link is a network interface that can serve addresses.
type link struct {
	index int
	name  string
	mac   mac
	// path changes when packets may take another way to the network: carrier returned, or a bond selected another port.
	// Then the addresses must be announced again.
	path path
}

// path identifies the way from an interface to the wire: the carrier changes of the interface and all below it, and the
// active port of bonds.
type path struct {
	carrier uint64
	ports   int
}

// same reports whether sockets and announcements of one link are still valid for the other.
func (l link) same(m link) bool { return l == m }

// Links lists the interfaces of the calling thread's network namespace that can serve addresses: up, with carrier,
// Ethernet, and not a port of another one.
func Links() ([]view.Link, error) {
	n, err := observe()
	if err != nil {
		return nil, err
	}
	out := make([]view.Link, 0, len(n.links))
	for _, l := range n.links {
		out = append(out, view.Link{Name: l.name, Subnets: n.subnets[l.index], Index: l.index,
			MAC: net.HardwareAddr(l.mac[:]).String(), MTU: n.mtus[l.index]})
	}
	return out, shareSubnets(out)
}

// shareSubnets leaves each subnet of several links to one of them: that of the kernel's route, else the first. A host
// that answered on both would get packets on an interface where rp_filter drops them.
func shareSubnets(links []view.Link) error {
	having := map[netip.Prefix][]int{}
	for at, l := range links {
		for _, subnet := range l.Subnets {
			having[subnet] = append(having[subnet], at)
		}
	}
	for subnet, ats := range having {
		if len(ats) == 1 {
			continue
		}
		indexes := make([]int, 0, len(ats))
		for _, at := range ats {
			indexes = append(indexes, links[at].Index)
		}
		index, err := routeOf(subnet, indexes)
		if err != nil {
			return err
		}
		chosen := links[ats[max(0, slices.Index(indexes, index))]].Name
		for _, at := range ats {
			if l := &links[at]; l.Name != chosen {
				l.Subnets = slices.DeleteFunc(slices.Clone(l.Subnets), func(p netip.Prefix) bool { return p == subnet })
				if l.Elsewhere == nil {
					l.Elsewhere = map[netip.Prefix]string{}
				}
				l.Elsewhere[subnet] = chosen
			}
		}
	}
	return nil
}

// routeOf returns which of the interfaces has the kernel's route to a subnet: that of the lowest metric, and of equal
// ones the first. It returns 0 if none has one.
func routeOf(subnet netip.Prefix, indexes []int) (index int, err error) {
	routes, err := dump.Complete(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(nl.GetIPFamily(subnet.Addr().AsSlice()), &netlink.Route{
			Table: unix.RT_TABLE_MAIN, Dst: &net.IPNet{IP: subnet.Addr().AsSlice(), Mask: net.CIDRMask(subnet.Bits(), subnet.Addr().BitLen())},
		}, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return 0, fmt.Errorf("list the routes to %v: %w", subnet, err)
	}
	metric := 0
	for _, r := range routes {
		if slices.Contains(indexes, r.LinkIndex) && (index == 0 || r.Priority < metric) {
			index, metric = r.LinkIndex, r.Priority
		}
	}
	return index, nil
}

// network is the kernel's state of all interfaces.
type network struct {
	links []link // by index
	// unfit is the reason why an interface that may be up is not among the links.
	unfit map[string]error
	// ours are the hardware addresses of all interfaces.
	ours map[mac]struct{}
	// subnets and mtus are those of the interfaces, by index.
	subnets map[int][]netip.Prefix
	mtus    map[int]int
}

func observe() (*network, error) {
	all, err := dump.Complete(devices)
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	by := map[int]device{}
	for _, d := range all {
		by[d.Attrs().Index] = d
	}
	subnets, err := subnets()
	if err != nil {
		return nil, err
	}
	n := &network{unfit: map[string]error{}, ours: map[mac]struct{}{}, subnets: subnets, mtus: map[int]int{}}
	for _, d := range all {
		at := d.Attrs()
		if len(at.HardwareAddr) == len(mac{}) {
			n.ours[mac(at.HardwareAddr)] = struct{}{}
		}
		if err := fit(at, by); err != nil {
			n.unfit[at.Name] = err
			continue
		}
		const up = unix.IFF_UP | unix.IFF_LOWER_UP
		if at.RawFlags&up == up {
			n.mtus[at.Index] = at.MTU
			n.links = append(n.links, link{index: at.Index, name: at.Name, mac: mac(at.HardwareAddr), path: pathOf(d, by, 0)})
		}
	}
	slices.SortFunc(n.links, func(a, b link) int { return a.index - b.index })
	return n, nil
}

// fit returns why an interface cannot serve addresses, even when it is up.
func fit(at *netlink.LinkAttrs, by map[int]device) error {
	switch {
	case at.RawFlags&unix.IFF_LOOPBACK != 0:
		return errors.New("it is the loopback interface")
	case at.EncapType != "ether" || len(at.HardwareAddr) != len(mac{}):
		return fmt.Errorf("it is not Ethernet but %q: name an Ethernet interface in the L2Advertisement", at.EncapType)
	case at.RawFlags&unix.IFF_NOARP != 0:
		return errors.New("ARP is off there: enable it (ip link set dev NAME arp on), or name another interface")
	case at.RawFlags&unix.IFF_BROADCAST == 0:
		return errors.New("it cannot broadcast: name another interface")
	case at.MasterIndex != 0 && by[at.MasterIndex].kind() != "vrf":
		return fmt.Errorf("it is a port: its frames are received on its master; name %s", by[at.MasterIndex].name())
	}
	return nil
}

// device is an interface with an attribute that the library omits.
type device struct {
	netlink.Link
	carrierChanges uint32
}

func (d device) kind() string {
	if d.Link == nil {
		return ""
	}
	return d.Type()
}

func (d device) name() string {
	if d.Link == nil {
		return "that"
	}
	return d.Attrs().Name
}

// pathOf follows VLANs and similar interfaces down to their parents, bonds to their active port, and bridges to their
// ports except those of Pods and guests.
func pathOf(d device, by map[int]device, depth int) path {
	const deepest = 8 // maximum depth of stacked interfaces (MAX_NEST_DEV, include/linux/netdevice.h)
	if d.Link == nil || depth > deepest {
		return path{}
	}
	p := path{carrier: uint64(d.carrierChanges)}
	below := func(index int) {
		q := pathOf(by[index], by, depth+1)
		p.carrier, p.ports = p.carrier+q.carrier, p.ports+q.ports
	}
	switch dev := d.Link.(type) {
	case *netlink.Bond:
		p.ports = max(0, dev.ActiveSlave)
	case *netlink.Bridge:
		for index, port := range by {
			if port.Attrs().MasterIndex == d.Attrs().Index && port.kind() != "veth" && port.kind() != "tun" {
				below(index)
			}
		}
	case *netlink.Vlan, *netlink.Macvlan, *netlink.Macvtap, *netlink.IPVlan:
		if d.Attrs().ParentIndex != d.Attrs().Index {
			below(d.Attrs().ParentIndex)
		}
	}
	return p
}

// skipStats is RTEXT_FILTER_SKIP_STATS (include/uapi/linux/rtnetlink.h).
const skipStats = 1 << 3

// devices is netlink.LinkList with the carrier changes.
func devices() ([]device, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	out := make([]device, 0, len(messages))
	for _, m := range messages {
		l, err := netlink.LinkDeserialize(nil, m)
		if err != nil {
			return nil, err
		}
		attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfInfomsg:])
		if err != nil {
			return nil, err
		}
		d := device{Link: l}
		for _, a := range attrs {
			if a.Attr.Type == unix.IFLA_CARRIER_CHANGES && len(a.Value) >= 4 {
				d.carrierChanges = nl.NativeEndian().Uint32(a.Value)
			}
		}
		out = append(out, d)
	}
	return out, nil
}

// subnets returns the subnets of each interface, without link-local ones.
func subnets() (map[int][]netip.Prefix, error) {
	addrs, err := dump.Complete(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the addresses of the network interfaces: %w", err)
	}
	silent := withoutLinkLocal(addrs)
	out := map[int][]netip.Prefix{}
	for _, a := range addrs {
		p, ok := subnet(a.IPNet)
		if _, waits := silent[a.LinkIndex]; ok && !(waits && p.Addr().Is6()) && !slices.Contains(out[a.LinkIndex], p) {
			out[a.LinkIndex] = append(out[a.LinkIndex], p)
		}
	}
	for _, list := range out {
		slices.SortFunc(list, netip.Prefix.Compare)
	}
	return out, nil
}

// withoutLinkLocal returns the interfaces whose link-local addresses are all tentative or duplicates. The kernel
// solicits no neighbor there (net/ipv6/ndisc.c, ndisc_send_ns), so it cannot forward IPv6. An interface without a
// link-local address is not included.
func withoutLinkLocal(addrs []netlink.Addr) map[int]struct{} {
	out, usable := map[int]struct{}{}, map[int]bool{}
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); !ok || !addr.Is6() || !addr.IsLinkLocalUnicast() {
			continue
		}
		if a.Flags&unix.IFA_F_TENTATIVE == 0 || a.Flags&unix.IFA_F_OPTIMISTIC != 0 {
			usable[a.LinkIndex] = true
			delete(out, a.LinkIndex)
		} else if !usable[a.LinkIndex] {
			out[a.LinkIndex] = struct{}{}
		}
	}
	return out
}

func subnet(n *net.IPNet) (netip.Prefix, bool) {
	addr, ok := netip.AddrFromSlice(n.IP)
	addr = addr.Unmap()
	ones, _ := n.Mask.Size()
	if !ok || ones == addr.BitLen() || addr.IsLinkLocalUnicast() || addr.IsLoopback() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(addr, ones).Masked(), true
}
