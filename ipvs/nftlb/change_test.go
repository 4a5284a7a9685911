package nftlb_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nftlb"
)

// While real servers are added and deleted, each connection reaches one of them, and none to the node itself.
func TestConnectionsWhileServersChange(t *testing.T) {
	each(t, nftlb.AllTraffic, func(t *testing.T, l *lab) {
		l.have(t, rr, 1, 1)
		var asked, wrong atomic.Int64
		done := make(chan struct{})
		var clients sync.WaitGroup
		for range 4 {
			clients.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					asked.Add(1)
					conn, err := l.client.Dial("tcp", l.client1, l.at())
					if err != nil {
						wrong.Add(1)
						t.Log(err)
						continue
					}
					if answer, err := netspace.AskOn(conn); err != nil || !strings.HasPrefix(answer, "pod") {
						wrong.Add(1)
						t.Logf("%q, %v", answer, err)
					}
					conn.Close()
				}
			})
		}
		for range 20 {
			for _, weights := range [][]uint32{{1, 0}, {1, 1}, {0, 1}, {1, 1}} {
				l.have(t, rr, weights...)
			}
		}
		close(done)
		clients.Wait()
		t.Logf("%d connections", asked.Load())
		if n := wrong.Load(); n > 0 {
			t.Errorf("%d of %d connections went wrong", n, asked.Load())
		}
	})
}
