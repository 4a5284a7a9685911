package dataplane

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
)

// compared is an IPVS that records which virtual servers are compared, and counts lists.
type compared struct {
	*ipvstest.Kernel
	last                map[ipvs.Key]time.Time
	gap                 time.Duration // the longest one between two comparisons of a virtual server
	lists               int
	slow                time.Duration // duration of a list
	failCount, failSame error
}

func (c *compared) Count() (int, error) {
	if c.failCount != nil {
		return 0, c.failCount
	}
	return c.Kernel.Count()
}

func (c *compared) Same(key ipvs.Key, vs ipvs.VirtualServer) (bool, error) {
	if at, before := c.last[key]; before {
		c.gap = max(c.gap, time.Since(at))
	}
	c.last[key] = time.Now()
	if c.failSame != nil {
		return false, c.failSame
	}
	return c.Kernel.Same(key, vs)
}

func (c *compared) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	c.lists++
	time.Sleep(c.slow)
	return c.Kernel.ListOf(addrs)
}

var all = func(ipvs.Key) bool { return true }

// audits runs a test with servers of a driver in which the table was programmed, and a function that audits them for a
// while, once a second. It returns whether a difference was found.
func audits(t *testing.T, table ipvs.Table, run func(t *testing.T, d *compared, s *servers, audit func(time.Duration) bool)) {
	synctest.Test(t, func(t *testing.T) {
		d := &compared{Kernel: ipvstest.NewKernel(), last: map[ipvs.Key]time.Time{}}
		s := &servers{driver: d}
		audit := func(d time.Duration) (differed bool) {
			t.Helper()
			for range d / time.Second {
				time.Sleep(time.Second)
				differs, err := s.observe(all)
				if err != nil {
					t.Fatal(err)
				}
				differed = differed || differs
			}
			return differed
		}
		audit(time.Second)
		change(t, s, table)
		audit(20 * time.Second) // a list after the new addresses
		d.lists = 0
		run(t, d, s, audit)
	})
}

// change programs a table.
func change(t *testing.T, s *servers, table ipvs.Table) {
	t.Helper()
	keys := map[ipvs.Key]struct{}{}
	for _, some := range []ipvs.Table{s.have, table} {
		for key := range some {
			keys[key] = struct{}{}
		}
	}
	if _, _, err := s.apply(slices.Collect(maps.Keys(keys)), table); err != nil {
		t.Fatal(err)
	}
}

// six returns n virtual servers of IPv6 without real servers.
func six(n int) ipvs.Table {
	table := ipvs.Table{}
	for i := range n {
		key := ipvs.Key{Addr: netip.MustParseAddr("2001:db8::4"), Protocol: ipvs.TCP, Port: uint16(1 + i)}
		table[key] = ipvs.VirtualServer{Settings: ipvs.Settings{Scheduler: ipvs.RoundRobin}}
	}
	return table
}

// Each virtual server is compared again within nine seconds, ten if many are added, and nothing is listed.
func TestEachIsCompared(t *testing.T) {
	audits(t, many(2000), func(t *testing.T, d *compared, s *servers, audit func(time.Duration) bool) {
		d.gap = 0
		audit(30 * time.Second)
		if d.gap > 9*time.Second {
			t.Errorf("up to %v between two comparisons, want 9 s", d.gap)
		}
		change(t, s, many(2300))
		audit(10 * time.Second)
		if len(d.last) != 2300 {
			t.Errorf("%d virtual servers were compared, want 2300", len(d.last))
		}
		audit(30 * time.Second)
		if d.gap > 10*time.Second || d.lists > 0 {
			t.Errorf("up to %v between two comparisons, want 10 s, %d lists", d.gap, d.lists)
		}
	})
}

// After most virtual servers are deleted, the others are compared as often as before.
func TestFewRemain(t *testing.T) {
	audits(t, many(5000), func(t *testing.T, d *compared, s *servers, audit func(time.Duration) bool) {
		change(t, s, many(10))
		for key := range many(10) {
			edit := ipvs.Op{Action: ipvs.EditVirtual, Virtual: key, Settings: ipvs.Settings{Scheduler: "wlc"}}
			if _, err := d.Apply([]ipvs.Op{edit}); err != nil {
				t.Fatal(err)
			}
			if !audit(time.Second) {
				t.Errorf("an edit of %v was not found at once", key)
			}
			change(t, s, many(10))
			audit(10 * time.Second)
		}
	})
}

