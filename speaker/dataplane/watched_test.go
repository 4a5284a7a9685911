package dataplane

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
)

// watched is a kernel that detects changes by other programs, and counts lists and ops.
type watched struct {
	*ipvstest.Kernel
	generation uint64
	lists      int
	applied    []int // number of virtual servers in each call
}

func (w *watched) Generation() (uint64, bool, error) { return w.generation, true, nil }

func (w *watched) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	w.lists++
	return w.Kernel.ListOf(addrs)
}

func (w *watched) Apply(ops []ipvs.Op) ([]ipvs.Op, error) {
	keys := map[ipvs.Key]struct{}{}
	for _, op := range ops {
		keys[op.Virtual] = struct{}{}
	}
	w.applied = append(w.applied, len(keys))
	return w.Kernel.Apply(ops)
}

// A driver that detects changes itself is listed at the start, after a foreign change, and after a failure of an own
// one.
func TestWatchedIsListedAfterChanges(t *testing.T) {
	driver := &watched{Kernel: ipvstest.NewKernel()}
	servers := servers{driver: driver}
	observe := func(when string, lists int) {
		t.Helper()
		driver.lists = 0
		if _, err := servers.observe(func(ipvs.Key) bool { return true }); err != nil {
			t.Fatal(err)
		}
		if driver.lists != lists {
			t.Errorf("%s: listed %d times, want %d", when, driver.lists, lists)
		}
	}
	observe("at the start", 1)
	observe("without a change", 0)
	table := many(1)
	if _, _, err := servers.apply(slices.Collect(maps.Keys(table)), table); err != nil {
		t.Fatal(err)
	}
	observe("after an own change", 0)
	driver.generation++
	observe("after a foreign change", 1)
	driver.Fail = func(ipvs.Op) error { return errors.New("refused") }
	if _, failed, err := servers.apply(slices.Collect(maps.Keys(table)), nil); err == nil || len(failed) != 1 {
		t.Fatalf("failed %v, error %v", failed, err)
	}
	observe("after a failure", 1)
	observe("without another change", 0)
}

// Many virtual servers are changed in parts.
func TestChangesInParts(t *testing.T) {
	driver := &watched{Kernel: ipvstest.NewKernel()}
	d := New(Config{Record: func(slog.Level, string, ...any) {}}, Drivers{VirtualServers: driver})
	servers := servers{driver: driver}
	if _, err := servers.observe(func(ipvs.Key) bool { return true }); err != nil {
		t.Fatal(err)
	}
	table, keys := many(2*applyMost+1), map[ipvs.Key]struct{}{}
	for key := range table {
		keys[key] = struct{}{}
	}
	d.change(&servers, keys, table, "", NewWork())
	if want := []int{applyMost, applyMost, 1}; !slices.Equal(driver.applied, want) {
		t.Errorf("calls of Apply change %v virtual servers, want %v", driver.applied, want)
	}
	if !servers.have.Equal(table) || servers.reals != len(table) {
		t.Errorf("%d virtual servers with %d real servers are recorded, want %d with one each", len(servers.have), servers.reals, len(table))
	}
}

// many returns n virtual servers of one real server.
func many(n int) ipvs.Table {
	table := ipvs.Table{}
	for i := range n {
		key := ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.TCP, Port: uint16(1 + i)}
		table[key] = ipvs.VirtualServer{
			Settings:    ipvs.Settings{Scheduler: ipvs.RoundRobin},
			RealServers: map[netip.AddrPort]ipvs.RealServer{netip.MustParseAddrPort("192.0.2.10:8080"): {Weight: 1}},
		}
	}
	return table
}
