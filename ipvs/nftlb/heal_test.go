package nftlb_test

import (
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nftlb"
)

// lines returns the table without its elements, sorted: equal tables may list their chains in any order.
func lines(t *testing.T, space *netspace.Space) []string {
	t.Helper()
	list := strings.Split(command(t, space, "nft", "-t", "list", "table", "ip", "ironlb-lb"), "\n")
	slices.Sort(list)
	return list
}

// TestHealing damages the table in every way as another program: the next sync repairs the driver's own objects and
// reports what is missing.
func TestHealing(t *testing.T) {
	space := netspace.New(t)
	d := open(t, space, nftlb.AllTraffic)
	want := ipvs.Table{
		web: server("wrr", 1, 2, 0),
		{Addr: web.Addr, Protocol: ipvs.TCP, Port: 81}: server("rr", 1), // so that all required chains exist
	}
	sticky := server("rr", 1, 1)
	sticky.Flags, sticky.Timeout = ipvs.Persistent, 60
	want[ipvs.Key{Addr: web.Addr, Protocol: ipvs.UDP, Port: 53}] = sticky
	apply := func() {
		t.Helper()
		have, err := d.List()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Apply(ipvs.Diff(have, want)); err != nil {
			t.Fatal(err)
		}
	}
	apply()
	pristine := lines(t, space)
	for _, spoil := range []string{
		"flush ruleset",
		"delete table ip ironlb-lb",
		"flush chain ip ironlb-lb prerouting",
		"flush chain ip ironlb-lb affinity-60",
		"insert rule ip ironlb-lb prerouting accept",
		"add chain ip ironlb-lb prerouting { policy drop; }",
		"add chain ip ironlb-lb extra",
		"add set ip ironlb-lb more { type ipv4_addr; elements = { 192.0.2.1 } }",
		"delete element ip ironlb-lb virtuals { 203.0.113.4 . tcp . 80 }",
		"delete element ip ironlb-lb reals-tcp { 203.0.113.4 . 80 . 0 }",
		"add element ip ironlb-lb reals-tcp { 203.0.113.4 . 80 . 7 : 192.0.2.9 . 22 }",
		`add element ip ironlb-lb virtuals { 203.0.113.9 . tcp . 22 comment "foreign" : goto random-2 }`,
		"delete element ip ironlb-lb sticky { 203.0.113.4 . udp . 53 }",
		"add element ip ironlb-lb refused { 203.0.113.4 . tcp . 80 }",
		"add element ip ironlb-lb virtuals { * : drop }",
		"add element ip ironlb-lb pods { 192.0.2.1-192.0.2.5 }",
		"add element ip ironlb-lb affinity { 192.0.2.7 . 203.0.113.4 . udp . 53 timeout 0s : 192.0.2.9 . 53 }",
		"add table ip ironlb-lb { flags dormant; }",
	} {
		before := command(t, space, "nft", "-a", "-t", "list", "ruleset")
		command(t, space, "nft", spoil)
		if _, err := d.Virtuals(); err != nil {
			t.Errorf("after %q: %v", spoil, err)
		}
		apply()
		if now := command(t, space, "nft", "-a", "-t", "list", "ruleset"); strings.Contains(spoil, " element ") && !strings.Contains(spoil, "*") && !strings.Contains(spoil, " affinity ") && now != before {
			t.Errorf("after %q more than elements was replaced: before\n%s\nnow\n%s", spoil, before, now)
		}
		if got := lines(t, space); !slices.Equal(got, pristine) {
			t.Errorf("after %q the table is\n%s\nwant\n%s", spoil, strings.Join(got, "\n"), strings.Join(pristine, "\n"))
		}
		sameEverywhere(t, d, want)
		if got := command(t, space, "nft", "list", "set", "ip", "ironlb-lb", "refused"); strings.Contains(got, "elements") {
			t.Errorf("after %q: %s", spoil, got)
		}
		for _, set := range []string{"set ip ironlb-lb pods", "map ip ironlb-lb affinity"} {
			if got := command(t, space, "nft", "list "+set); strings.Contains(got, "elements") {
				t.Errorf("after %q: %s", spoil, got)
			}
		}
		if got := command(t, space, "nft", "list", "map", "ip", "ironlb-lb", "sticky"); strings.Count(got, "goto") != 1 {
			t.Errorf("after %q: %s", spoil, got)
		}
	}
}

