package reach

import (
	"errors"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/neighbor"
)

// maxForcedProbes is how many consecutive probes keep an entry from failing. After that the kernel's own probes may
// end, so that senders get an error, and a node that returns with another hardware address is found.
const maxForcedProbes = 20

// neighbors probes by ARP and neighbor discovery.
type neighbors struct {
	*neighbor.Table
	// pending are the pending probes by ID. A host may be asked for two reasons.
	pending map[uint64]pendingNeighbor
	// accepts reports whether an address may have that hardware address: a proxy ARP host answers for other hosts.
	accepts func(addr netip.Addr, mac [6]byte) bool
	// silent counts consecutive unanswered probes.
	silent map[netip.Addr]int
}

// pendingNeighbor is a pending probe on an interface.
type pendingNeighbor struct {
	Probe
	at    time.Time
	index int
}

func openNeighbors(accepts func(netip.Addr, [6]byte) bool) (*neighbors, error) {
	table, err := neighbor.Open()
	if err != nil {
		return nil, err
	}
	return &neighbors{Table: table, pending: map[uint64]pendingNeighbor{}, accepts: accepts, silent: map[netip.Addr]int{}}, nil
}

// send makes the kernel probe a neighbor at once, and reports whether it did. It does not while there is no route to
// the address. An address behind a router, or with a static entry, never answers. One without an address in its entry
// is asked by the echo request.
func (k *neighbors) send(q Probe) (sent bool, err error) {
	index, direct, ok := k.Route(q.Addr)
	if !ok || !direct {
		return ok, nil
	}
	have, err := k.Entry(index, q.Addr)
	if err != nil || neighbor.Static(have) {
		return err == nil, err
	}
	at := time.Now()
	k.silent[q.Addr]++
	if have == nil || have.State != unix.NUD_PROBE || k.silent[q.Addr] <= maxForcedProbes { // else the kernel is probing
		if _, err := k.Table.Probe(index, q.Addr, have, [6]byte{}); err != nil {
			return false, err
		}
	}
	k.pending[q.ID] = pendingNeighbor{Probe: q, at: at, index: index}
	return true, nil
}

// answers calls each for every answered probe.
func (k *neighbors) answers(each func(at time.Time, q Probe)) error {
	var errs []error
	entries := map[netip.Addr]*netlink.Neigh{} // a node or gateway is on one interface
	for id, w := range k.pending {
		now := time.Now()
		have, is := entries[w.Addr]
		if !is {
			var err error
			if have, err = k.Entry(w.index, w.Addr); err != nil {
				errs = append(errs, err)
				continue
			}
			entries[w.Addr] = have
		}
		if now.Sub(w.at) > slowest {
			delete(k.pending, id)
		}
		at, ok := neighbor.Answered(have, now, w.at)
		if !ok {
			continue
		}
		delete(k.silent, w.Addr)
		if delete(k.pending, id); k.accepts(w.Addr, [6]byte(have.HardwareAddr)) {
			each(at, w.Probe)
		}
	}
	return errors.Join(errs...)
}
