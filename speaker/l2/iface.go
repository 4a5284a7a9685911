package l2

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/plan"
)

// link is a network interface on which addresses can be answered for.
type link struct {
	index int
	name  string
	mac   mac
	// subnets are those of its addresses.
	subnets []netip.Prefix
}

// same tells whether a socket opened for one link still serves the other.
func (l link) same(m link) bool { return l.index == m.index && l.name == m.name && l.mac == m.mac }

// links lists the interfaces of this network namespace that are up, have carrier and speak ARP over Ethernet. Ports of a
// bridge or a bond are not among them: what comes in there is the master's.
func links() ([]link, error) {
	all, err := whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	addrs, err := whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list the addresses of the network interfaces: %w", err)
	}
	subnets := map[int][]netip.Prefix{}
	for _, a := range addrs {
		if p, ok := subnet(a.IPNet); ok {
			subnets[a.LinkIndex] = append(subnets[a.LinkIndex], p)
		}
	}
	kinds := map[int]string{}
	for _, l := range all {
		kinds[l.Attrs().Index] = l.Type()
	}
	var out []link
	for _, l := range all {
		at := l.Attrs()
		if !speaksARP(at) || at.MasterIndex != 0 && kinds[at.MasterIndex] != "vrf" {
			continue
		}
		out = append(out, link{index: at.Index, name: at.Name, mac: mac(at.HardwareAddr), subnets: subnets[at.Index]})
	}
	slices.SortFunc(out, func(a, b link) int { return a.index - b.index })
	return out, nil
}

// whole repeats a list that a change of the interfaces cut short, as happens while Pods come and go.
func whole[T any](list func() ([]T, error)) ([]T, error) {
	const tries = 5
	for range tries - 1 {
		if all, err := list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return list()
}

func speaksARP(at *netlink.LinkAttrs) bool {
	const up = unix.IFF_UP | unix.IFF_LOWER_UP | unix.IFF_BROADCAST
	return at.RawFlags&up == up && at.RawFlags&(unix.IFF_LOOPBACK|unix.IFF_NOARP) == 0 && len(at.HardwareAddr) == 6
}

func subnet(n *net.IPNet) (netip.Prefix, bool) {
	addr, ok := netip.AddrFromSlice(n.IP.To4())
	ones, _ := n.Mask.Size()
	if !ok || ones == 32 {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(addr, ones).Masked(), true
}

// Links lists the interfaces on which addresses can be answered for.
func Links() ([]plan.Link, error) {
	all, err := links()
	if err != nil {
		return nil, err
	}
	out := make([]plan.Link, 0, len(all))
	for _, l := range all {
		out = append(out, plan.Link{Name: l.name, Subnets: l.subnets})
	}
	return out, nil
}

// serves tells whether an announcement of the address wants this interface.
func (l link) serves(ann plan.Announcement) bool { return slices.Contains(ann.Interfaces, l.name) }
