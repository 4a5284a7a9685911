package ipvstest

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironlb/ironlb/ipvs"
)

// Driver is the common interface of the fake and the real kernel.
type Driver interface {
	Probe(scheduler string) error
	List() (ipvs.Table, error)
	ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error)
	Virtuals() (map[ipvs.Key]ipvs.Settings, error)
	Apply(ops []ipvs.Op) ([]ipvs.Op, error)
}

var (
	web     = ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.TCP, Port: 80}
	dns     = ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.UDP, Port: 53}
	sigtran = ipvs.Key{Addr: netip.MustParseAddr("203.0.113.5"), Protocol: ipvs.SCTP, Port: 2905}
	web6    = ipvs.Key{Addr: netip.MustParseAddr("2001:db8::4"), Protocol: ipvs.TCP, Port: 80}
	pod1    = netip.MustParseAddrPort("192.0.2.11:8080")
	pod2    = netip.MustParseAddrPort("192.0.2.12:8081")
	pod6    = netip.MustParseAddrPort("[2001:db8:1::11]:8080")
	rr      = ipvs.Settings{Scheduler: ipvs.RoundRobin}
	sticky  = ipvs.Settings{Scheduler: ipvs.RoundRobin, Flags: ipvs.Persistent, Timeout: 10800}
)

