package l2

import (
	"net/netip"
	"testing"
	"time"
)

// Packets with another speaker's hardware address wake the reconcile loop, but at most ten times a second.
func TestPeersWakeLimited(t *testing.T) {
	wakes := 0
	a := New(Config{Wake: func() { wakes++ }})
	peer := mac{2, 0, 0, 0, 0, 2}
	a.SetPeers(map[[6]byte]string{peer: "b"})
	addr := netip.MustParseAddr("203.0.113.4")
	start := time.Now()
	for range 100_000 {
		a.usedBy(nil, addr, peer, false)
	}
	if most := 1 + int(time.Since(start)/peerEvery); wakes < 1 || wakes > most {
		t.Errorf("%d times in %v, want 1 to %d", wakes, time.Since(start), most)
	}
	wakes = 0
	a.usedByPeer(time.Now().Add(peerEvery))
	if wakes != 1 {
		t.Errorf("%d times, a while later", wakes)
	}
}
