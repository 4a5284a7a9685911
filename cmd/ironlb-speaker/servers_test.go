package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/kernel"
	"github.com/ironlb/ironlb/speaker/traffic"
)

// The data plane is one that the configuration allows and the kernel has. It is reported once.
func TestDataplane(t *testing.T) {
	s := netspace.New(t)
	s.Must(t, func() error {
		has := true
		if k, err := kernel.Open(); errors.Is(err, ipvs.ErrNoModule) {
			has = false
		} else if err != nil {
			return err
		} else {
			has = k.Probe(ipvs.RoundRobin) == nil
			k.Close()
		}
		for wanted, expect := range map[dataplaneKind]dataplaneKind{
			dataplaneNFTables: dataplaneNFTables,
			dataplaneAuto:     map[bool]dataplaneKind{true: dataplaneIPVS, false: dataplaneNFTables}[has],
			dataplaneIPVS:     map[bool]dataplaneKind{true: dataplaneIPVS, false: ""}[has],
		} {
			var reported []dataplaneKind
			var log bytes.Buffer
			c := newConfig()
			c.Dataplane = wanted
			v := newVirtualServers(c, slog.New(slog.NewTextHandler(&log, nil)), func(kind dataplaneKind) { reported = append(reported, kind) }, nil)
			for range 2 {
				_, err := v.Virtuals()
				if (err == nil) != (expect != "") || err != nil && !errors.Is(err, ipvs.ErrNoModule) {
					t.Errorf("%s: %v", wanted, err)
				}
			}
			v.close()
			if expect == "" && len(reported) > 0 || expect != "" && (len(reported) != 1 || reported[0] != expect) {
				t.Errorf("%s: reported %v, want %q once", wanted, reported, expect)
			}
			if warned := strings.Count(log.String(), "level=WARN"); (warned == 1) != (wanted == dataplaneAuto && !has) || warned > 1 {
				t.Errorf("%s: log %s", wanted, &log)
			}
		}
		return nil
	})
}

// Each scheduler that nftables lacks is recorded and logged once, when a virtual server requests it.
func TestSchedulersOfNFTables(t *testing.T) {
	var log bytes.Buffer
	v := &virtualServers{log: slog.New(slog.NewTextHandler(&log, nil))}
	v.choose(dataplaneNFTables, ipvstest.NewKernel())
	for i, name := range []string{"rr", "lc", "mh", "lc", "wlc"} {
		key := ipvs.Key{Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), Protocol: ipvs.TCP, Port: 80}
		ops := []ipvs.Op{{Action: ipvs.AddVirtual, Virtual: key, Settings: ipvs.Settings{Scheduler: name}}}
		if _, err := v.Apply(ops); err != nil {
			t.Fatal(err)
		}
	}
	if got := v.unsupportedSchedulers(); !slices.Equal(got, []string{"lc", "wlc"}) {
		t.Errorf("unsupported are %v", got)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 2 {
		t.Errorf("%d warnings: %s", n, &log)
	}
	at := func(i byte) ipvs.Key {
		return ipvs.Key{Addr: netip.AddrFrom4([4]byte{203, 0, 113, i}), Protocol: ipvs.TCP, Port: 80}
	}
	if _, err := v.Apply([]ipvs.Op{{Action: ipvs.DeleteVirtual, Virtual: at(1)}, {Action: ipvs.DeleteVirtual, Virtual: at(4)},
		{Action: ipvs.EditVirtual, Virtual: at(3), Settings: ipvs.Settings{Scheduler: "rr"}}}); err != nil {
		t.Fatal(err)
	}
	if got := v.unsupportedSchedulers(); len(got) > 0 {
		t.Errorf("unsupported are %v when no virtual server has one", got)
	}
}

