package kernel_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/test/eventually"
)

// A connection counts for its virtual server and its real server. Once it ended and its entry expired, the real
// server is idle, although the client's persistence template still points at it.
func TestCounters(t *testing.T) {
	l := newLab(t)
	l.apply(t, sticky(web, 600, [2]uint32{1, 0}), web)
	var at netip.AddrPort
	for addr, real := range sticky(web, 600, [2]uint32{1, 0})[web].RealServers {
		if real.Weight > 0 {
			at = addr
		}
	}
	reals := func() map[netip.AddrPort]ipvs.RealStats {
		stats, err := l.kernel.RealStats([]ipvs.Key{web})
		if err != nil || len(stats[web]) != 2 {
			t.Fatalf("RealStats of %v = %v, %v; want two", web, stats, err)
		}
		return stats[web]
	}
	conn, err := l.client.Dial("tcp", "", netip.AddrPortFrom(web.Addr, web.Port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := netspace.AskOn(conn); err != nil {
		t.Fatal(err)
	}
	for addr, s := range reals() {
		if want := map[bool]int{true: 1}[addr == at]; s.Active != want || s.Inactive != 0 {
			t.Errorf("%v: %+v; want %d active connections", addr, s, want)
		}
	}
	complete := func(s ipvs.Stats) bool {
		return s.Connections == 1 && s.PacketsIn >= 3 && s.PacketsOut >= 2 && s.BytesIn > 100 && s.BytesOut > 80
	}
	eventually.True(t, time.Minute, "the connection is counted", func() bool { // every two seconds
		virtual, err := l.kernel.VirtualStats()
		if err != nil {
			t.Fatal(err)
		}
		return complete(virtual[web]) && complete(reals()[at].Stats)
	})
	l.apply(t, sticky(web, 600, [2]uint32{0, 1}), web)
	if s := reals()[at]; s.Active != 1 {
		t.Errorf("while it drains: %+v; want an active connection", s)
	}
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil { // a reset: no 2 minutes of TIME_WAIT, but 10 s of CLOSE
		t.Fatal(err)
	}
	conn.Close()
	eventually.True(t, time.Minute, "it is inactive", func() bool { s := reals()[at]; return s.Active == 0 && s.Inactive == 1 })
	eventually.True(t, time.Minute, "it is idle", func() bool { return reals()[at].Idle() })
}
