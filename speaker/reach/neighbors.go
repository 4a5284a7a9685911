package reach

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// clockTick is the unit of the times in the neighbor table (USER_HZ in include/asm-generic/param.h).
const clockTick = 10 * time.Millisecond

// neighbors asks by ARP and neighbor discovery, through the kernel's neighbor table: the kernel asks, and its entry says
// whether there was an answer. So no socket receives all ARP packets of the network.
type neighbors struct {
	handle *netlink.Handle
	socket map[int]*nl.SocketHandle
	// asked are the questions that wait, by target: only the last one of each.
	asked map[netip.Addr]waiting
	// accepts reports whether an address may have that hardware address: a proxy ARP host answers for others.
	accepts func(addr netip.Addr, mac [6]byte) bool
	// silent counts the questions in a row without an answer.
	silent map[netip.Addr]int
}

// pressMost is how many questions in a row keep an entry from failing: after these the kernel's own probes are left to
// end, so that who sends there gets an error, and a node that returns with another hardware address is found.
const pressMost = 20

// waiting is a question that waits for an answer on an interface.
type waiting struct {
	Question
	at    time.Time
	index int
}

func openNeighbors(accepts func(netip.Addr, [6]byte) bool) (*neighbors, error) {
	// Without a strict check, which refuses what the library leaves in the padding of netlink.Ndmsg.
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket for the neighbor table: %w", err)
	}
	k := &neighbors{handle: handle, asked: map[netip.Addr]waiting{}, accepts: accepts, silent: map[netip.Addr]int{}}
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

// ask has the kernel ask a neighbor at once, and reports whether it does. It does not while there is no way to the address.
// An address by way of a router, and one whose entry an administrator has set, never answers.
func (k *neighbors) ask(q Question) (sent bool, err error) {
	delete(k.asked, q.Addr)
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
	case have == nil || have.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE|unix.NUD_NONE) != 0: // the echo request has the kernel ask
	case have.State == unix.NUD_PROBE && k.silent[q.Addr] > pressMost: // it asks by itself
	default:
		if err := k.probe(index, q.Addr, have); err != nil {
			return false, err
		}
	}
	k.asked[q.Addr] = waiting{Question: q, at: at, index: index}
	return true, nil
}

// probe makes the kernel send a request now (net/core/neighbour.c: __neigh_update). An entry that is being probed already
// is no news, so it becomes stale first. What else the entry says stays.
func (k *neighbors) probe(index int, addr netip.Addr, have *netlink.Neigh) error {
	entry := netlink.Neigh{LinkIndex: index, IP: addr.AsSlice(), Flags: have.Flags &^ unix.NTF_USE}
	entry.FlagsExt = have.FlagsExt &^ netlink.NTF_EXT_MANAGED
	for _, state := range []int{unix.NUD_STALE, unix.NUD_PROBE} {
		entry.State = state
		if err := k.handle.NeighSet(&entry); err != nil {
			return fmt.Errorf("have the kernel ask the neighbor %v: %w", addr, err)
		}
	}
	if entry.FlagsExt == have.FlagsExt {
		return nil
	}
	// The kernel maintains the entry by itself (managed), as Cilium sets it: it is asked only without that flag.
	entry.FlagsExt = have.FlagsExt
	if err := k.handle.NeighSet(&entry); err != nil {
		return fmt.Errorf("have the kernel maintain the neighbor %v again: %w", addr, err)
	}
	return nil
}

// answers calls each with the questions that are answered: of an entry that is probed or incomplete, an answer alone makes
// one that is reachable (net/ipv4/arp.c: arp_process; RFC 4861 section 7.2.5). In state DELAY it becomes so by itself
// (net/core/neighbour.c: neigh_timer_handler), so no question is asked without leaving that state.
func (k *neighbors) answers(each func(at time.Time, q Question)) error {
	var errs []error
	for addr, w := range k.asked {
		now := time.Now()
		have, err := k.get(w.index, addr)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if now.Sub(w.at) > slowest {
			delete(k.asked, addr)
		}
		if have == nil || have.State&unix.NUD_REACHABLE == 0 || len(have.HardwareAddr) != 6 {
			continue
		}
		delete(k.silent, addr)
		if delete(k.asked, addr); !k.accepts(addr, [6]byte(have.HardwareAddr)) {
			continue
		}
		// The entry was not reachable when the question was asked. Other packets confirm it later on.
		at := now.Add(-time.Duration(max(have.Updated, have.Confirmed)) * clockTick)
		if at.Before(w.at) {
			at = w.at // the clock of the table is coarse
		}
		each(at, w.Question)
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
