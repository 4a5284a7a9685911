package kernel_test

import (
	"fmt"
	"net/netip"
	"testing"

	mobyipvs "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/kernel"
)

// many returns a table of n virtual servers, each with some real servers.
func many(n, reals int) ipvs.Table {
	table := make(ipvs.Table, n)
	for i := range n {
		vs := ipvs.VirtualServer{
			Settings:    ipvs.Settings{Scheduler: ipvs.RoundRobin},
			RealServers: make(map[netip.AddrPort]ipvs.RealServer, reals),
		}
		for j := range reals {
			addr := netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + j)})
			vs.RealServers[netip.AddrPortFrom(addr, uint16(1024+i%60000))] = ipvs.RealServer{Weight: 1}
		}
		addr := netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + i%200)})
		table[ipvs.Key{Addr: addr, Protocol: ipvs.TCP, Port: uint16(1 + i/200)}] = vs
	}
	return table
}

func openBench(b *testing.B) (*kernel.Kernel, *netspace.Space) {
	b.Helper()
	s := netspace.New(b)
	k, err := kernel.OpenAt(s.NS)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(k.Close)
	return k, s
}

// BenchmarkCold programs 5,000 virtual servers of 4 real servers from nothing: by this driver, and with one request at
// a time by the library that kube-proxy uses.
func BenchmarkCold(b *testing.B) {
	ops := ipvs.Diff(nil, many(5000, 4))
	run := func(b *testing.B, program func(*kernel.Kernel, *netspace.Space) error) {
		for range b.N {
			b.StopTimer()
			// A new namespace each time: the kernel searches the recently deleted real servers for each new one.
			k, s := openBench(b)
			b.StartTimer()
			if err := program(k, s); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(ops)*b.N)/b.Elapsed().Seconds(), "ops/s")
	}
	b.Run("ours", func(b *testing.B) {
		run(b, func(k *kernel.Kernel, _ *netspace.Space) error { _, err := k.Apply(ops); return err })
	})
	b.Run("library", func(b *testing.B) {
		run(b, func(_ *kernel.Kernel, s *netspace.Space) error {
			other, err := mobyipvs.New(fmt.Sprintf("/proc/self/fd/%d", int(s.NS)))
			if err != nil {
				return err
			}
			defer other.Close()
			return byLibrary(other, ops)
		})
	})
}

func byLibrary(h *mobyipvs.Handle, ops []ipvs.Op) error {
	for _, op := range ops {
		s := &mobyipvs.Service{
			AddressFamily: unix.AF_INET, Address: op.Virtual.Addr.AsSlice(), Protocol: uint16(op.Virtual.Protocol), Port: op.Virtual.Port,
			SchedName: "rr", Netmask: 0xffffffff,
		}
		var err error
		if op.Action == ipvs.AddVirtual {
			err = h.NewService(s)
		} else {
			err = h.NewDestination(s, &mobyipvs.Destination{Address: op.Real.Addr().AsSlice(), Port: op.Real.Port(), Weight: 1})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkList lists 15,000 virtual servers, with and without their real servers, and only counts them.
func BenchmarkList(b *testing.B) {
	const n = 15000
	table := many(n, 1)
	k, s := openBench(b)
	if _, err := k.Apply(ipvs.Diff(nil, table)); err != nil {
		b.Fatal(err)
	}
	other, err := mobyipvs.New(fmt.Sprintf("/proc/self/fd/%d", int(s.NS)))
	if err != nil {
		b.Fatal(err)
	}
	defer other.Close()
	for name, list := range map[string]func() (int, error){
		"all":      func() (int, error) { t, err := k.List(); return len(t), err },
		"virtuals": func() (int, error) { t, err := k.Virtuals(); return len(t), err },
		"count":    k.Count,
		"same": func() (n int, err error) {
			for key, vs := range table {
				if same, err := k.Same(key, vs); err != nil || !same {
					return n, err
				}
				n++
			}
			return n, nil
		},
		"library virtuals": func() (int, error) {
			services, err := other.GetServices()
			return len(services), err
		},
		"library all": func() (int, error) {
			services, err := other.GetServices()
			for _, s := range services {
				if _, err := other.GetDestinations(s); err != nil {
					return 0, err
				}
			}
			return len(services), err
		},
	} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				if got, err := list(); err != nil || got != n {
					b.Fatalf("%d, %v", got, err)
				}
			}
		})
	}
}
