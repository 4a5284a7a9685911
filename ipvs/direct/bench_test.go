package direct_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftlb"
)

const benchNodes, benchVirtuals, benchEndpoints = 10, 1000, 4

// many directs virtual servers, each with endpoints on 4 of 10 nodes. With shared, those with endpoints on the same
// nodes have the same slots.
func many(n *node, shared bool) {
	random := rand.New(rand.NewPCG(1, 2))
	bySet := make(map[string]*ipvs.Slots)
	for i := range benchVirtuals {
		nodes := random.Perm(benchNodes)[:benchEndpoints]
		slices.Sort(nodes)
		name := fmt.Sprint(nodes)
		if !shared {
			name = fmt.Sprint(i)
		}
		if bySet[name] == nil {
			slots := new(ipvs.Slots)
			for slot := range slots {
				slots[slot] = uint16(nodes[random.IntN(benchEndpoints)])
			}
			bySet[name] = slots
		}
		n.want.Virtuals[virtual(2*i)] = ipvs.Directed{Slots: bySet[name]}
	}
}

// table is the second tier of the same virtual servers, with all endpoints.
func table(keys []ipvs.Key) ipvs.Table {
	table := make(ipvs.Table)
	for i, key := range keys {
		reals := make(map[netip.AddrPort]ipvs.RealServer)
		for j := range benchEndpoints {
			reals[netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i + j)}), uint16(8080+j))] = ipvs.RealServer{Weight: 1}
		}
		table[key] = ipvs.VirtualServer{Settings: ipvs.Settings{Scheduler: ipvs.RoundRobin}, RealServers: reals}
	}
	return table
}

// kernelMemory returns what the kernel uses for itself on this machine, in kB: it includes others' use.
func kernelMemory(b *testing.B) (sum float64) {
	b.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if slices.Contains([]string{"Slab:", "VmallocUsed:", "Percpu:"}, fields[0]) {
			kB, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				b.Fatal(err)
			}
			sum += kB
		}
	}
	return sum
}

// reportMemory reports the kernel memory of one virtual server. The difference of the last fill counts.
func reportMemory(b *testing.B, before float64) {
	b.ReportMetric((kernelMemory(b)-before)/benchVirtuals, "kB/virtual-server")
}

// BenchmarkFill programs 1,000 virtual servers of 4 endpoints on an empty node.
func BenchmarkFill(b *testing.B) {
	for name, shared := range map[string]bool{"slots=distinct": false, "slots=shared": true} {
		b.Run("direct/"+name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				n := newNode(b, benchNodes-1)
				many(n, shared)
				before := kernelMemory(b)
				b.StartTimer()
				n.apply(b)
				b.StopTimer()
				reportMemory(b, before)
				b.StartTimer()
			}
		})
	}
	b.Run("nftlb", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			n := newNode(b, benchNodes-1)
			many(n, true)
			before := kernelMemory(b)
			ops := ipvs.Diff(nil, table(n.keys()))
			n.Must(b, func() error {
				balancer, err := nftlb.New(nftlb.AllTraffic)
				if err != nil {
					return err
				}
				defer balancer.Close()
				b.StartTimer()
				defer b.StopTimer()
				_, err = balancer.Apply(ops)
				return err
			})
			reportMemory(b, before)
			b.StartTimer()
		}
	})
}

// BenchmarkOneChange adds or deletes one endpoint among 1,000 virtual servers of 4: a fifth of the slots.
func BenchmarkOneChange(b *testing.B) {
	for name, shared := range map[string]bool{"slots=distinct": false, "slots=shared": true} {
		b.Run("direct/"+name, func(b *testing.B) {
			n := newNode(b, benchNodes-1)
			many(n, shared)
			n.apply(b)
			key := n.keys()[benchVirtuals/2]
			before := n.want.Virtuals[key].Slots
			after := *before
			for slot := range after {
				if slot%(benchEndpoints+1) == 0 {
					after[slot] = (after[slot] + 1) % benchNodes
				}
			}
			changes := []ipvs.Directed{{Slots: &after, Before: before}, {Slots: before, Before: &after}}
			i := 0
			n.Must(b, func() error {
				for b.Loop() {
					n.want.Virtuals[key] = changes[i%2]
					i++
					if err := n.driver.Apply(context.Background(), n.want, []ipvs.Key{key}); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	b.Run("nftlb", func(b *testing.B) {
		n := newNode(b, benchNodes-1)
		many(n, true)
		have := table(n.keys())
		key := n.keys()[benchVirtuals/2]
		real := slices.MaxFunc(slices.Collect(maps.Keys(have[key].RealServers)), netip.AddrPort.Compare)
		n.Must(b, func() error {
			balancer, err := nftlb.New(nftlb.AllTraffic)
			if err != nil {
				return err
			}
			defer balancer.Close()
			if _, err := balancer.Apply(ipvs.Diff(nil, have)); err != nil {
				return err
			}
			actions := []ipvs.Action{ipvs.DeleteReal, ipvs.AddReal}
			for i := 0; b.Loop(); i++ {
				op := ipvs.Op{Action: actions[i%2], Virtual: key, Real: real, RealServer: ipvs.RealServer{Weight: 1}}
				if _, err := balancer.Apply([]ipvs.Op{op}); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// BenchmarkCheck observes 1,000 virtual servers without a change.
func BenchmarkCheck(b *testing.B) {
	n := newNode(b, benchNodes-1)
	many(n, true)
	n.apply(b)
	n.check(b)
	n.Must(b, func() error {
		for b.Loop() {
			if intact, err := n.driver.Check(context.Background()); err != nil || !intact {
				return fmt.Errorf("intact: %v, error %v", intact, err)
			}
		}
		return nil
	})
}

// BenchmarkRestart is the first Apply of a new process.
func BenchmarkRestart(b *testing.B) {
	for name, shared := range map[string]bool{"slots=distinct": false, "slots=shared": true} {
		b.Run(name, func(b *testing.B) {
			n := newNode(b, benchNodes-1)
			many(n, shared)
			n.apply(b)
			for b.Loop() {
				b.StopTimer()
				n.restart(b)
				b.StartTimer()
				n.apply(b)
			}
		})
	}
}
