package member

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

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

// rounds probes neighbors in rounds.
type rounds struct {
	table  *neighbor.Table
	probed map[Neighbor]time.Time
	failed string // last logged error
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

// answerWithin is the time in which a neighbor must answer; after it the neighbor counts as silent.
const answerWithin = probeAfter / 2

// probe probes neighbors, each at its hardware address, and returns which have answered the previous probe, and which
// have not. A neighbor that could not be probed is in neither list, for example one with a static entry. indexes are the
// known interfaces.
func (r *rounds) probe(all []Neighbor, indexes map[string]int) (answered, silent []Neighbor, err error) {
	probed := map[Neighbor]time.Time{}
	var failures []error
	for _, n := range all {
		before, repeated := r.probed[n]
		if repeated && time.Since(before) < answerWithin {
			probed[n] = before
			continue
		}
		index, known := indexes[n.Iface]
		if !known {
			if index, known = r.table.Interface(n.Iface); !known {
				continue
			}
		}
		addr := n.Addr.WithZone("")
		have, err := r.table.Entry(index, addr)
		read := time.Now()
		if err != nil || neighbor.Static(have) {
			failures = append(failures, err)
			continue
		}
		sent, err := r.table.Probe(index, addr, have, n.MAC)
		if err != nil {
			failures = append(failures, fmt.Errorf("on %s: %w", n.Iface, err))
		}
		if err == nil && (sent || repeated) { // else the kernel has given up probing, which counts as silent
			probed[n] = read
		}
		// Since the answer the entry may have become stale, or another may have probed it: only the time counts.
		confirmed := have != nil && !read.Add(-time.Duration(have.Confirmed)*neighbor.Tick).Before(before.Add(-neighbor.Tick))
		if repeated && confirmed {
			answered = append(answered, n)
		} else if repeated {
			silent = append(silent, n)
		}
	}
	r.probed = probed
	return answered, silent, errors.Join(failures...)
}

// checkAway passes on which nodes to probe, and logs those that have not answered.
func (l *loop) checkAway() {
	if away := l.core.Away(); len(away) > 0 || l.probing {
		l.probing = len(away) > 0
		replace(l.away, away)
	}
	for _, node := range l.core.Unanswered() {
		l.options.Log.Warn("a node without a speaker stopped answering ARP or neighbor discovery: "+
			"it counts as dead", "node", node)
	}
}

// probeAway probes which nodes without a process answer.
func (d *Detector) probeAway(l *lister, away []Neighbor) {
	answered, silent, err := l.rounds.probe(away, l.indexes)
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
}
