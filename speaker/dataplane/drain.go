package dataplane

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// How often the connections of draining real servers are counted. The count costs one request for each virtual server
// that has one.
const (
	drainCountMin = time.Second
	drainCountMax = 10 * time.Second
)

// Connections is a VirtualServers that counts the connections of its real servers.
type Connections interface {
	// RealStats returns the counters of the real servers of these virtual servers, nil if the data plane does not count.
	RealStats(keys []ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error)
}

// drains are the real servers that only keep their connections: TCP, with weight 0. One that has no connection left
// ends, although the plan still contains it. Persistence templates do not keep it: they direct no new connection to a
// real server of weight 0 (net.ipv4.vs.expire_quiescent_template). ClusterInternal does not count connections, so
// there a real server stays for as long as the plan contains it.
type drains struct {
	// counted are the virtual servers with a draining real server, each with the time from which its connections count: a
	// packet that was under way when the weight became 0 may still start one.
	counted map[ipvs.Key]time.Time
	// ended are the ended real servers. An entry is removed when the plan no longer has the real server with weight 0.
	ended map[ipvs.Key]map[netip.AddrPort]struct{}
	// due is when connections are counted next, set while something drains.
	due time.Time
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

// recordDrains updates which virtual servers have a draining real server, after these were programmed.
func (d *DataPlane) recordDrains(todo *Work) {
	if _, counts := d.known.table.driver.(Connections); !counts {
		return
	}
	from := time.Now().Add(drainCountMin)
	for key := range todo.Keys {
		desired := d.in.Desired.Table[key].RealServers
		maps.DeleteFunc(d.drains.ended[key], func(at netip.AddrPort, _ struct{}) bool {
			real, wanted := desired[at]
			if !wanted { // connections that IPVS did not count end now
				todo.Conntrack[key] = struct{}{}
			}
			return !wanted || real.Weight > 0
		})
		if len(d.drains.ended[key]) == 0 {
			delete(d.drains.ended, key)
		}
		delete(d.drains.counted, key)
		for at, real := range d.known.table.have[key].RealServers {
			if isDraining(key, desired, at, real) {
				d.drains.counted[key] = from
				break
			}
		}
	}
	switch {
	case len(d.drains.counted) == 0:
		d.drains.due = time.Time{}
	case d.drains.due.IsZero():
		d.drains.due = from
	}
}

func isDraining(key ipvs.Key, desired map[netip.AddrPort]ipvs.RealServer, at netip.AddrPort, have ipvs.RealServer) bool {
	want, wanted := desired[at]
	return key.Protocol == ipvs.TCP && have.Weight == 0 && wanted && want.Weight == 0
}

// endDrains ends the draining real servers without a connection, if it is time to count. Their virtual servers are
// added to the work. A failed count is repeated; the plan limits how long a real server drains.
func (d *DataPlane) endDrains(todo *Work, now time.Time) {
	if d.known == nil || d.drains.due.IsZero() || now.Before(d.drains.due) {
		return
	}
	start := time.Now()
	var keys []ipvs.Key
	for key, from := range d.drains.counted {
		if !now.Before(from) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, ipvs.Key.Compare)
	stats, err := d.known.table.driver.(Connections).RealStats(keys)
	listed := time.Now()
	d.drains.due = listed.Add(min(max(backoffFactor*listed.Sub(start), drainCountMin), drainCountMax))
	if err != nil {
		return
	}
	if stats == nil { // nftables
		clear(d.drains.counted)
		d.drains.due = time.Time{}
		return
	}
	for _, key := range keys {
		desired, have := d.in.Desired.Table[key].RealServers, d.known.table.have[key].RealServers
		for at, real := range stats[key] {
			server, known := have[at]
			if !known || !real.Idle() || !isDraining(key, desired, at, server) {
				continue
			}
			if d.drains.ended[key] == nil {
				d.drains.ended[key] = map[netip.AddrPort]struct{}{}
			}
			d.drains.ended[key][at] = struct{}{}
			todo.Keys[key] = struct{}{}
		}
	}
}
