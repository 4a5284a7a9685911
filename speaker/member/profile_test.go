package member

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// TestStretched: up to 200 other nodes the profile's times hold; with more they grow in proportion, and with them the
// fence and what the heartbeats and the snapshots of the members carry. The datagrams per second stay the same.
func TestStretched(t *testing.T) {
	for others, want := range map[int][2]time.Duration{
		0: {100, 450}, 200: {100, 450}, 201: {100, 452}, 300: {150, 675}, 999: {499, 2247},
	} {
		got := Standard.Stretched(others)
		if got.Interval != want[0]*time.Millisecond || got.Dead != want[1]*time.Millisecond {
			t.Errorf("%d others: %+v, want %v ms", others, got, want)
		}
		if perSecond := float64(others) / got.Interval.Seconds(); perSecond > 2010 {
			t.Errorf("%d others: %.0f heartbeats per second", others, perSecond)
		}
	}
	c, err := NewCore(Config{Node: "self", Cluster: "x", Keys: [][]byte{make([]byte, 32)}, Profile: Standard})
	if err != nil {
		t.Fatal(err)
	}
	peers := map[string][]netip.Addr{}
	for i := range 600 {
		peers[fmt.Sprint("node-", i)] = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})}
	}
	c.SetPeers(peers)
	c.Tick(time.Unix(1000, 0), 0)
	if m, _, _ := c.Members(); m.Interval != 300*time.Millisecond || m.Dead != 1350*time.Millisecond || c.FenceAfter() != 1125*time.Millisecond {
		t.Errorf("interval %v, dead after %v, fence after %v", m.Interval, m.Dead, c.FenceAfter())
	}
}
