package dataplane

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// However many virtual servers drain, one count reads a limited number of them, and a round reads each.
func TestCountsInRounds(t *testing.T) {
	now := time.Now()
	d, at := newDrains(), netip.MustParseAddrPort("192.0.2.10:8080")
	const n = 2*drainCountMost + 1
	key := func(port int) ipvs.Key {
		return ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.TCP, Port: uint16(port)}
	}
	for port := range n {
		put(d.draining, key(port), at, now)
	}
	put(d.draining, key(n), at, now.Add(time.Second)) // it began to drain just now
	counted := map[ipvs.Key]int{}
	for i := range 6 {
		batch := d.batch(now)
		if len(batch) != drainCountMost {
			t.Errorf("count %d is of %d virtual servers, want %d", i, len(batch), drainCountMost)
		}
		for _, key := range batch {
			counted[key]++
		}
	}
	for port := range n {
		if times := counted[key(port)]; times < 2 || times > 3 {
			t.Errorf("port %d is counted %d times, want 2 or 3", port, times)
		}
	}
	if has(counted, key(n)) {
		t.Error("a virtual server is counted before its connections count")
	}
}
