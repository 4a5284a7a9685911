package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/kernel"
	"github.com/ironlb/ironlb/ipvs/nftlb"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
)

// hasIPVS reports whether this kernel has IPVS.
func hasIPVS() bool {
	k, err := kernel.Open()
	if err != nil {
		return false
	}
	k.Close()
	return true
}

// dataplaneNode is openNode for a data plane, as called by a new process. A kernel without IPVS gets a fake one.
func dataplaneNode(t *testing.T, kind dataplaneKind, fake *ipvstest.Kernel) (speaker.Node, options, func()) {
	t.Helper()
	c := newConfig()
	c.Dataplane = kind
	node, closeNode, err := openNode(c, slog.New(slog.NewTextHandler(t.Output(), nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if fake != nil {
		servers := node.VirtualServers.(*virtualServers)
		servers.openIPVS = func(config) (driver, error) { return fake, nil }
		servers.loadedIPVS = func() (ipvsTable, error) { return fake, nil }
		node.Sysctls = noSysctls{} // those of IPVS do not exist
	}
	return node, options{nodeName: "a", config: c}, closeNode
}

type noSysctls struct{}

func (noSysctls) Apply(bool) ([]string, dataplane.SysctlErrors) { return nil, dataplane.SysctlErrors{} }

// nftables reports whether IronLB's forwarding table exists.
func nftables() bool {
	return exec.Command("nft", "list", "table", "ip", nftlb.AllTraffic.Table()).Run() == nil
}

// A speaker that starts with another data plane than its predecessor removes the residual state of that one, once its
// own is programmed. It removes nothing that is not provably its own, in either direction.
func TestDataplaneSwitch(t *testing.T) {
	var fake *ipvstest.Kernel
	if !hasIPVS() {
		fake = ipvstest.NewKernel()
	}
	s := netspace.New(t)
	s.Must(t, func() error {
		var all ipvsTable = fake
		if fake == nil {
			k, err := kernel.Open()
			if err != nil {
				return err
			}
			defer k.Close()
			all = k
		}
		foreign := []ipvs.Key{
			{Addr: netip.MustParseAddr("192.0.2.1"), Protocol: ipvs.TCP, Port: 30080},
			{Addr: netip.MustParseAddr("203.0.113.99"), Protocol: ipvs.UDP, Port: 53},
			{Addr: netip.MustParseAddr("2001:db8::99"), Protocol: ipvs.TCP, Port: 80},
		}
		for _, key := range foreign {
			if _, err := all.Apply([]ipvs.Op{{Action: ipvs.AddVirtual, Virtual: key, Settings: ipvs.Settings{Scheduler: "rr"}}}); err != nil {
				return err
			}
		}
		inIPVS := func(ours map[ipvs.Key]struct{}) {
			t.Helper()
			have, err := all.Virtuals()
			if err != nil {
				t.Fatal(err)
			}
			want := slices.AppendSeq(slices.Clone(foreign), maps.Keys(ours))
			slices.SortFunc(want, ipvs.Key.Compare)
			if got := slices.SortedFunc(maps.Keys(have), ipvs.Key.Compare); !slices.Equal(got, want) {
				t.Errorf("IPVS has %v, want %v", got, want)
			}
		}
		keysOf := func(v *view.View, o options) map[ipvs.Key]struct{} {
			keys := map[ipvs.Key]struct{}{}
			for key := range plan.Make(v, o.plan(), time.Now()).Table {
				keys[key] = struct{}{}
			}
			return keys
		}

		v := exampleView()
		node, o, closeNode := dataplaneNode(t, dataplaneIPVS, fake)
		untilReady(t, node, o, v)
		inIPVS(keysOf(v, o))
		closeNode()

		// A Service is deleted while no speaker runs: its virtual servers are still identified as IronLB's.
		gone := pools.ServiceKey{Namespace: "default", Name: "own"}
		delete(v.Services, gone)
		delete(v.Slices, gone)
		node, o, closeNode = dataplaneNode(t, dataplaneNFTables, fake)
		untilReady(t, node, o, v)
		inIPVS(nil)
		compare(t, node, plan.Make(v, o.plan(), time.Now()))
		closeNode()

		// Back again. While IPVS is programmed nftables continues to forward.
		node, o, closeNode = dataplaneNode(t, dataplaneIPVS, fake)
		defer closeNode()
		servers := node.VirtualServers.(*virtualServers)
		open, asked := servers.openIPVS, 0
		servers.openIPVS = func(c config) (driver, error) {
			d, err := open(c)
			return before{d, func() {
				if asked++; asked == 1 && !nftables() {
					t.Error("nftables forwards no more, and IPVS does not yet")
				}
			}}, err
		}
		untilReady(t, node, o, v)
		inIPVS(keysOf(v, o))
		if asked == 0 || nftables() {
			t.Errorf("IPVS was programmed %d times, and the table %s is left: %v", asked, nftlb.AllTraffic.Table(), nftables())
		}
		return nil
	})
}

// before calls a function before each change.
type before struct {
	driver
	do func()
}

func (b before) Apply(ops []ipvs.Op) ([]ipvs.Op, error) {
	b.do()
	return b.driver.Apply(ops)
}

// Residual state is removed also if nothing had to be programmed, as after a crash between the two. A virtual server
// that cannot be programmed does not prevent that; a refusal by the data plane as such does. A failed removal is logged
// once and retried.
func TestResidualStateIsRemoved(t *testing.T) {
	refused := errors.New("refused")
	op := ipvs.Op{Action: ipvs.AddVirtual, Virtual: ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.TCP, Port: 80},
		Settings: ipvs.Settings{Scheduler: "rr"}}
	other := op
	other.Virtual.Port = 81
	for name, test := range map[string]struct {
		do   func(v *virtualServers, k *ipvstest.Kernel)
		want int
	}{
		"nothing to do":    {func(v *virtualServers, _ *ipvstest.Kernel) { v.programmed() }, 1},
		"only once":        {func(v *virtualServers, _ *ipvstest.Kernel) { v.programmed(); v.programmed() }, 1},
		"all done":         {func(v *virtualServers, _ *ipvstest.Kernel) { _, _ = v.Apply([]ipvs.Op{op, other}) }, 1},
		"no op, no change": {func(v *virtualServers, _ *ipvstest.Kernel) { _, _ = v.Apply(nil) }, 0},
		"one fails": {func(v *virtualServers, k *ipvstest.Kernel) {
			k.Fail = func(o ipvs.Op) error { return map[uint16]error{81: refused}[o.Virtual.Port] }
			_, _ = v.Apply([]ipvs.Op{op, other})
		}, 1},
		"all fail": {func(v *virtualServers, k *ipvstest.Kernel) {
			k.Fail = func(ipvs.Op) error { return refused }
			_, _ = v.Apply([]ipvs.Op{op, other})
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			k, removed := ipvstest.NewKernel(), 0
			v := &virtualServers{residual: &residual{remove: func() error { removed++; return nil }}}
			v.choose(dataplaneIPVS, k)
			test.do(v, k)
			if removed != test.want {
				t.Errorf("removed %d times, want %d", removed, test.want)
			}
		})
	}

	var log strings.Builder
	tries := 0
	l := &residual{log: slog.New(slog.NewTextHandler(&log, nil)), remove: func() error {
		if tries++; tries < 3 {
			return refused
		}
		return nil
	}}
	for range 5 {
		l.programmed()
		l.programmed() // it pauses after an error
		l.retry = time.Time{}
	}
	if logged := strings.Count(log.String(), "refused"); tries != 3 || logged != 1 {
		t.Errorf("tried %d times, logged %d times", tries, logged)
	}
}

// Datagrams of a client that used IPVS, and continues to send, follow the switch. A connection through nftables
// survives the switch back.
func TestClientsFollowTheSwitch(t *testing.T) {
	if !hasIPVS() {
		t.Skip("this kernel has no IPVS")
	}
	client, node, _ := threeSpaces(t)
	v := viewOfPod()
	run := func(kind dataplaneKind) {
		node.Must(t, func() error {
			n, o, closeNode := dataplaneNode(t, kind, nil)
			defer closeNode()
			untilReady(t, n, o, v)
			return nil
		})
	}
	run(dataplaneIPVS)
	dial := func(network, to string) net.Conn {
		conn, err := client.DialWithin(30*time.Second, network, "", to)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	datagrams := dial("udp", "203.0.113.4:53")
	ask := func(conn net.Conn) (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for ctx.Err() == nil {
			var name string
			if name, err = netspace.AskOnWithin(time.Second, conn); err == nil && strings.Contains(name, "pod") {
				return nil
			}
		}
		return fmt.Errorf("no answer: %w", err)
	}
	if err := ask(datagrams); err != nil {
		t.Fatal(err)
	}
	run(dataplaneNFTables)
	if err := ask(datagrams); err != nil {
		t.Errorf("datagrams, after the switch to nftables: %v", err)
	}
	connection := dial("tcp", "203.0.113.4:80")
	if err := ask(connection); err != nil {
		t.Fatal(err)
	}
	run(dataplaneIPVS)
	for name, conn := range map[string]net.Conn{"datagrams": datagrams, "connection": connection} {
		if err := ask(conn); err != nil {
			t.Errorf("%s, after the switch to IPVS: %v", name, err)
		}
	}
}
