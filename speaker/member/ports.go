package member

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/neighbor"
)

// ports are the interfaces of the network namespace, with the attributes that datagrams need.
type ports struct {
	byName  map[string]port
	byIndex map[int]string
}

type port struct {
	index int
	// v4 is set if it has an IPv4 subnet, up if it has carrier. A single address, such as a retained one, is no subnet.
	v4, up bool
	link   Link
}

// lister reads interfaces in the network namespace of the thread that created it.
type lister struct {
	handle *netlink.Handle
	rounds
	indexes map[string]int // of the interfaces of the last list that have carrier
}

func newLister() (*lister, error) {
	// Naming a namespace, even the current one, needs CAP_SYS_ADMIN: the library enters it.
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	table, err := neighbor.Open()
	if err != nil {
		handle.Close()
		return nil, err
	}
	// The kernel then lists the addresses of one interface only; older kernels send all of them.
	_ = handle.SetStrictCheck(true)
	return &lister{handle: handle, rounds: rounds{table: table}}, nil
}

func (l *lister) close() {
	l.handle.Close()
	l.table.Close()
}

// list reads the interfaces of the given names; missing ones are omitted.
func (l *lister) list(names []string) (ports, error) {
	p := ports{byName: map[string]port{}, byIndex: map[int]string{}}
	l.indexes = map[string]int{}
	for _, name := range names {
		link, err := l.handle.LinkByName(name)
		var missing netlink.LinkNotFoundError
		if errors.As(err, &missing) {
			continue
		}
		if err != nil {
			return ports{}, fmt.Errorf("find interface %s: %w", name, err)
		}
		addrs, err := l.handle.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return ports{}, fmt.Errorf("list addresses of interface %s: %w", name, err)
		}
		attrs := link.Attrs()
		one := port{index: attrs.Index, link: Link{Name: name}}
		var subnets []netip.Prefix
		for _, a := range addrs {
			addr, _ := netip.AddrFromSlice(a.IP)
			addr = addr.Unmap()
			bits, _ := a.Mask.Size()
			one.v4 = one.v4 || addr.Is4() && bits < addr.BitLen()
			subnets = append(subnets, netip.PrefixFrom(addr, bits))
		}
		one.up = attrs.RawFlags&unix.IFF_RUNNING != 0
		one.link.Keys, one.link.IPv4 = SegmentKeys(name, subnets), one.v4
		if len(attrs.HardwareAddr) == 6 {
			one.link.MAC = [6]byte(attrs.HardwareAddr)
		}
		p.byName[name], p.byIndex[attrs.Index] = one, name
		if one.up {
			l.indexes[name] = attrs.Index
		}
	}
	return p, nil
}
