// Package ipvstest contains a fake of the kernel's IPVS and the contract that the fake and the real driver both pass.
package ipvstest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
)

// Kernel is an IPVS that forwards nothing and keeps its table in process memory. It behaves as package ipvs/kernel
// does.
type Kernel struct {
	// Fail, if set, is called before each op; its error is that op's error and the op is not carried out.
	Fail func(ipvs.Op) error
	// Schedulers are the schedulers that this kernel has.
	Schedulers []string

	mu    sync.Mutex
	table ipvs.Table
	marks map[uint32]struct{}
	stats map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats
	reads int
}

// NewKernel returns a kernel without virtual servers.
func NewKernel() *Kernel {
	return &Kernel{
		Schedulers: []string{"rr", "wrr", "lc", "wlc", "sh", "mh"}, table: make(ipvs.Table), marks: make(map[uint32]struct{}),
		stats: make(map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats),
	}
}

// Probe returns an error if the scheduler does not exist.
func (k *Kernel) Probe(scheduler string) error {
	if !slices.Contains(k.Schedulers, scheduler) {
		return fmt.Errorf("%w: %s", ipvs.ErrNoScheduler, scheduler)
	}
	return nil
}

// List returns a copy of the full table.
func (k *Kernel) List() (ipvs.Table, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.table.Clone(), nil
}

// ListOf returns a copy of the virtual servers of these addresses.
func (k *Kernel) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.table.Restrict(addrs).Clone(), nil
}

// Virtuals returns the virtual servers without their real servers.
func (k *Kernel) Virtuals() (map[ipvs.Key]ipvs.Settings, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	virtuals := make(map[ipvs.Key]ipvs.Settings, len(k.table))
	for key, vs := range k.table {
		virtuals[key] = vs.Settings
	}
	return virtuals, nil
}

// Count returns the number of virtual servers of IPv4, of any program.
func (k *Kernel) Count() (n int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key := range k.table {
		if key.Addr.Is4() {
			n++
		}
	}
	return n + len(k.marks), nil
}

// Same reports whether a virtual server exists with exactly these settings and real servers.
func (k *Kernel) Same(key ipvs.Key, want ipvs.VirtualServer) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	vs, exists := k.table[key]
	return exists && vs.Equal(want), nil
}

// Apply carries out the ops as [ipvs.Each] describes and returns those done.
func (k *Kernel) Apply(ops []ipvs.Op) ([]ipvs.Op, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return ipvs.Each(ops, k.apply)
}

func (k *Kernel) apply(op ipvs.Op) error {
	if k.Fail != nil {
		if err := k.Fail(op); err != nil {
			return fmt.Errorf("%v: %w", op, err)
		}
	}
	if op.Action == ipvs.AddVirtual || op.Action == ipvs.EditVirtual {
		if err := k.Probe(op.Settings.Scheduler); err != nil {
			return fmt.Errorf("%v: %w", op, err)
		}
	}
	if op.Action == ipvs.DeleteReal || op.Action == ipvs.DeleteVirtual {
		delete(k.stats[op.Virtual], op.Real)
	}
	if op.Action == ipvs.DeleteVirtual {
		delete(k.stats, op.Virtual)
	}
	return k.table.Apply(op)
}

// VirtualStats returns the counters of the virtual servers: the sums of what SetStats set.
func (k *Kernel) VirtualStats() (map[ipvs.Key]ipvs.Stats, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	stats := make(map[ipvs.Key]ipvs.Stats, len(k.table))
	for key := range k.table {
		var sum ipvs.Stats
		for _, s := range k.stats[key] {
			sum.Connections, sum.PacketsIn, sum.PacketsOut = sum.Connections+s.Connections, sum.PacketsIn+s.PacketsIn, sum.PacketsOut+s.PacketsOut
			sum.BytesIn, sum.BytesOut = sum.BytesIn+s.BytesIn, sum.BytesOut+s.BytesOut
		}
		stats[key] = sum
	}
	return stats, nil
}

// Connections is RealStats.
func (k *Kernel) Connections(keys []ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error) {
	return k.RealStats(keys)
}

// RealStats returns the counters of the real servers of these virtual servers.
func (k *Kernel) RealStats(keys []ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reads += len(keys)
	stats := make(map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, len(keys))
	for _, key := range keys {
		vs, exists := k.table[key]
		if !exists {
			continue
		}
		stats[key] = make(map[netip.AddrPort]ipvs.RealStats, len(vs.RealServers))
		for at := range vs.RealServers {
			stats[key][at] = k.stats[key][at]
		}
	}
	return stats, nil
}

// SetStats sets the counters of a real server.
func (k *Kernel) SetStats(key ipvs.Key, at netip.AddrPort, stats ipvs.RealStats) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stats[key] == nil {
		k.stats[key] = make(map[netip.AddrPort]ipvs.RealStats)
	}
	k.stats[key][at] = stats
}

// StatsRead returns for how many virtual servers RealStats has been called.
func (k *Kernel) StatsRead() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.reads
}

// AddMark adds a virtual server of a firewall mark, as another program does. Drivers do not list it.
func (k *Kernel) AddMark(mark uint32) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.marks[mark] = struct{}{}
	return nil
}

// Marks returns the firewall marks that have a virtual server.
func (k *Kernel) Marks() ([]uint32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.marks)), nil
}

// SetWeight edits the weight of a real server, as another program does: also to one above [ipvs.MaxWeight].
func (k *Kernel) SetWeight(key ipvs.Key, at netip.AddrPort, weight uint32) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	rs := k.table[key].RealServers[at]
	rs.Weight = weight
	k.table[key].RealServers[at] = rs
	return nil
}

// Hide removes a scheduler until show is called.
func (k *Kernel) Hide(_ *testing.T, scheduler string) (show func()) {
	k.Schedulers = slices.DeleteFunc(k.Schedulers, func(s string) bool { return s == scheduler })
	return func() { k.Schedulers = append(k.Schedulers, scheduler) }
}

// Flush deletes every virtual server, as "ipvsadm -C" by another program does.
func (k *Kernel) Flush() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.table)
	clear(k.marks)
	clear(k.stats)
}

// Close does nothing.
func (k *Kernel) Close() {}

// RandomTable returns a small table of few addresses, ports and settings, so that two tables overlap often.
func RandomTable(r *rand.Rand) ipvs.Table {
	table := make(ipvs.Table)
	for range r.IntN(5) {
		key := ipvs.Key{
			Addr:     netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + r.IntN(3))}),
			Protocol: pick(r, ipvs.TCP, ipvs.UDP),
			Port:     pick(r, uint16(80), 443),
		}
		reals := make(map[netip.AddrPort]ipvs.RealServer)
		for range r.IntN(4) {
			addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + r.IntN(4))})
			reals[netip.AddrPortFrom(addr, 8080)] = ipvs.RealServer{Weight: pick(r, uint32(0), 1, 100)}
		}
		table[key] = ipvs.VirtualServer{
			Settings: pick(r,
				ipvs.Settings{Scheduler: ipvs.RoundRobin},
				ipvs.Settings{Scheduler: "wrr"},
				ipvs.Settings{Scheduler: ipvs.RoundRobin, Flags: ipvs.Persistent, Timeout: 10800}),
			RealServers: reals,
		}
	}
	return table
}

func pick[T any](r *rand.Rand, choices ...T) T {
	return choices[r.IntN(len(choices))]
}
