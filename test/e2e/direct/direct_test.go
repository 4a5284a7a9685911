// Package direct counts connections that faults break, with forwarding "pod" and "direct", in small. The client is
// outside the nodes. test/bench/connections runs all faults, with a thousand connections. IRONLB_DATAPLANE selects the
// data plane: "nftables" (default; natively) or "ipvs" (in a guest if this kernel has no IPVS).
package direct

import (
	"context"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/bench/connections/scenario"
	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/connections"
	"github.com/ironlb/ironlb/test/rare"
)

// dataplane is the data plane of the entire run.
var dataplane = scene.DataPlane(scene.NFTables)

// An emulated guest is busy with 10 lines per second.
var (
	conns = flag.Int("conns", map[string]int{scene.NFTables: 120, scene.IPVS: 30}[dataplane], "established connections")
	every = flag.Duration("every", map[string]time.Duration{
		scene.NFTables: 250 * time.Millisecond, scene.IPVS: 3 * time.Second,
	}[dataplane], "time from one line of a connection to the next")
)

func config() scenario.Config {
	c := scenario.Config{
		Mode: scenario.Pod, DataPlane: dataplane, Conns: *conns, Every: *every, Open: 20 * time.Millisecond,
		Bound: 10 * time.Second, Watch: 3 * time.Second,
	}
	if dataplane == scene.IPVS {
		c.Open, c.Bound, c.Watch = time.Second, 30*time.Second, 9*time.Second
	}
	return c
}

var bench *scenario.Bench

func TestMain(m *testing.M) {
	flag.Parse()
	lab.Main(m, scenario.Lab(config()), func(ctx context.Context, c *lab.Cluster) (err error) {
		bench, err = scenario.Use(ctx, c, config())
		return err
	})
}

// run runs a scenario.
func run(t *testing.T, name string) connections.Row {
	t.Helper()
	bench.Cluster.Need(t)
	s, err := scenario.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	row, err := bench.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	if err := connections.Table(&table, []connections.Row{row}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s\n%s", row.Count, table.String())
	if row.Established() < *conns {
		t.Errorf("%d connections were established, want %d", row.Established(), *conns)
	}
	return row
}

// still runs a scenario without a move of the address. On a busy machine a speaker may stall and lose it.
func still(t *testing.T, name string) (row connections.Row) {
	t.Helper()
	for range 3 {
		if row = run(t, name); row.Moves == 0 {
			break
		}
		t.Logf("the address moved %d times", row.Moves)
	}
	return row
}

// kept fails the test if more than a share of the connections with a Pod elsewhere broke.
func kept(t *testing.T, row connections.Row, share float64) {
	t.Helper()
	if float64(row.Elsewhere.Broken) > share*float64(row.Elsewhere.All) {
		t.Errorf("%s: %d of %d connections with a Pod elsewhere broke: %s", row.Fault, row.Elsewhere.Broken, row.Elsewhere.All, row.Count)
	}
}

// TestPod: with forwarding "pod" nothing breaks by itself, and a new owner breaks connections: the client detects it.
func TestPod(t *testing.T) {
	rare.Test(t)
	if row := still(t, scenario.Nothing); row.Elsewhere.Broken+row.New.Broken > 0 {
		t.Errorf("without a fault connections broke: %s", row.Count)
	}
	if row := run(t, scenario.PlannedMove); row.Elsewhere.Broken == 0 {
		t.Errorf("the address moved, and no connection broke: %s", row.Count)
	}
	if row := still(t, scenario.ScaleIn); row.Elsewhere.Broken > 0 || row.Gone.All == 0 || row.Gone.Broken < row.Gone.All {
		t.Errorf("a Pod was removed: %s", row.Count)
	}
	bench.Disturb(scenario.Conntrack)
	defer bench.Disturb("")
	if row := run(t, scenario.Nothing); row.Elsewhere.Broken == 0 {
		t.Errorf("the owner lost the state of its connections, and no connection broke: %s", row.Count)
	}
}

// direct sets forwarding "direct" until the end of the test.
func direct(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		bench.Disturb("")
		if err := bench.SetForwarding(context.WithoutCancel(t.Context()), scenario.Pod); err != nil {
			t.Error(err)
		}
	})
	if err := bench.SetForwarding(t.Context(), scenario.Direct); err != nil {
		t.Fatal(err)
	}
}

// TestDirect: with forwarding "direct" a connection survives a move of the address, the owner's death and a change of
// the endpoints, unless its Pod is gone. Every Pod sees the client's address, and answers through its own node.
func TestDirect(t *testing.T) {
	direct(t)
	for _, name := range []string{scenario.Nothing, scenario.PlannedMove, scenario.OwnerOff, scenario.ScaleOut, scenario.ScaleIn} {
		t.Run(name, func(t *testing.T) {
			if name == scenario.Nothing || name == scenario.ScaleOut {
				rare.Test(t)
			}
			row := run(t, name)
			kept(t, row, 0)
			if row.New.Broken > 0 {
				t.Errorf("%d of %d new connections broke: %s", row.New.Broken, row.New.All, row.Count)
			}
			if row.Masked.Broken > 0 {
				t.Errorf("Pods of %d of %d connections saw another address than the client's: %s", row.Masked.Broken, row.Masked.All, row.Count)
			}
			if row.Answered.Broken > 0 || row.Answered.All == 0 {
				t.Errorf("answers of %d of %d connections came through another node than their Pod's", row.Answered.Broken, row.Answered.All)
			}
		})
	}
}

// TestDisturbed: the client detects an owner whose slots differ from those of the other nodes. Established connections
// may survive, because the other nodes send them on.
func TestDisturbed(t *testing.T) {
	rare.Test(t)
	direct(t)
	bench.Disturb(scenario.Slots)
	if row := run(t, scenario.Nothing); row.Elsewhere.Broken+row.New.Broken == 0 {
		t.Errorf("the slots of the owner were rotated, and no connection broke: %s", row.Count)
	}
}