// If Calico would not police packets from IPVS to Pods, auto selects nftables. An explicit choice is used.
func TestDataplaneAlongsideCalico(t *testing.T) {
	netspace.New(t).Must(t, func() error {
		for _, c := range []struct {
			wanted dataplaneKind
			calico bool
			expect dataplaneKind
		}{
			{dataplaneAuto, false, dataplaneIPVS},
			{dataplaneAuto, true, dataplaneNFTables},
			{dataplaneIPVS, true, dataplaneIPVS},
		} {
			var reported []dataplaneKind
			configured := newConfig()
			configured.Dataplane = c.wanted
			chosen := func(kind dataplaneKind) { reported = append(reported, kind) }
			v := newVirtualServers(configured, slog.New(slog.DiscardHandler), chosen, nil)
			v.openIPVS = func(config) (driver, error) { return ipvstest.NewKernel(), nil }
			v.loadedIPVS = func() (ipvsTable, error) { return nil, ipvs.ErrNoModule }
			v.calico = func() (bool, error) { return c.calico, nil }
			if _, err := v.Virtuals(); err != nil || !slices.Equal(reported, []dataplaneKind{c.expect}) {
				t.Errorf("%s, Calico %t: %v, %v; want %s", c.wanted, c.calico, reported, err, c.expect)
			}
			v.close()
		}
		return nil
	})
}

// A scheduler without its module can be fixed and is not a kernel without IPVS: nftables does not replace IPVS, and
// loading the module is sufficient.
func TestMissingSchedulerDoesNotChangeTheDataplane(t *testing.T) {
	var reported []dataplaneKind
	v := newVirtualServers(newConfig(), slog.New(slog.DiscardHandler), func(kind dataplaneKind) { reported = append(reported, kind) }, nil)
	missing := fmt.Errorf("%w: module ip_vs_rr missing", ipvs.ErrNoScheduler)
	v.openIPVS = func(config) (driver, error) { return ipvstest.NewKernel(), missing }
	if _, err := v.Virtuals(); !errors.Is(err, ipvs.ErrNoScheduler) || !errors.Is(v.openError(), ipvs.ErrNoScheduler) || len(reported) > 0 {
		t.Errorf("%v, reported %v; want ErrNoScheduler and nothing chosen", err, reported)
	}
	missing = nil
	if _, err := v.Virtuals(); err != nil || v.openError() != nil || !slices.Equal(reported, []dataplaneKind{dataplaneIPVS}) {
		t.Errorf("%v, reported %v; want IPVS when the module is there", err, reported)
	}
}

// Metrics and checks do not wait while the data plane is opened, which may take as long as modprobe.
func TestReadersDoNotWaitForOpen(t *testing.T) {
	v := newVirtualServers(newConfig(), slog.New(slog.DiscardHandler), nil, nil)
	v.openIPVS = func(config) (driver, error) {
		if v.inIPVS() || !v.mayBeIPVS() || v.Counts() {
			t.Errorf("in IPVS %t, may be %t, counts %t before it is open", v.inIPVS(), v.mayBeIPVS(), v.Counts())
		}
		return ipvstest.NewKernel(), nil
	}
	if _, err := v.Virtuals(); err != nil || !v.inIPVS() || !v.Counts() {
		t.Errorf("%v, in IPVS %t, counts %t", err, v.inIPVS(), v.Counts())
	}
	v.choose(dataplaneNFTables, nil)
	if v.Counts() {
		t.Error("nftables counts by default")
	}
	v.config.Traffic = traffic.VirtualServers
	if !v.Counts() {
		t.Error("nftables does not count")
	}
}

// IPVS is not reported before it is selected. Its sysctls are set earlier, unless it cannot be selected.
func TestUnknownIsNotIPVS(t *testing.T) {
	for wanted, may := range map[dataplaneKind]bool{dataplaneAuto: true, dataplaneIPVS: true, dataplaneNFTables: false} {
		c := newConfig()
		c.Dataplane = wanted
		v := newVirtualServers(c, slog.New(slog.DiscardHandler), nil, nil)
		if v.inIPVS() || v.mayBeIPVS() != may {
			t.Errorf("%s, not chosen: in IPVS %t, may be %t; want false, %t", wanted, v.inIPVS(), v.mayBeIPVS(), may)
		}
		for kind, is := range map[dataplaneKind]bool{dataplaneIPVS: true, dataplaneNFTables: false} {
			v.choose(kind, nil)
			if v.inIPVS() != is || v.mayBeIPVS() != is {
				t.Errorf("%s, chosen %s: in IPVS %t, may be %t", wanted, kind, v.inIPVS(), v.mayBeIPVS())
			}
		}
	}
}