// Contract checks that a driver behaves as every IPVS driver must. open returns a driver without virtual servers that
// shares none with the drivers returned before.
func Contract(t *testing.T, open func(t *testing.T) Driver) {
	cases := []struct {
		name string
		run  func(t *testing.T, d Driver)
	}{
		{"probe leaves nothing behind", probeLeavesNothing},
		{"probe of a scheduler that does not exist", probeNoScheduler},
		{"what is written is read back", roundTrip},
		{"edits stay in place", editsInPlace},
		{"everything twice", everythingTwice},
		{"adding what exists edits it", addExisting},
		{"deleting the absent succeeds", deleteAbsent},
		{"editing the absent fails", editAbsent},
		{"an error does not stop the rest", errorsDoNotStop},
		{"foreign virtual servers stay", foreignStays},
		{"weights have 16 bits", weights},
		{"any table becomes any other", randomTables},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

// everyKind returns a table with every protocol, forwarding method and family, and the extremes of weight.
func everyKind() ipvs.Table {
	return ipvs.Table{
		web: {Settings: rr, RealServers: map[netip.AddrPort]ipvs.RealServer{
			pod1: {Weight: 1}, pod2: {Weight: ipvs.MaxWeight},
		}},
		dns: {Settings: sticky, RealServers: map[netip.AddrPort]ipvs.RealServer{
			netip.AddrPortFrom(pod1.Addr(), dns.Port): {Weight: 0, Forward: ipvs.Tunnel},
			netip.AddrPortFrom(pod2.Addr(), dns.Port): {Weight: 100},
		}},
		sigtran: {Settings: ipvs.Settings{Scheduler: "mh", Flags: 0x18}, RealServers: map[netip.AddrPort]ipvs.RealServer{}},
		web6:    {Settings: sticky, RealServers: map[netip.AddrPort]ipvs.RealServer{pod6: {Weight: 1}}},
	}
}

func probeLeavesNothing(t *testing.T, d Driver) {
	if err := d.Probe(ipvs.RoundRobin); err != nil {
		t.Fatal(err)
	}
	wantTable(t, d, ipvs.Table{})
}

func probeNoScheduler(t *testing.T, d Driver) {
	err := d.Probe("nosuch")
	if !errors.Is(err, ipvs.ErrNoScheduler) || !strings.Contains(err.Error(), "nosuch") {
		t.Errorf("Probe(nosuch) = %v, want ErrNoScheduler that names it", err)
	}
	wantTable(t, d, ipvs.Table{})
}

func roundTrip(t *testing.T, d Driver) {
	apply(t, d, ipvs.Diff(nil, everyKind()))
	wantTable(t, d, everyKind())

	part, err := d.ListOf(map[netip.Addr]struct{}{sigtran.Addr: {}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ipvs.Table{sigtran: everyKind()[sigtran]}, part, compareAddrs); diff != "" {
		t.Errorf("ListOf(%v) (-want +got):\n%s", sigtran.Addr, diff)
	}
	virtuals, err := d.Virtuals()
	if err != nil {
		t.Fatal(err)
	}
	want := map[ipvs.Key]ipvs.Settings{
		web: rr, dns: sticky, sigtran: {Scheduler: "mh", Flags: 0x18}, web6: sticky,
	}
	if diff := cmp.Diff(want, virtuals, compareAddrs); diff != "" {
		t.Errorf("Virtuals (-want +got):\n%s", diff)
	}
}

func editsInPlace(t *testing.T, d Driver) {
	apply(t, d, ipvs.Diff(nil, everyKind()))
	apply(t, d, []ipvs.Op{
		{Action: ipvs.EditVirtual, Virtual: web, Settings: sticky},
		{Action: ipvs.EditVirtual, Virtual: dns, Settings: rr},
		{Action: ipvs.EditReal, Virtual: web, Real: pod1, RealServer: ipvs.RealServer{Weight: 0}},
	})
	want := everyKind()
	want[web] = ipvs.VirtualServer{Settings: sticky, RealServers: map[netip.AddrPort]ipvs.RealServer{
		pod1: {Weight: 0}, pod2: {Weight: ipvs.MaxWeight},
	}}
	want[dns] = ipvs.VirtualServer{Settings: rr, RealServers: want[dns].RealServers}
	wantTable(t, d, want)
}

func everythingTwice(t *testing.T, d Driver) {
	for range 2 {
		apply(t, d, ipvs.Diff(nil, everyKind()))
		wantTable(t, d, everyKind())
	}
	for range 2 {
		apply(t, d, ipvs.Diff(everyKind(), nil))
		wantTable(t, d, ipvs.Table{})
	}
}

func addExisting(t *testing.T, d Driver) {
	apply(t, d, []ipvs.Op{
		{Action: ipvs.AddVirtual, Virtual: web, Settings: rr},
		{Action: ipvs.AddReal, Virtual: web, Real: pod1, RealServer: ipvs.RealServer{Weight: 1}},
		{Action: ipvs.AddVirtual, Virtual: web, Settings: sticky},
		{Action: ipvs.AddReal, Virtual: web, Real: pod1, RealServer: ipvs.RealServer{Weight: 7}},
	})
	wantTable(t, d, ipvs.Table{web: {
		Settings:    sticky,
		RealServers: map[netip.AddrPort]ipvs.RealServer{pod1: {Weight: 7}},
	}})
}

func deleteAbsent(t *testing.T, d Driver) {
	apply(t, d, []ipvs.Op{
		{Action: ipvs.DeleteReal, Virtual: web, Real: pod1},
		{Action: ipvs.DeleteVirtual, Virtual: web},
		{Action: ipvs.AddVirtual, Virtual: web, Settings: rr},
		{Action: ipvs.DeleteReal, Virtual: web, Real: pod1},
	})
	wantTable(t, d, ipvs.Table{web: {Settings: rr, RealServers: map[netip.AddrPort]ipvs.RealServer{}}})
}

func editAbsent(t *testing.T, d Driver) {
	apply(t, d, []ipvs.Op{{Action: ipvs.AddVirtual, Virtual: dns, Settings: rr}})
	for _, c := range []struct {
		op   ipvs.Op
		want error
	}{
		{ipvs.Op{Action: ipvs.EditVirtual, Virtual: web, Settings: rr}, ipvs.ErrNoVirtual},
		{ipvs.Op{Action: ipvs.AddReal, Virtual: web, Real: pod1}, ipvs.ErrNoVirtual},
		{ipvs.Op{Action: ipvs.EditReal, Virtual: web, Real: pod1}, ipvs.ErrNoVirtual},
		{ipvs.Op{Action: ipvs.EditReal, Virtual: dns, Real: pod1}, ipvs.ErrNoReal},
	} {
		wantFailure(t, d, c.op, c.want)
	}
	wantTable(t, d, ipvs.Table{dns: {Settings: rr, RealServers: map[netip.AddrPort]ipvs.RealServer{}}})
}

func errorsDoNotStop(t *testing.T, d Driver) {
	nosuch := ipvs.Op{Action: ipvs.AddVirtual, Virtual: web, Settings: ipvs.Settings{Scheduler: "nosuch"}}
	heavy := ipvs.Op{Action: ipvs.AddReal, Virtual: dns, Real: pod1, RealServer: ipvs.RealServer{Weight: ipvs.MaxWeight + 1}}
	mixed := ipvs.Op{Action: ipvs.AddReal, Virtual: dns, Real: pod6}
	good := []ipvs.Op{
		{Action: ipvs.AddVirtual, Virtual: dns, Settings: rr},
		{Action: ipvs.AddReal, Virtual: dns, Real: pod2, RealServer: ipvs.RealServer{Weight: 1}},
	}
	done, err := d.Apply([]ipvs.Op{
		nosuch, good[0], heavy, mixed,
		{Action: ipvs.AddReal, Virtual: web, Real: pod1}, // skipped: its virtual server could not be added
		good[1],
	})
	if diff := cmp.Diff(good, done, compareAddrs); diff != "" {
		t.Errorf("done (-want +got):\n%s", diff)
	}
	for _, op := range []ipvs.Op{nosuch, heavy, mixed} {
		if err == nil || strings.Count(err.Error(), op.String()) != 1 {
			t.Errorf("error does not name %q once: %v", op, err)
		}
	}
	if errors.Is(err, ipvs.ErrNoVirtual) || !errors.Is(err, ipvs.ErrNoScheduler) || !errors.Is(err, ipvs.ErrInvalid) {
		t.Errorf("error = %v, want ErrNoScheduler, ErrInvalid and not ErrNoVirtual", err)
	}
	wantTable(t, d, ipvs.Table{dns: {Settings: rr, RealServers: map[netip.AddrPort]ipvs.RealServer{pod2: {Weight: 1}}}})
}

// weights writes the extremes in both families, together and alone, and what is beyond.
func weights(t *testing.T, d Driver) {
	want := ipvs.Table{}
	for key, at := range map[ipvs.Key]netip.AddrPort{web: pod1, web6: pod6} {
		add := []ipvs.Op{{Action: ipvs.AddVirtual, Virtual: key, Settings: rr}}
		for _, weight := range []uint32{0, ipvs.MaxWeight} {
			add = append(add, ipvs.Op{Action: ipvs.AddReal, Virtual: key, Real: at, RealServer: ipvs.RealServer{Weight: weight}})
			apply(t, d, add)
			add = nil
			want[key] = ipvs.VirtualServer{Settings: rr, RealServers: map[netip.AddrPort]ipvs.RealServer{at: {Weight: weight}}}
			wantTable(t, d, want)
		}
		over := ipvs.RealServer{Weight: ipvs.MaxWeight + 1}
		wantFailure(t, d, ipvs.Op{Action: ipvs.EditReal, Virtual: key, Real: at, RealServer: over}, ipvs.ErrInvalid)
		wantTable(t, d, want)
	}
}

func foreignStays(t *testing.T, d Driver) {
	foreign := everyKind()
	delete(foreign, web)
	delete(foreign, dns)
	apply(t, d, ipvs.Diff(nil, everyKind()))

	have, err := d.List()
	if err != nil {
		t.Fatal(err)
	}
	ours := map[netip.Addr]struct{}{web.Addr: {}}
	apply(t, d, ipvs.Diff(have.Restrict(ours), nil))
	wantTable(t, d, foreign)
}

func randomTables(t *testing.T, d Driver) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		have, err := d.List()
		if err != nil {
			t.Fatal(err)
		}
		want := RandomTable(r)
		apply(t, d, ipvs.Diff(have, want))
		wantTable(t, d, want)
	}
}

// Verifier is a driver that compares virtual servers one by one.
type Verifier interface {
	Driver
	Same(ipvs.Key, ipvs.VirtualServer) (bool, error)
}

// Differences checks that a Verifier without virtual servers finds any difference.
func Differences(t *testing.T, d Verifier) {
	apply(t, d, ipvs.Diff(nil, everyKind()))
	wantSame := func(want bool, key ipvs.Key, vs ipvs.VirtualServer) {
		t.Helper()
		if same, err := d.Same(key, vs); err != nil || same != want {
			t.Errorf("Same(%v, %v) = %v, %v, want %v", key, vs, same, err, want)
		}
	}
	for key, vs := range everyKind() {
		wantSame(true, key, vs)
		for _, settings := range []ipvs.Settings{
			{Scheduler: "wlc", Flags: vs.Flags, Timeout: vs.Timeout},
			{Scheduler: vs.Scheduler, Flags: vs.Flags ^ 0x8, Timeout: vs.Timeout},
			{Scheduler: vs.Scheduler, Flags: vs.Flags | ipvs.Persistent, Timeout: vs.Timeout + 1},
		} {
			wantSame(false, key, ipvs.VirtualServer{Settings: settings, RealServers: vs.RealServers})
		}
		for at, rs := range vs.RealServers {
			for _, other := range []map[netip.AddrPort]ipvs.RealServer{
				{at: {Weight: rs.Weight ^ 2, Forward: rs.Forward}},
				{at: {Weight: rs.Weight, Forward: rs.Forward ^ ipvs.Tunnel}},
				{netip.AddrPortFrom(at.Addr(), at.Port()+1): rs},
			} {
				for at2, rs2 := range vs.RealServers {
					if at2 != at {
						other[at2] = rs2
					}
				}
				wantSame(false, key, ipvs.VirtualServer{Settings: vs.Settings, RealServers: other})
			}
		}
		key.Port++
		wantSame(false, key, vs)
	}
	fewer := everyKind()[web]
	delete(fewer.RealServers, pod2)
	wantSame(false, web, fewer)
}

// compareAddrs lets go-cmp compare the types of netip, which have unexported fields.
var compareAddrs = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
}

func apply(t *testing.T, d Driver, ops []ipvs.Op) {
	t.Helper()
	done, err := d.Apply(ops)
	if err != nil {
		t.Fatal(err)
	}
	if len(done) != len(ops) {
		t.Fatalf("%d of %d ops done without an error", len(done), len(ops))
	}
}

func wantFailure(t *testing.T, d Driver, op ipvs.Op, want error) {
	t.Helper()
	done, err := d.Apply([]ipvs.Op{op})
	if !errors.Is(err, want) || !strings.Contains(err.Error(), op.String()) || len(done) != 0 {
		t.Errorf("%v: done %v, error %v, want %v that names the op", op, done, err, want)
	}
}

func wantTable(t *testing.T, d Driver, want ipvs.Table) {
	t.Helper()
	got, err := d.List()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, compareAddrs); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}
