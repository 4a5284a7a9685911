package member_test

import (
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/member"
)

// BenchmarkInterval is the work of one node in one interval among 100 nodes that hold 2,000 VirtualIPs: it receives a
// datagram of each other node on two paths, and ticks four times.
func BenchmarkInterval(b *testing.B) {
	w := newWorld(b, 100)
	for _, m := range w.nodes {
		w.publish(m, claims(20))
	}
	w.settle()
	m := w.nodes[0]
	m.record = true
	w.run(time.Duration(b.N+1)*member.Standard.Interval, nil)
	recorded := m.traffic
	m.record = false
	w.boot(m, 2)
	now := epoch
	b.ReportAllocs()
	b.ResetTimer()
	accepted := 0
	for i, p := range recorded {
		if i%40 == 0 {
			now = now.Add(member.Standard.Interval / 5)
			m.Tick(now, now.Sub(epoch))
		}
		if m.Receive(now, now.Sub(epoch), p) == member.Accepted {
			accepted++
		}
	}
	b.ReportMetric(float64(len(recorded))/float64(b.N), "datagrams/op")
	b.ReportMetric(float64(accepted)/float64(b.N), "accepted/op")
}