// A flush is found at once, a deleted virtual server of IPv4, too, and one of IPv6 within nine seconds.
func TestDeletionsAreFound(t *testing.T) {
	both := many(1000)
	maps.Copy(both, six(1000))
	for name, c := range map[string]struct {
		table  ipvs.Table
		remove func(*compared)
		within time.Duration
	}{
		"flush":         {both, func(d *compared) { d.Flush() }, time.Second},
		"flush of IPv6": {six(1000), func(d *compared) { d.Flush() }, time.Second},
		"flush, uncounted": {many(1000), func(d *compared) {
			d.failCount = errors.New("refused")
			d.Flush()
		}, time.Second},
		"IPv4": {both, func(d *compared) { remove(d, many(1)) }, time.Second},
		"IPv6": {both, func(d *compared) { remove(d, six(1)) }, 9 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			audits(t, c.table, func(t *testing.T, d *compared, s *servers, audit func(time.Duration) bool) {
				for range 3 {
					audit(20 * time.Second)
					c.remove(d)
					if !audit(c.within) {
						t.Errorf("not found within %v", c.within)
					}
					change(t, s, c.table)
				}
			})
		})
	}
}

func remove(d *compared, table ipvs.Table) {
	_, _ = d.Apply(ipvs.Diff(table, nil))
}

// What another program added to an address before that was IronLB's is found within ten seconds.
func TestAddressIsOwnedLater(t *testing.T) {
	audits(t, many(10), func(t *testing.T, d *compared, s *servers, audit func(time.Duration) bool) {
		theirs := ipvs.Key{Addr: netip.MustParseAddr("203.0.113.9"), Protocol: ipvs.TCP, Port: 22}
		ours := theirs
		ours.Port = 80
		owned := map[netip.Addr]struct{}{netip.MustParseAddr("203.0.113.4"): {}}
		observe := func() bool {
			differs, err := s.observe(func(key ipvs.Key) bool { return has(owned, key.Addr) })
			if err != nil {
				t.Fatal(err)
			}
			return differs
		}
		add := ipvs.Op{Action: ipvs.AddVirtual, Virtual: theirs, Settings: ipvs.Settings{Scheduler: "wlc"}}
		if _, err := d.Apply([]ipvs.Op{add}); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			time.Sleep(time.Second)
			if observe() {
				t.Fatal("a virtual server of another program is a difference")
			}
		}
		owned[ours.Addr] = struct{}{}
		table := many(10)
		table[ours] = ipvs.VirtualServer{Settings: ipvs.Settings{Scheduler: "rr"}}
		change(t, s, table)
		for range 10 {
			time.Sleep(time.Second)
			if observe() {
				return
			}
		}
		t.Errorf("%v was not found", theirs)
	})
}

// If another program edits a virtual server each second, the lists take 1 % of the time, or one in eight seconds.
func TestListsRestAfterEdits(t *testing.T) {
	for slow, most := range map[time.Duration]int{20 * time.Millisecond: 50, 300 * time.Millisecond: 12} {
		audits(t, many(10), func(t *testing.T, d *compared, s *servers, audit func(time.Duration) bool) {
			d.slow = slow
			for i := range 90 {
				settings := ipvs.Settings{Scheduler: []string{"wlc", "lc"}[i%2]}
				for key := range many(1) {
					_, _ = d.Apply([]ipvs.Op{{Action: ipvs.EditVirtual, Virtual: key, Settings: settings}})
				}
				if audit(time.Second) {
					change(t, s, many(10))
				}
			}
			if d.lists == 0 || d.lists > most {
				t.Errorf("%d lists of %v, want at most %d", d.lists, slow, most)
			}
		})
	}
}

// An error of a comparison is one of the observation. A driver that does not compare is listed each time.
func TestWithoutComparison(t *testing.T) {
	audits(t, many(10), func(t *testing.T, d *compared, s *servers, _ func(time.Duration) bool) {
		time.Sleep(time.Second)
		d.failSame = errors.New("refused")
		if _, err := s.observe(all); !errors.Is(err, d.failSame) {
			t.Errorf("error %v, want %v", err, d.failSame)
		}
		lists := 0
		plain := &servers{driver: struct{ VirtualServers }{d}}
		for range 3 {
			before := d.lists
			if _, err := plain.observe(all); err != nil {
				t.Fatal(err)
			}
			lists += d.lists - before
		}
		if lists != 3 {
			t.Errorf("%d lists in 3 observations", lists)
		}
	})
}