// TestChangeBeforeApply: a recent foreign change does not prevent a change.
func TestChangeBeforeApply(t *testing.T) {
	space := netspace.New(t)
	d := open(t, space, nftlb.AllTraffic)
	if _, err := d.Apply(ipvs.Diff(nil, ipvs.Table{web: server("rr", 1)})); err != nil {
		t.Fatal(err)
	}
	command(t, space, "nft", "flush ruleset")
	done, err := d.Apply([]ipvs.Op{{Action: ipvs.EditReal, Virtual: web, Real: real(1), RealServer: ipvs.RealServer{Weight: 2}}})
	if !errors.Is(err, ipvs.ErrNoVirtual) || len(done) != 0 {
		t.Errorf("after a flush an edit gives %v, %v; want ErrNoVirtual", done, err)
	}
	if _, err := d.Apply(ipvs.Diff(nil, ipvs.Table{web: server("rr", 1)})); err != nil {
		t.Fatal(err)
	}
	sameEverywhere(t, d, ipvs.Table{web: server("rr", 1)})
}

// TestForeignTablesStay: nothing outside the package's two tables changes.
func TestForeignTablesStay(t *testing.T) {
	space := netspace.New(t)
	command(t, space, "nft", "add table ip foreign; add chain ip foreign c { type nat hook prerouting priority -110; }; "+
		"add rule ip foreign c counter; add table inet ironlb-lb; add table ip ironlb; add set ip ironlb s { type ipv4_addr; }")
	foreign := func() (text string) {
		for _, table := range []string{"ip foreign", "inet ironlb-lb", "ip ironlb"} {
			text += command(t, space, "nft", "-a", "list table "+table)
		}
		return text
	}
	before := foreign()
	d := open(t, space, nftlb.AllTraffic)
	if _, err := d.Apply(ipvs.Diff(nil, ipvs.Table{web: server("rr", 1)})); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		space.Must(t, d.Remove)
	}
	if after := foreign(); after != before {
		t.Errorf("foreign tables changed from\n%sto\n%s", before, after)
	}
	if got := command(t, space, "nft", "list", "tables"); strings.Contains(got, "ip ironlb-lb") {
		t.Errorf("our table is still there:\n%s", got)
	}
}

// TestAnyHistory: after any changes the kernel's content equals the known state, slot by slot, and a new process reads
// the same.
func TestAnyHistory(t *testing.T) {
	d := open(t, netspace.New(t), nftlb.AllTraffic)
	r := rand.New(rand.NewPCG(5, 6))
	schedulers := []string{"rr", "wrr", "sh", "mh", "fo"}
	have := make(ipvs.Table)
	for range 25 {
		want := ipvstest.RandomTable(r)
		for key, vs := range want {
			vs.Scheduler = schedulers[r.IntN(len(schedulers))]
			want[key] = vs
		}
		if _, err := d.Apply(ipvs.Diff(have, want)); err != nil {
			t.Fatal(err)
		}
		sameEverywhere(t, d, want)
		have = want
	}
}

// sameEverywhere checks that the driver, the kernel and a new process agree on the table.
func sameEverywhere(t *testing.T, d driver, want ipvs.Table) {
	t.Helper()
	got, err := d.List()
	if err != nil || !got.Equal(want) {
		t.Errorf("List = %v, %v; want %v", got, err, want)
	}
	d.space.Must(t, func() error {
		known, listed, err := d.Layouts()
		if err == nil && !maps.EqualFunc(known, listed, maps.Equal[map[uint32]netip.AddrPort]) {
			t.Errorf("known %v\nlisted %v", known, listed)
		}
		return err
	})
}
