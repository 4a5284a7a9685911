package ipvstest

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironlb/ironlb/ipvs"
)

// IPVS is a Driver of the kernel's IPVS, which counts.
type IPVS interface {
	Driver
	VirtualStats() (map[ipvs.Key]ipvs.Stats, error)
	RealStats(keys []ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error)
	Connections(keys []ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error)
}

// Other is another program with the same kernel, and the operator.
type Other interface {
	// AddMark adds a virtual server of a firewall mark; Marks returns those that exist.
	AddMark(mark uint32) error
	Marks() ([]uint32, error)
	// SetWeight edits the weight of a real server; all 32 bits are allowed.
	SetWeight(key ipvs.Key, at netip.AddrPort, weight uint32) error
	// Hide removes the module of an unused scheduler until show is called.
	Hide(t *testing.T, scheduler string) (show func())
}

// ContractIPVS checks what Contract does not: the behaviour that only IPVS has. open is as for Contract.
func ContractIPVS(t *testing.T, open func(t *testing.T) (IPVS, Other)) {
	cases := []struct {
		name string
		run  func(t *testing.T, d IPVS, other Other)
	}{
		{"virtual servers of firewall marks stay", marksStay},
		{"weights of other programs are read in full", foreignWeights},
		{"a scheduler's module is loaded later", schedulerLater},
		{"every virtual and real server counts", statistics},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d, other := open(t)
			c.run(t, d, other)
		})
	}
}

func marksStay(t *testing.T, d IPVS, other Other) {
	if err := other.AddMark(7); err != nil {
		t.Fatal(err)
	}
	if err := d.Probe(ipvs.RoundRobin); err != nil {
		t.Error(err)
	}
	wantTable(t, d, ipvs.Table{})
	apply(t, d, ipvs.Diff(nil, everyKind()))
	wantTable(t, d, everyKind())
	stats, err := d.VirtualStats()
	if err != nil || len(stats) != len(everyKind()) {
		t.Errorf("VirtualStats = %v, %v; want those of %v", stats, err, everyKind().Keys())
	}
	have, err := d.List()
	if err != nil {
		t.Fatal(err)
	}
	apply(t, d, ipvs.Diff(have, nil))
	wantTable(t, d, ipvs.Table{})
	if marks, err := other.Marks(); err != nil || !slices.Equal(marks, []uint32{7}) {
		t.Errorf("firewall marks %v, %v; want 7", marks, err)
	}
}

// foreignWeights edits a weight such that its lower 16 bits stay: it must not be taken for the wanted one.
func foreignWeights(t *testing.T, d IPVS, other Other) {
	for key, at := range map[ipvs.Key]netip.AddrPort{web: pod1, web6: pod6} {
		want := ipvs.Table{key: {Settings: rr, RealServers: map[netip.AddrPort]ipvs.RealServer{at: {Weight: 1}}}}
		apply(t, d, ipvs.Diff(nil, want))
		if err := other.SetWeight(key, at, 1<<16+1); err != nil {
			t.Fatal(err)
		}
		have, err := d.ListOf(want.Addrs())
		if err != nil {
			t.Fatal(err)
		}
		if got := have[key].RealServers[at].Weight; got != 1<<16+1 {
			t.Errorf("%v: weight %d, want %d", key, got, 1<<16+1)
		}
		apply(t, d, ipvs.Diff(have, want))
		if have, err = d.ListOf(want.Addrs()); err != nil || !have.Equal(want) {
			t.Errorf("restored: %v, %v; want %v", have, err, want)
		}
	}
}

// schedulerLater uses a scheduler without its module and, as soon as that is there, with the same driver.
func schedulerLater(t *testing.T, d IPVS, other Other) {
	const scheduler = "lc"
	show := other.Hide(t, scheduler)
	if err := d.Probe(scheduler); !errors.Is(err, ipvs.ErrNoScheduler) || !strings.Contains(err.Error(), scheduler) {
		t.Errorf("Probe = %v, want ErrNoScheduler that names %s", err, scheduler)
	}
	lacks := ipvs.Op{Action: ipvs.AddVirtual, Virtual: web, Settings: ipvs.Settings{Scheduler: scheduler}}
	has := ipvs.Op{Action: ipvs.AddVirtual, Virtual: dns, Settings: rr}
	done, err := d.Apply([]ipvs.Op{lacks, has})
	if !slices.Equal(done, []ipvs.Op{has}) || !errors.Is(err, ipvs.ErrNoScheduler) || !strings.Contains(err.Error(), web.String()) {
		t.Errorf("Apply did %v, %v; want %v done and ErrNoScheduler of %v", done, err, has, web)
	}
	show()
	if err := d.Probe(scheduler); err != nil {
		t.Errorf("Probe with the module back: %v", err)
	}
	apply(t, d, []ipvs.Op{lacks})
	wantTable(t, d, ipvs.Table{
		web: {Settings: lacks.Settings, RealServers: map[netip.AddrPort]ipvs.RealServer{}},
		dns: {Settings: rr, RealServers: map[netip.AddrPort]ipvs.RealServer{}},
	})
}

func statistics(t *testing.T, d IPVS, _ Other) {
	apply(t, d, ipvs.Diff(nil, everyKind()))
	virtuals, err := d.VirtualStats()
	if err != nil {
		t.Fatal(err)
	}
	absent := ipvs.Key{Addr: web.Addr, Protocol: ipvs.TCP, Port: 81}
	wantVirtuals, wantReals := map[ipvs.Key]ipvs.Stats{}, map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats{}
	for key, vs := range everyKind() {
		wantVirtuals[key], wantReals[key] = ipvs.Stats{}, map[netip.AddrPort]ipvs.RealStats{}
		for at := range maps.Keys(vs.RealServers) {
			wantReals[key][at] = ipvs.RealStats{}
		}
	}
	if diff := cmp.Diff(wantVirtuals, virtuals, compareAddrs); diff != "" {
		t.Errorf("VirtualStats (-want +got):\n%s", diff)
	}
	for name, read := range map[string]func([]ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error){
		"RealStats": d.RealStats, "Connections": d.Connections,
	} {
		reals, err := read(append(everyKind().Keys(), absent))
		if err != nil {
			t.Fatal(err)
		}
		delete(reals, absent) // absent, or without real servers
		if diff := cmp.Diff(wantReals, reals, compareAddrs); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
