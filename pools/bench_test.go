package pools

import (
	"fmt"
	"testing"
	"time"
)

func benchAllocator() *Allocator {
	r, err := ParseRanges([]string{"2001:db8::/112"})
	if err != nil {
		panic(err)
	}
	a := New()
	a.SetPools([]Pool{{Name: "p", Ranges: r, AutoAssign: true}})
	return a
}

func benchClaim(i int) Claim { return benchClaimOf(ServiceKey{"default", fmt.Sprintf("s%05d", i)}) }

func benchClaimOf(k ServiceKey) Claim {
	return Claim{Service: k, Families: []Family{IPv6}, Ports: []Port{{"TCP", 80}}}
}

// BenchmarkFill gives n Services an address each out of one empty pool.
func BenchmarkFill(b *testing.B) {
	for _, n := range []int{1000, 5000, 10000, 20000} {
		claims := make([]Claim, n)
		for i := range claims {
			claims[i] = benchClaim(i)
		}
		b.Run(fmt.Sprintf("%dk", n/1000), func(b *testing.B) {
			for b.Loop() {
				a := benchAllocator()
				for _, c := range claims {
					if d := a.Assign(c, time.Time{}); d.Reason != Allocated {
						b.Fatal(d.Message)
					}
					a.Written(c.Service, time.Time{})
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/service")
		})
	}
}

// BenchmarkOneMore assigns and releases one Service next to 10,000 others. Each time it finds the lowest free address.
func BenchmarkOneMore(b *testing.B) {
	a := benchAllocator()
	for i := range 10000 {
		a.Assign(benchClaim(i), time.Time{})
	}
	c := benchClaim(10000)
	for b.Loop() {
		if d := a.Assign(c, time.Time{}); d.Reason != Allocated {
			b.Fatal(d.Message)
		}
		a.Written(c.Service, time.Time{})
		a.Release(c.Service, time.Time{})
		if len(a.Reevaluate(time.Time{})) != 0 {
			b.Fatal("no Service waits")
		}
	}
}

// BenchmarkOneFreed frees one address of a full pool that 10,000 Services wait for, and gives it to the oldest of them.
func BenchmarkOneFreed(b *testing.B) {
	a := New()
	r, _ := ParseRanges([]string{"2001:db8::/120"})
	a.SetPools([]Pool{{Name: "p", Ranges: r, AutoAssign: true}})
	for i := range 10256 {
		a.Assign(benchClaim(i), time.Time{})
	}
	i := 0
	for b.Loop() {
		k := benchClaim(i % 10256)
		a.Release(k.Service, time.Time{})
		for _, w := range a.Reevaluate(time.Time{}) {
			a.Assign(benchClaimOf(w), time.Time{})
			a.Written(w, time.Time{})
		}
		a.Assign(k, time.Time{})
		i++
	}
}

// BenchmarkPoolEdited adds an entry to the pool of 20,000 Services and removes it again.
func BenchmarkPoolEdited(b *testing.B) {
	a := benchAllocator()
	for i := range 20000 {
		a.Assign(benchClaim(i), time.Time{})
	}
	short := Pool{Name: "p", Ranges: ranges("2001:db8::/112"), AutoAssign: true}
	long := Pool{Name: "p", Ranges: ranges("2001:db8::/112", "2001:db8:1::/112"), AutoAssign: true}
	for b.Loop() {
		for _, p := range []Pool{long, short} {
			a.SetPools([]Pool{p})
			if len(a.Reevaluate(time.Time{})) != 0 {
				b.Fatal("no Service is re-evaluated")
			}
		}
	}
}

// BenchmarkOtherPool adds and removes an unused pool next to 20,000 Services.
func BenchmarkOtherPool(b *testing.B) {
	a := benchAllocator()
	for i := range 20000 {
		a.Assign(benchClaim(i), time.Time{})
	}
	one := Pool{Name: "p", Ranges: ranges("2001:db8::/112"), AutoAssign: true}
	two := Pool{Name: "q", Ranges: ranges("203.0.113.0/24"), AutoAssign: true}
	for b.Loop() {
		a.SetPools([]Pool{one, two})
		a.SetPools([]Pool{one})
		a.Reevaluate(time.Time{})
	}
}

// BenchmarkRoomForSome adds a pool of 256 addresses that 10,000 Services wait for, and serves as many. The other
// Services then wait for a full pool instead of a missing one.
func BenchmarkRoomForSome(b *testing.B) {
	for b.Loop() {
		a := New()
		for i := range 10000 {
			a.Assign(benchClaim(i), time.Time{})
		}
		a.SetPools([]Pool{{Name: "p", Ranges: ranges("2001:db8::/120"), AutoAssign: true}})
		served := 0
		for keys := a.Reevaluate(time.Time{}); len(keys) > 0; {
			k := keys[0]
			if d := a.Assign(benchClaimOf(k), time.Time{}); d.Reason == Allocated {
				served++
			}
			keys = append(keys[1:], a.Reevaluate(time.Time{})...)
		}
		if served != 256 {
			b.Fatalf("served %d", served)
		}
	}
}

// BenchmarkAdopt records 20,000 Services after a restart, sets the pools, and calls Reevaluate, which returns no Service.
func BenchmarkAdopt(b *testing.B) {
	a := benchAllocator()
	claims := make([]Claim, 20000)
	for i := range claims {
		claims[i] = benchClaim(i)
		claims[i].Held = a.Assign(claims[i], time.Time{}).Lease
	}
	for b.Loop() {
		n := benchAllocator()
		n.Adopt(claims)
		if len(n.Reevaluate(time.Time{})) != 0 {
			b.Fatal("no Service is re-evaluated")
		}
	}
}
