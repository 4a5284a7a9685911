package member

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// clockTick is the unit of the times in the neighbour table (USER_HZ in include/asm-generic/param.h).
const clockTick = 10 * time.Millisecond

// answerWithin is how long a neighbour has to answer before it counts as silent.
const answerWithin = relistAfter / 2

// neighbours asks by ARP and neighbour discovery, through the kernel's neighbour table.
type neighbours struct {
	// handle is without a strict check, which refuses what the library leaves in the padding of netlink.Ndmsg.
	handle *netlink.Handle
	asked  map[Neighbour]time.Time
}

// ask has the kernel ask neighbours, each at its hardware address, and returns which have answered the question before,
// and which have not. Of one that could not be asked it says neither, as where an administrator has set the entry of the
// neighbour table, which stays.
func (k *neighbours) ask(all []Neighbour, indexes map[string]int) (answered, silent []Neighbour, err error) {
	list, err := k.handle.NeighList(0, netlink.FAMILY_ALL) // of one interface it is no smaller: the kernel sends all
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, nil, fmt.Errorf("list the neighbours: %w", err)
	}
	read := time.Now()
	type place struct {
		index int
		addr  netip.Addr
	}
	table := make(map[place]*netlink.Neigh, len(list))
	for i := range list {
		addr, _ := netip.AddrFromSlice(list[i].IP)
		table[place{list[i].LinkIndex, addr.Unmap()}] = &list[i]
	}
	asked := map[Neighbour]time.Time{}
	var failures []error
	for _, n := range all {
		index, known := indexes[n.Iface]
		have := table[place{index, n.Addr.WithZone("")}]
		if !known || have != nil && have.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 {
			continue
		}
		before, again := k.asked[n]
		if again && read.Sub(before) < answerWithin {
			asked[n] = before
			continue
		}
		asked[n] = time.Now()
		switch {
		case !again:
		case have != nil && !read.Add(-time.Duration(have.Confirmed)*clockTick).Before(before.Add(-clockTick)):
			answered = append(answered, n)
		default:
			silent = append(silent, n)
		}
		if err := k.question(n, index, have); err != nil {
			delete(asked, n)
			failures = append(failures, fmt.Errorf("ask %v on %s: %w", n.Addr, n.Iface, err))
		}
	}
	k.asked = asked
	return answered, silent, errors.Join(failures...)
}

// question has the kernel ask at once (net/core/neighbour.c: __neigh_update). It keeps what else the entry says.
func (k *neighbours) question(n Neighbour, index int, have *netlink.Neigh) error {
	entry := &netlink.Neigh{LinkIndex: index, IP: n.Addr.AsSlice(), HardwareAddr: n.MAC[:], State: unix.NUD_PROBE}
	if have != nil {
		entry.Flags, entry.FlagsExt = have.Flags&^unix.NTF_USE, have.FlagsExt
		if len(have.HardwareAddr) > 0 {
			entry.HardwareAddr = have.HardwareAddr
		}
	}
	return k.handle.NeighSet(entry)
}
