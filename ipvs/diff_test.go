package ipvs_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// rounds is the number of random pairs of tables per property.
const rounds = 2000

// eachPair calls f with pairs of random tables.
func eachPair(t *testing.T, f func(t *testing.T, r *rand.Rand, have, want ipvs.Table)) {
	t.Helper()
	for seed := range uint64(rounds) {
		r := rand.New(rand.NewPCG(seed, 0))
		f(t, r, ipvstest.RandomTable(r), ipvstest.RandomTable(r))
		if t.Failed() {
			t.Fatalf("with seed %d", seed)
		}
	}
}

// same compares two tables field by field, without Diff.
func same(a, b ipvs.Table) bool {
	return fmt.Sprint(sorted(a)) == fmt.Sprint(sorted(b))
}

func sorted(table ipvs.Table) []string {
	var lines []string
	for key, vs := range table {
		lines = append(lines, fmt.Sprintf("%v %+v", key, vs.Settings))
		for addr, rs := range vs.RealServers {
			lines = append(lines, fmt.Sprintf("%v %v %+v", key, addr, rs))
		}
	}
	slices.Sort(lines)
	return lines
}

func applyAll(t *testing.T, table ipvs.Table, ops []ipvs.Op) {
	t.Helper()
	for _, op := range ops {
		if err := table.Apply(op); err != nil {
			t.Error(err)
		}
	}
}

func TestApplyingTheDiffGivesTheWanted(t *testing.T) {
	eachPair(t, func(t *testing.T, _ *rand.Rand, have, want ipvs.Table) {
		applyAll(t, have, ipvs.Diff(have, want))
		if !same(have, want) {
			t.Errorf("got\n%vwant\n%v", have, want)
		}
		if again := ipvs.Diff(have, want); len(again) != 0 {
			t.Errorf("second diff is %v", again)
		}
	})
}

// TestAnyPrefixConverges simulates a crash after every number of ops.
func TestAnyPrefixConverges(t *testing.T) {
	eachPair(t, func(t *testing.T, _ *rand.Rand, have, want ipvs.Table) {
		ops := ipvs.Diff(have, want)
		for n := range len(ops) {
			crashed := have.Clone()
			applyAll(t, crashed, ops[:n])
			applyAll(t, crashed, ipvs.Diff(crashed, want))
			if !same(crashed, want) {
				t.Errorf("crashed after %d of %v: got\n%vwant\n%v", n, ops, crashed, want)
			}
		}
	})
}

func TestSameTablesSameOps(t *testing.T) {
	eachPair(t, func(t *testing.T, r *rand.Rand, have, want ipvs.Table) {
		first := ipvs.Diff(have, want)
		if again := ipvs.Diff(rebuilt(r, have), rebuilt(r, want)); !slices.Equal(first, again) {
			t.Errorf("one order of insertion: %v\nanother: %v", first, again)
		}
	})
}

// rebuilt returns an equal table whose maps were filled in another order.
func rebuilt(r *rand.Rand, table ipvs.Table) ipvs.Table {
	keys := table.Keys()
	r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	again := make(ipvs.Table)
	for _, key := range keys {
		again[key] = ipvs.Table{key: table[key]}.Clone()[key]
	}
	return again
}

// TestNothingIsTakenAwayTooEarly checks the required order: additions and edits before deletions, a virtual server
// before its real servers. It also checks that nothing wanted is ever deleted.
func TestNothingIsTakenAwayTooEarly(t *testing.T) {
	eachPair(t, func(t *testing.T, _ *rand.Rand, have, want ipvs.Table) {
		deleting := false
		for _, op := range ipvs.Diff(have, want) {
			del := op.Action == ipvs.DeleteReal || op.Action == ipvs.DeleteVirtual
			if deleting && !del {
				t.Errorf("%v after a deletion", op)
			}
			deleting = deleting || del
			_, wanted := want[op.Virtual]
			if del && wanted && op.Action == ipvs.DeleteVirtual {
				t.Errorf("%v, which is wanted", op)
			}
			if _, stays := want[op.Virtual].RealServers[op.Real]; stays && op.Action == ipvs.DeleteReal {
				t.Errorf("%v, which is wanted", op)
			}
		}
	})
}

func TestForeignIsNeverTouched(t *testing.T) {
	eachPair(t, func(t *testing.T, r *rand.Rand, have, want ipvs.Table) {
		ours := want.Addrs()
		if r.IntN(2) == 0 {
			ours[netip.AddrFrom4([4]byte{203, 0, 113, 1})] = struct{}{}
		}
		for _, op := range ipvs.Diff(have.Restrict(ours), want) {
			if _, ok := ours[op.Virtual.Addr]; !ok {
				t.Errorf("%v, but ours are %v", op, ours)
			}
		}
	})
}

func TestHashedIsIgnored(t *testing.T) {
	key := ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.TCP, Port: 80}
	listed := ipvs.Table{key: {Settings: ipvs.Settings{Scheduler: "rr", Flags: ipvs.Hashed}}}
	wanted := ipvs.Table{key: {Settings: ipvs.Settings{Scheduler: "rr"}}}
	for _, ops := range [][]ipvs.Op{ipvs.Diff(listed, wanted), ipvs.Diff(wanted, listed)} {
		if len(ops) != 0 {
			t.Errorf("ops %v", ops)
		}
	}
}

// TestScenario documents tables and the ops between them in the form that an operator reads.
func TestScenario(t *testing.T) {
	vip, pod := netip.MustParseAddr("203.0.113.4"), netip.MustParseAddrPort
	web := ipvs.Key{Addr: vip, Protocol: ipvs.TCP, Port: 80}
	tls := ipvs.Key{Addr: vip, Protocol: ipvs.TCP, Port: 443}
	dns := ipvs.Key{Addr: netip.MustParseAddr("2001:db8::53"), Protocol: ipvs.UDP, Port: 53}
	have := ipvs.Table{
		web: {Settings: ipvs.Settings{Scheduler: "rr"}, RealServers: map[netip.AddrPort]ipvs.RealServer{
			pod("192.0.2.11:8080"): {Weight: 0}, pod("192.0.2.12:8080"): {Weight: 1},
		}},
		tls: {Settings: ipvs.Settings{Scheduler: "rr"}},
	}
	want := ipvs.Table{
		web: {
			Settings: ipvs.Settings{Scheduler: "rr", Flags: ipvs.Persistent, Timeout: 10800},
			RealServers: map[netip.AddrPort]ipvs.RealServer{
				pod("192.0.2.11:8080"): {Weight: 1}, pod("192.0.2.13:8080"): {Weight: 1},
			},
		},
		dns: {Settings: ipvs.Settings{Scheduler: "mh", Flags: 0x18}, RealServers: map[netip.AddrPort]ipvs.RealServer{
			pod("[2001:db8:1::5]:53"): {Weight: 1, Forward: ipvs.Tunnel},
		}},
	}
	var b strings.Builder
	fmt.Fprintf(&b, "have\n%v\nwant\n%v\nops\n", have, want)
	for _, op := range ipvs.Diff(have, want) {
		fmt.Fprintln(&b, op)
	}
	golden(t, "scenario.txt", b.String())
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run with -update to write it)", err)
	}
	if got != string(want) {
		t.Errorf("%s (run with -update to accept):\n%s", path, got)
	}
}
