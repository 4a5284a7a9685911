package dataplane

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// How often the connections of draining real servers are counted, and of how many virtual servers at once: the count
// costs one request for each. After a count that took d, the next one waits backoffFactor times d.
const (
	backoffFactor  = 20
	drainCountMin  = time.Second
	drainCountMax  = 10 * time.Second
	drainCountMost = 200
)

// ConnectionCounter is a VirtualServers that counts the connections of its real servers.
type ConnectionCounter interface {
	// Connections returns the counters of the real servers of these virtual servers, nil without an error if the data
	// plane does not count. With an error it returns those that it could read.
	Connections(keys []ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error)
}

// drains are the real servers that only keep their connections: TCP, with weight 0. One that has no connection left
// ends, although the plan still contains it. Persistence templates do not keep it: they direct no new connection to a
// real server of weight 0 (net.ipv4.vs.expire_quiescent_template). ClusterInternal does not count connections, so
// there a real server stays for as long as the plan contains it.
type drains struct {
	// draining are the draining real servers, each with the time from which its connections count: a packet that was
	// under way when the weight became 0 may still start one.
	draining map[ipvs.Key]map[netip.AddrPort]time.Time
	// ended are the ended real servers. An entry is removed when the plan no longer has the real server with weight 0.
	ended map[ipvs.Key]map[netip.AddrPort]struct{}
	// pending are the virtual servers of those that the next Program deletes.
	pending map[ipvs.Key]struct{}
	// due is when connections are counted next, set while something drains. That count begins with virtual server next.
	due  time.Time
	next ipvs.Key
}

func newDrains() drains {
	return drains{
		draining: map[ipvs.Key]map[netip.AddrPort]time.Time{},
		ended:    map[ipvs.Key]map[netip.AddrPort]struct{}{},
		pending:  map[ipvs.Key]struct{}{},
	}
}

// wanted returns the desired virtual server without the real servers that have ended.
func (d *DataPlane) wanted(key ipvs.Key) (ipvs.VirtualServer, bool) {
	vs, wanted := d.in.Desired.Table[key]
	ended := d.drains.ended[key]
	if len(ended) == 0 {
		return vs, wanted
	}
	vs.RealServers = maps.Clone(vs.RealServers)
	maps.DeleteFunc(vs.RealServers, func(at netip.AddrPort, real ipvs.RealServer) bool {
		return real.Weight == 0 && has(ended, at)
	})
	return vs, wanted
}

// recordDrains updates which real servers drain, after the work was programmed. One that continues to drain keeps its
// time.
func (d *DataPlane) recordDrains(todo *Work) {
	if _, counts := d.known.table.driver.(ConnectionCounter); !counts {
		return
	}
	from := time.Now().Add(drainCountMin)
	for key := range todo.Keys {
		d.removeEnded(key, todo)
		desired, before := d.in.Desired.Table[key].RealServers, d.drains.draining[key]
		delete(d.drains.draining, key)
		for at, real := range d.known.table.have[key].RealServers {
			want, wanted := desired[at]
			if key.Protocol != ipvs.TCP || real.Weight > 0 || !wanted || want.Weight > 0 || has(d.drains.ended[key], at) {
				continue
			}
			put(d.drains.draining, key, at, from)
			if since, drained := before[at]; drained {
				d.drains.draining[key][at] = since
			}
		}
	}
	switch {
	case len(d.drains.draining) == 0:
		d.drains.due = time.Time{}
	case d.drains.due.IsZero():
		d.drains.due = from
	}
}

// removeEnded removes the ended real servers that the plan no longer has with weight 0. Connections of those that it
// does not have at all are cleaned now: IPVS did not count them.
func (d *DataPlane) removeEnded(key ipvs.Key, todo *Work) {
	desired := d.in.Desired.Table[key].RealServers
	maps.DeleteFunc(d.drains.ended[key], func(at netip.AddrPort, _ struct{}) bool {
		real, wanted := desired[at]
		if !wanted {
			todo.Conntrack[key] = struct{}{}
		}
		return !wanted || real.Weight > 0
	})
	if len(d.drains.ended[key]) == 0 {
		delete(d.drains.ended, key)
	}
}

// DrainsDue reports whether the connections of draining real servers are to be counted.
func (d *DataPlane) DrainsDue(now time.Time) bool {
	return d.known != nil && !d.drains.due.IsZero() && !now.Before(d.drains.due)
}

// EndDrains counts the connections of draining real servers, once DrainsDue, and ends those without any. It reports
// whether one ended: AddPending adds it to the work. It must follow the announcements, because counting takes time. A
// failed count is repeated; the plan limits how long a real server drains.
func (d *DataPlane) EndDrains(now time.Time) (ended bool, err error) {
	keys := d.drains.batch(now)
	start := time.Now()
	counted, err := d.known.table.driver.(ConnectionCounter).Connections(keys)
	listed := time.Now()
	d.drains.due = listed.Add(min(max(backoffFactor*listed.Sub(start), drainCountMin), drainCountMax))
	if counted == nil && err == nil { // nftables
		clear(d.drains.draining)
		d.drains.due = time.Time{}
		return false, nil
	}
	for _, key := range keys {
		for at, from := range d.drains.draining[key] {
			if real, exists := counted[key][at]; exists && real.Idle() && !now.Before(from) {
				put(d.drains.ended, key, at, struct{}{})
				d.drains.pending[key] = struct{}{}
			}
		}
	}
	return len(d.drains.pending) > 0, err
}

// batch returns the virtual servers to count now: all in rounds, drainCountMost at once.
func (d *drains) batch(now time.Time) []ipvs.Key {
	var keys []ipvs.Key
	for key, reals := range d.draining {
		for _, from := range reals {
			if !now.Before(from) {
				keys = append(keys, key)
				break
			}
		}
	}
	slices.SortFunc(keys, ipvs.Key.Compare)
	if len(keys) <= drainCountMost {
		return keys
	}
	first, _ := slices.BinarySearchFunc(keys, d.next, ipvs.Key.Compare)
	keys = slices.Concat(keys[first:], keys[:first])
	d.next = keys[drainCountMost]
	return keys[:drainCountMost]
}

// put sets the value of a real server.
func put[V any](m map[ipvs.Key]map[netip.AddrPort]V, key ipvs.Key, at netip.AddrPort, value V) {
	if m[key] == nil {
		m[key] = map[netip.AddrPort]V{}
	}
	m[key][at] = value
}
