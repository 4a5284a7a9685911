// Package neighbor probes hosts by ARP and neighbor discovery, through the kernel's neighbor table: the kernel sends the
// request, and its entry shows whether there was an answer. So no socket receives all ARP packets of the network.
//
// A round is: read the Entry; unless it is Static, Probe the host; later read the Entry again, and ask Answered about
// it. speaker/member probes the nodes whose speaker is replaced so, speaker/reach nodes, gateways and other hosts.
package neighbor

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/link/dump"
)

// Table is the neighbor table of a network namespace.
type Table struct {
	// handle does not use the strict check, which rejects the library's padding of netlink.Ndmsg.
	handle *netlink.Handle
	socket map[int]*nl.SocketHandle
}

// Tick is the resolution of the times in the table (USER_HZ in include/asm-generic/param.h).
const Tick = 10 * time.Millisecond

const (
	// maxHosts is how many hosts Hosts returns, seenWithin how recently each must have answered.
	maxHosts   = 4
	seenWithin = 2 * time.Minute
)

// Open opens the table in the network namespace of the calling thread.
func Open() (*Table, error) {
	// Naming a namespace, even the current one, needs CAP_SYS_ADMIN: the library enters it.
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket for the neighbor table: %w", err)
	}
	t := &Table{handle: handle}
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("open a netlink socket for the neighbor table: %w", err)
	}
	t.socket = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	return t, nil
}

// Close closes the sockets.
func (t *Table) Close() {
	t.handle.Close()
	for _, s := range t.socket {
		s.Close()
	}
}

// Entry returns the entry of a host on an interface, nil if there is none.
func (t *Table) Entry(index int, addr netip.Addr) (*netlink.Neigh, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	request.Sockets = t.socket
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	request.AddData(&netlink.Ndmsg{Family: uint8(family), Index: uint32(index)})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, addr.AsSlice()))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the neighbor %v: %w", addr, err)
	case len(messages) == 0:
		return nil, nil
	}
	return netlink.NeighDeserialize(messages[0])
}

// Static reports whether an administrator has set an entry: it shows nothing of its host.
func Static(have *netlink.Neigh) bool {
	return have != nil && have.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0
}

// Probe makes the kernel send a request now, and reports whether it does: a host without an address in its entry is
// asked at mac if that is known, else not before the kernel has a packet for it.
//
// Setting an entry to the state PROBE that it already has has no effect, so it becomes stale first
// (net/core/neighbour.c: __neigh_update). The rest of the entry stays.
func (t *Table) Probe(index int, addr netip.Addr, have *netlink.Neigh, mac [6]byte) (sent bool, err error) {
	entry := netlink.Neigh{LinkIndex: index, IP: addr.AsSlice(), State: unix.NUD_PROBE}
	if have == nil || have.State == unix.NUD_NONE || have.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE) != 0 {
		if mac == ([6]byte{}) {
			return false, nil
		}
		entry.HardwareAddr = mac[:]
	}
	if have == nil {
		err := t.handle.NeighAdd(&entry)
		if err == nil || errors.Is(err, unix.EEXIST) { // added meanwhile, which must not be replaced
			return err == nil, nil
		}
		return false, fmt.Errorf("probe the neighbor %v: %w", addr, err)
	}
	entry.Flags, entry.FlagsExt = have.Flags&^unix.NTF_USE, have.FlagsExt&^netlink.NTF_EXT_MANAGED
	for _, state := range []int{unix.NUD_STALE, unix.NUD_PROBE} {
		entry.State = state
		if err := t.handle.NeighSet(&entry); err != nil {
			return false, fmt.Errorf("probe the neighbor %v: %w", addr, err)
		}
	}
	if entry.FlagsExt == have.FlagsExt {
		return true, nil
	}
	// The kernel maintains the entry itself (managed), as Cilium sets it: it is probed only without that flag.
	entry.FlagsExt, entry.HardwareAddr = have.FlagsExt, nil
	if err := t.handle.NeighSet(&entry); err != nil {
		return false, fmt.Errorf("restore the managed flag of the neighbor %v: %w", addr, err)
	}
	return true, nil
}

// Answered reports whether an entry, read at a time, shows an answer to a probe sent since, and when it arrived. Only an
// answer makes a probed or incomplete entry reachable (net/ipv4/arp.c: arp_process; RFC 4861 section 7.2.5). An entry in
// state DELAY becomes reachable without one (net/core/neighbour.c: neigh_timer_handler), but Probe leaves none in it.
func Answered(have *netlink.Neigh, read, since time.Time) (at time.Time, ok bool) {
	if have == nil || have.State&unix.NUD_REACHABLE == 0 || len(have.HardwareAddr) != 6 {
		return time.Time{}, false
	}
	// The entry was not reachable when the probe was sent. Other packets may confirm it later.
	at = read.Add(-time.Duration(max(have.Updated, have.Confirmed)) * Tick)
	if at.Before(since) {
		at = since // the clock of the table is coarse
	}
	return at, true
}

// Route returns the interface by which a host is reached: directly, or through a gateway. Without a route it returns
// false.
func (t *Table) Route(addr netip.Addr) (index int, direct, ok bool) {
	routes, err := t.handle.RouteGet(addr.AsSlice())
	if err != nil || len(routes) != 1 {
		return 0, false, false
	}
	return routes[0].LinkIndex, routes[0].Gw == nil && routes[0].Type == unix.RTN_UNICAST, true
}

// Hosts returns up to maxHosts hosts on an interface that have answered recently, the latest first, without those that
// except reports.
func (t *Table) Hosts(name string, except func(netip.Addr, [6]byte) bool) (out []netip.Addr, err error) {
	link, err := t.handle.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", name, err)
	}
	list, err := dump.Complete(func() ([]netlink.Neigh, error) {
		return t.handle.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
	})
	if err != nil {
		return nil, fmt.Errorf("list the neighbors on interface %s: %w", name, err)
	}
	slices.SortFunc(list, func(a, b netlink.Neigh) int { return cmp.Compare(a.Confirmed, b.Confirmed) })
	for _, n := range list {
		addr, _ := netip.AddrFromSlice(n.IP)
		addr = addr.Unmap()
		usable := n.State&(unix.NUD_REACHABLE|unix.NUD_STALE|unix.NUD_DELAY|unix.NUD_PROBE) != 0 && len(n.HardwareAddr) == 6
		if !usable || addr.IsLinkLocalUnicast() || addr.IsMulticast() || time.Duration(n.Confirmed)*Tick > seenWithin ||
			except(addr, [6]byte(n.HardwareAddr)) {
			continue
		}
		if index, direct, ok := t.Route(addr); !ok || !direct || index != link.Attrs().Index {
			continue
		}
		if out = append(out, addr); len(out) == maxHosts {
			break
		}
	}
	return out, nil
}

// Interface returns the index of an interface, if it exists and has carrier.
func (t *Table) Interface(name string) (index int, ok bool) {
	link, err := t.handle.LinkByName(name)
	if err != nil || link.Attrs().RawFlags&unix.IFF_RUNNING == 0 {
		return 0, false
	}
	return link.Attrs().Index, true
}
