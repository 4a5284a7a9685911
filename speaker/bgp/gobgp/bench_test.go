package gobgp

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/eventually"
	"github.com/ironlb/ironlb/test/lab/router"
)

const many = 10_000

// manyRoutes returns /128s with a few sets of attributes, like those of as many Services.
func manyRoutes(names ...string) map[netip.Prefix]routes.Route {
	prefixes := map[netip.Prefix]routes.Route{}
	for i := range many {
		b := vip6.Addr().As16()
		binary.BigEndian.PutUint32(b[12:], uint32(i+1))
		r := routes.Route{}
		for _, n := range names {
			r[n] = view.Attributes{Communities: view.NewCommunitySet(nodeASN<<16 | uint32(i%4))}
		}
		prefixes[netip.PrefixFrom(netip.AddrFrom16(b), 128)] = r
	}
	return prefixes
}

// BenchmarkTable: 10,000 prefixes to a BIRD and an FRR from an empty table, then 100 times one more prefix.
func BenchmarkTable(b *testing.B) {
	for b.Loop() {
		f := newFixture(b, "bird", "frr")
		peers, monitors := map[string]routes.Peer{}, []*router.Monitor{}
		for _, r := range f.routers {
			n := r.neighbor()
			n.Address = r.node6
			r.neighbors(b, n)
			peers[r.kind] = r.peer6()
			m, err := r.place.Monitor(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			monitors = append(monitors, m)
		}
		d := startNode(b, f.node)
		start := time.Now()
		d.apply(b, wanted(peers, manyRoutes("bird", "frr")))
		b.ReportMetric(time.Since(start).Seconds(), "s/apply")
		for _, r := range f.routers {
			d.up(b, r.kind)
		}
		for i, r := range f.routers {
			eventually.Nil(b, patience, r.kind+" has all", func(context.Context) error {
				n := len(monitors[i].Events())
				return eventually.Unless(n >= many, "it has %d", n)
			})
			at := monitors[i].Events()[many-1].At
			b.ReportMetric(at.Sub(d.upAt(r.kind)).Seconds(), "s/"+r.kind)
		}
		cpu, rss := usage(b, d)
		b.ReportMetric(cpu.Seconds(), "cpu-s")
		b.ReportMetric(rss, "MB-peak")
		one(b, d, f, monitors)
		for _, m := range monitors {
			m.Stop()
		}
		d.kill()
	}
}

// one adds a prefix and waits for it in both kernels, 100 times.
func one(b *testing.B, d *node, f *fixture, monitors []*router.Monitor) {
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	times := map[string][]time.Duration{}
	for i := range 100 {
		prefix := netip.PrefixFrom(addr(fmt.Sprintf("2001:db8:e::%x", i+1)), 128)
		start := time.Now()
		d.apply(b, routes.Change{RouterID: nodeID, Routes: map[netip.Prefix]routes.Route{prefix: to("bird", "frr")}})
		for j, r := range f.routers {
			e, err := monitors[j].Wait(ctx, func(e router.Event) bool { return e.Prefix == prefix && !e.Deleted })
			if err != nil {
				b.Fatal(err)
			}
			times[r.kind] = append(times[r.kind], e.At.Sub(start))
		}
	}
	for kind, t := range times {
		slices.Sort(t)
		b.ReportMetric(float64(t[50].Microseconds())/1000, "ms-p50/"+kind)
		b.ReportMetric(float64(t[98].Microseconds())/1000, "ms-p99/"+kind)
	}
}

func (n *node) upAt(name string) time.Time {
	s, _ := n.has(name)
	return s.Since
}

// usage returns the drivers' processor time and their peak memory in MB.
func usage(b *testing.B, d *node) (cpu time.Duration, rss float64) {
	b.Helper()
	for _, p := range d.peers {
		c, mb := usageOf(b, p.cmd.Process.Pid)
		cpu, rss = cpu+c, rss+mb
	}
	return cpu, rss
}

func usageOf(b *testing.B, pid int) (cpu time.Duration, rss float64) {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var user, system int64
	fmt.Sscan(f[11]+" "+f[12], &user, &system)
	cpu = time.Duration(user+system) * time.Second / 100 // USER_HZ
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kb float64
			fmt.Sscan(text, &kb)
			rss = kb / 1024
		}
	}
	if rss == 0 {
		b.Fatal("no VmHWM in /proc/PID/status")
	}
	return cpu, rss
}
