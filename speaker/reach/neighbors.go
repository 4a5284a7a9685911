package reach

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

// clockTick is the unit of the times in the neighbor table (USER_HZ in include/asm-generic/param.h).
const clockTick = 10 * time.Millisecond

// neighbors probes by ARP and neighbor discovery, through the kernel's neighbor table: the kernel sends the request,
// and its entry shows whether there was an answer. So no socket receives all ARP packets of the network.
type neighbors struct {
	handle *netlink.Handle
	socket map[int]*nl.SocketHandle
	// pending are the pending probes by ID. A host may be asked for two reasons.
	pending map[uint64]pendingNeighbor
	// accepts reports whether an address may have that hardware address: a proxy ARP host answers for other hosts.
	accepts func(addr netip.Addr, mac [6]byte) bool
	// silent counts consecutive unanswered probes.
	silent map[netip.Addr]int
}

// maxForcedProbes is how many consecutive probes keep an entry from failing. After that the kernel's own probes may
// end, so that senders get an error, and a node that returns with another hardware address is found.
const maxForcedProbes = 20

// pendingNeighbor is a pending probe on an interface.
type pendingNeighbor struct {
	Probe
	at    time.Time
	index int
}

func openNeighbors(accepts func(netip.Addr, [6]byte) bool) (*neighbors, error) {
	// The strict check is not used: it rejects the library's padding of netlink.Ndmsg.
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket for the neighbor table: %w", err)
	}
	k := &neighbors{handle: handle, pending: map[uint64]pendingNeighbor{}, accepts: accepts, silent: map[netip.Addr]int{}}
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		k.close()
		return nil, fmt.Errorf("open a netlink socket for the neighbor table: %w", err)
	}
	k.socket = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	return k, nil
}

func (k *neighbors) close() {
	k.handle.Close()
	for _, s := range k.socket {
		s.Close()
	}
}

// send makes the kernel probe a neighbor at once, and reports whether it did. It does not while there is no route to
// the address. An address behind a router, or with an entry set by an administrator, never answers.
func (k *neighbors) send(q Probe) (sent bool, err error) {
	routes, err := k.handle.RouteGet(q.Addr.AsSlice())
	if err != nil || len(routes) != 1 {
		return false, nil
	}
	if routes[0].Gw != nil || routes[0].Type != unix.RTN_UNICAST {
		return true, nil
	}
	index := routes[0].LinkIndex
	have, err := k.get(index, q.Addr)
	if err != nil {
		return false, err
	}
	if have != nil && have.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 {
		return true, nil
	}
	at := time.Now()
	k.silent[q.Addr]++
	switch {
	case have == nil || have.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE|unix.NUD_NONE) != 0: // the echo request triggers a probe
	case have.State == unix.NUD_PROBE && k.silent[q.Addr] > maxForcedProbes: // the kernel is probing
	default:
		if err := k.probe(index, q.Addr, have); err != nil {
			return false, err
		}
	}
	k.pending[q.ID] = pendingNeighbor{Probe: q, at: at, index: index}
	return true, nil
}

// probe makes the kernel send a request now (net/core/neighbour.c: __neigh_update). Setting an entry to the state PROBE
// that it already has has no effect, so it becomes stale first. The rest of the entry stays.
func (k *neighbors) probe(index int, addr netip.Addr, have *netlink.Neigh) error {
	entry := netlink.Neigh{LinkIndex: index, IP: addr.AsSlice(), Flags: have.Flags &^ unix.NTF_USE}
	entry.FlagsExt = have.FlagsExt &^ netlink.NTF_EXT_MANAGED
	for _, state := range []int{unix.NUD_STALE, unix.NUD_PROBE} {
		entry.State = state
		if err := k.handle.NeighSet(&entry); err != nil {
			return fmt.Errorf("probe the neighbor %v: %w", addr, err)
		}
	}
	if entry.FlagsExt == have.FlagsExt {
		return nil
	}
	// The kernel maintains the entry itself (managed), as Cilium sets it: it is probed only without that flag.
	entry.FlagsExt = have.FlagsExt
	if err := k.handle.NeighSet(&entry); err != nil {
		return fmt.Errorf("restore the managed flag of the neighbor %v: %w", addr, err)
	}
	return nil
}

// answers calls each for every answered probe. Only an answer makes a probed or incomplete entry reachable
// (net/ipv4/arp.c: arp_process; RFC 4861 section 7.2.5). An entry in state DELAY becomes reachable without one
// (net/core/neighbour.c: neigh_timer_handler), so a probe never leaves an entry in that state.
func (k *neighbors) answers(each func(at time.Time, q Probe)) error {
	var errs []error
	read := map[netip.Addr]*netlink.Neigh{} // a node or gateway is on one interface
	for id, w := range k.pending {
		now, addr := time.Now(), w.Addr
		have, is := read[addr]
		if !is {
			var err error
			if have, err = k.get(w.index, addr); err != nil {
				errs = append(errs, err)
				continue
			}
			read[addr] = have
		}
		if now.Sub(w.at) > slowest {
			delete(k.pending, id)
		}
		if have == nil || have.State&unix.NUD_REACHABLE == 0 || len(have.HardwareAddr) != 6 {
			continue
		}
		delete(k.silent, addr)
		if delete(k.pending, id); !k.accepts(addr, [6]byte(have.HardwareAddr)) {
			continue
		}
		// The entry was not reachable when the probe was sent. Other packets may confirm it later.
		at := now.Add(-time.Duration(max(have.Updated, have.Confirmed)) * clockTick)
		if at.Before(w.at) {
			at = w.at // the clock of the table is coarse
		}
		each(at, w.Probe)
	}
	return errors.Join(errs...)
}

// get returns an entry of the neighbor table, nil if there is none.
func (k *neighbors) get(index int, addr netip.Addr) (*netlink.Neigh, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	request.Sockets = k.socket
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

const (
	// maxHosts is how many hosts on an interface are asked, seenWithin how recently each must have answered.
	maxHosts   = 4
	seenWithin = 2 * time.Minute
)

// hosts returns hosts on an interface that have answered recently, the latest first. Nodes are not among them: they may
// be dead.
func (k *neighbors) hosts(name string, isNode func(netip.Addr, [6]byte) bool) (out []netip.Addr, err error) {
	link, err := k.handle.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", name, err)
	}
	list, err := dump.Complete(func() ([]netlink.Neigh, error) {
		return k.handle.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
	})
	if err != nil {
		return nil, fmt.Errorf("list the neighbors on interface %s: %w", name, err)
	}
	slices.SortFunc(list, func(a, b netlink.Neigh) int { return cmp.Compare(a.Confirmed, b.Confirmed) })
	for _, n := range list {
		addr, _ := netip.AddrFromSlice(n.IP)
		addr = addr.Unmap()
		usable := n.State&(unix.NUD_REACHABLE|unix.NUD_STALE|unix.NUD_DELAY|unix.NUD_PROBE) != 0 && len(n.HardwareAddr) == 6
		if !usable || addr.IsLinkLocalUnicast() || addr.IsMulticast() || time.Duration(n.Confirmed)*clockTick > seenWithin ||
			isNode(addr, [6]byte(n.HardwareAddr)) {
			continue
		}
		routes, err := k.handle.RouteGet(addr.AsSlice())
		if err != nil || len(routes) != 1 || routes[0].Gw != nil || routes[0].LinkIndex != link.Attrs().Index {
			continue
		}
		if out = append(out, addr); len(out) == maxHosts {
			break
		}
	}
	return out, nil
}
