package member

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// clockTick is the unit of the times in the neighbour table (USER_HZ in include/asm-generic/param.h).
	clockTick = 10 * time.Millisecond
	// confirmedWithin is how old an answer may be: asked each relistAfter, a node answers at once.
	confirmedWithin = relistAfter + relistAfter/2
)

// ask has the kernel ask neighbours by ARP or neighbour discovery, each at its hardware address, and returns those that
// have answered since they were asked last. What cannot be asked counts as an answer, or two nodes would answer for an
// address: on an error, and where an administrator has set the entry of the neighbour table, which stays. Those whose
// interface is gone have not answered.
func (l *lister) ask(neighbours []Neighbour) (answered []Neighbour, err error) {
	list, err := l.plain.NeighList(0, netlink.FAMILY_ALL)          // of one interface it is no smaller: the kernel sends all
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // with what was read until then
		return neighbours, fmt.Errorf("list the neighbours: %w", err)
	}
	type place struct {
		index int
		addr  netip.Addr
	}
	table := make(map[place]*netlink.Neigh, len(list))
	for i := range list {
		addr, _ := netip.AddrFromSlice(list[i].IP)
		table[place{list[i].LinkIndex, addr.Unmap()}] = &list[i]
	}
	var failures []error
	for _, n := range neighbours {
		link, err := l.handle.LinkByName(n.Iface)
		var missing netlink.LinkNotFoundError
		if errors.As(err, &missing) {
			continue
		}
		answers := false
		if err == nil {
			index := link.Attrs().Index
			answers, err = l.askOne(n, index, table[place{index, n.Addr.WithZone("")}])
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("ask %v on %s: %w", n.Addr, n.Iface, err))
		}
		if answers || err != nil {
			answered = append(answered, n)
		}
	}
	return answered, errors.Join(failures...)
}

// askOne asks one neighbour, of which the kernel has an entry, or nil.
func (l *lister) askOne(n Neighbour, index int, have *netlink.Neigh) (answered bool, err error) {
	// The kernel asks at once (net/core/neighbour.c: __neigh_update).
	entry := &netlink.Neigh{LinkIndex: index, IP: n.Addr.AsSlice(), HardwareAddr: n.MAC[:], State: unix.NUD_PROBE}
	if have != nil {
		if have.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 {
			return true, nil
		}
		answered = have.State&unix.NUD_REACHABLE != 0 && time.Duration(have.Confirmed)*clockTick < confirmedWithin
		entry.Flags, entry.FlagsExt = have.Flags&^unix.NTF_USE, have.FlagsExt
		if len(have.HardwareAddr) > 0 {
			entry.HardwareAddr = have.HardwareAddr
		}
	}
	return answered, l.plain.NeighSet(entry)
}
