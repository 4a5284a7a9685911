package member

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/link/dump"
)

// clockTick is the unit of the times in the neighbour table (USER_HZ in include/asm-generic/param.h).
const clockTick = 10 * time.Millisecond

// answerWithin is the time in which a neighbour must answer; after it the neighbour counts as silent.
const answerWithin = probeAfter / 2

// neighbours probes by ARP and neighbour discovery, through the kernel's neighbour table.
type neighbours struct {
	// handle does not use the strict check, which rejects the library's padding of netlink.Ndmsg.
	handle *netlink.Handle
	probed map[Neighbour]time.Time
	failed string // last logged error
}

// probe makes the kernel probe neighbours, each at its hardware address, and returns which have answered the previous
// probe, and which have not. A neighbour that could not be probed is in neither list, for example one whose entry of
// the neighbour table an administrator has set; such an entry stays.
func (k *neighbours) probe(all []Neighbour, indexes map[string]int) (answered, silent []Neighbour, err error) {
	// A list of one interface is no cheaper: the kernel sends all. An entry missing from the list would count as
	// silent.
	list, err := dump.Complete(func() ([]netlink.Neigh, error) { return k.handle.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, nil, fmt.Errorf("list the neighbours: %w", err)
	}
	read := time.Now()
	type neighbourKey struct {
		index int
		addr  netip.Addr
	}
	table := make(map[neighbourKey]*netlink.Neigh, len(list))
	for i := range list {
		addr, _ := netip.AddrFromSlice(list[i].IP)
		table[neighbourKey{list[i].LinkIndex, addr.Unmap()}] = &list[i]
	}
	probed := map[Neighbour]time.Time{}
	var failures []error
	for _, n := range all {
		index, known := indexes[n.Iface]
		if !known {
			index, known = k.index(n.Iface)
		}
		have := table[neighbourKey{index, n.Addr.WithZone("")}]
		if !known || have != nil && have.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 {
			continue
		}
		before, repeated := k.probed[n]
		if repeated && read.Sub(before) < answerWithin {
			probed[n] = before
			continue
		}
		probed[n] = time.Now()
		switch {
		case !repeated:
		case have != nil && !read.Add(-time.Duration(have.Confirmed)*clockTick).Before(before.Add(-clockTick)):
			answered = append(answered, n)
		default:
			silent = append(silent, n)
		}
		switch err := k.probeEntry(n, index, have); {
		case err == nil:
		case !errors.Is(err, errNotProbed):
			failures = append(failures, fmt.Errorf("probe %v on %s: %w", n.Addr, n.Iface, err))
			delete(probed, n)
		case !repeated: // else the kernel has given up probing, which counts as silent
			delete(probed, n)
		}
	}
	k.probed = probed
	return answered, silent, errors.Join(failures...)
}

// index returns the index of an interface, if it exists and has carrier.
func (k *neighbours) index(name string) (index int, known bool) {
	link, err := k.handle.LinkByName(name)
	if err != nil || link.Attrs().RawFlags&unix.IFF_RUNNING == 0 {
		return 0, false
	}
	return link.Attrs().Index, true
}

// errNotProbed means that nothing is known of a neighbour in this round.
var errNotProbed = errors.New("not probed")

// probeEntry makes the kernel probe at once (net/core/neighbour.c: __neigh_update). The rest of the entry stays.
func (k *neighbours) probeEntry(n Neighbour, index int, have *netlink.Neigh) error {
	entry := netlink.Neigh{LinkIndex: index, IP: n.Addr.AsSlice(), State: unix.NUD_PROBE}
	if have == nil || have.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE) != 0 { // else the kernel's address is better
		if n.MAC == ([6]byte{}) {
			return errNotProbed
		}
		entry.HardwareAddr = n.MAC[:]
	}
	if have == nil {
		// The list may miss an existing entry: it must not be replaced.
		if err := k.handle.NeighAdd(&entry); !errors.Is(err, unix.EEXIST) {
			return err
		}
		return errNotProbed
	}
	entry.Flags = have.Flags &^ unix.NTF_USE
	if entry.FlagsExt = have.FlagsExt &^ netlink.NTF_EXT_MANAGED; entry.FlagsExt == have.FlagsExt {
		return k.handle.NeighSet(&entry)
	}
	// An entry that the kernel maintains itself (managed), as Cilium sets it, is probed only without that flag.
	if err := k.handle.NeighSet(&entry); err != nil {
		return err
	}
	entry.FlagsExt, entry.HardwareAddr = have.FlagsExt, nil
	return k.handle.NeighSet(&entry)
}

// checkAway publishes which nodes to probe, and logs those that have not answered.
func (l *loop) checkAway() {
	away, before := l.core.Away(), l.away.Load()
	switch {
	case away == nil && before != nil:
		l.away.Store(nil)
	case away != nil:
		l.away.Store(&away)
		if before == nil {
			select {
			case l.probing <- struct{}{}:
			default: // follow has not received the last one yet
			}
		}
	}
	for _, node := range l.core.Unanswered() {
		l.options.Log.Warn("a node without a speaker stopped answering ARP or neighbour discovery: "+
			"it counts as dead", "node", node)
	}
}

// probeAway probes which nodes without a process answer, and reports whether there are any.
func (d *Detector) probeAway(l *lister) bool {
	away := d.away.Load()
	if away == nil {
		l.probed = nil
		return false
	}
	answered, silent, err := l.neighbours.probe(*away, l.indexes)
	if err != nil && l.failed != err.Error() {
		d.options.Log.Error("cannot probe nodes without a speaker; they count as alive",
			"error", err)
	}
	l.failed = ""
	if err != nil {
		l.failed = err.Error()
	}
	d.put(func(in *inbox) {
		in.answered, in.silent = append(in.answered, answered...), append(in.silent, silent...)
	})
	return true
}
