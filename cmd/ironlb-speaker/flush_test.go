package main

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
)

// healed is the time limit for the loop to restore what another program flushed. It includes the extra time of an
// emulated kernel.
const healed = 5 * time.Second

// Another program flushes the data plane, as kube-proxy in mode nftables does with IPVS at each start:
// it is restored within seconds. With nftables an idle connection continues. Any other connection continues or ends
// with a reset, not in silence.
func TestFlush(t *testing.T) {
	client, node, _ := threeSpaces(t)
	v := viewOfPod()
	runLoop(t, node, &one{view: v, touched: view.Touched{All: true}}, speaker.NewTrigger())
	const web, dns = "203.0.113.4:80", "203.0.113.4:53"
	served := func(network, to string, within time.Duration) (net.Conn, time.Duration) {
		t.Helper()
		var last error
		for began := time.Now(); time.Since(began) < within; {
			conn, err := client.DialWithin(time.Second, network, "", to)
			if err != nil {
				last = err
				continue
			}
			t.Cleanup(func() { conn.Close() })
			if answer, err := netspace.AskOnWithin(time.Second, conn); err == nil && strings.HasPrefix(answer, "pod ") {
				return conn, time.Since(began)
			} else {
				last = fmt.Errorf("answer %q, error %w", answer, err)
			}
		}
		t.Fatalf("%s %s: not served after %s: %v", network, to, within, last)
		return nil, 0
	}
	idle, _ := served("tcp", web, time.Minute)
	busy, _ := served("tcp", web, time.Minute)
	served("udp", dns, time.Minute)
	flush := exec.Command("nft", "flush", "ruleset")
	if hasIPVS() {
		flush = exec.Command("ipvsadm", "-C")
	}
	node.Must(t, flush.Run)
	began := time.Now()
	answer, err := netspace.AskOnWithin(healed, busy)
	if t.Logf("the busy connection: answer %q, error %v", answer, err); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the busy connection: answer %q, error %v; want an answer or a reset", answer, err)
	}
	for network, to := range map[string]string{"tcp": web, "udp": dns} {
		_, took := served(network, to, healed)
		t.Logf("%s is served again %s after the flush, asked for %s", network, time.Since(began), took)
	}
	if took := time.Since(began); took > healed {
		t.Errorf("served again after %s, want %s at most", took, healed)
	}
	answer, err = netspace.AskOn(idle)
	if hasIPVS() && errors.Is(err, syscall.ECONNRESET) {
		return // observed with Linux 6.1
	}
	if err != nil || !strings.HasPrefix(answer, "pod ") {
		t.Errorf("the idle connection: answer %q, error %v; want it to go on", answer, err)
	}
}

// A killed process leaves real servers unchanged, draining ones with weight 0: the next process corrects them before it
// is ready.
func TestWeightsAreCorrected(t *testing.T) {
	client, node, _ := threeSpaces(t)
	v := viewOfPod()
	node.Must(t, func() error {
		kind := dataplaneNFTables
		if hasIPVS() {
			kind = dataplaneIPVS
		}
		n, o, closeNode := dataplaneNode(t, kind, nil)
		defer closeNode()
		untilReady(t, n, o, v)
		want := plan.Make(v, o.plan(), time.Now())
		compare(t, n, want)
		var drain []ipvs.Op
		for key, virtual := range want.Table {
			for real, settings := range virtual.RealServers {
				settings.Weight = 0
				drain = append(drain, ipvs.Op{Action: ipvs.EditReal, Virtual: key, Real: real, RealServer: settings})
			}
		}
		if _, err := n.VirtualServers.Apply(drain); err != nil || len(drain) == 0 {
			return fmt.Errorf("drain %d real servers: %w", len(drain), err)
		}
		if _, err := client.Dial("tcp", "", "203.0.113.4:80"); err == nil {
			t.Error("a connection to a virtual server whose real servers all drain")
		}
		after, o, closeAfter := dataplaneNode(t, kind, nil)
		defer closeAfter()
		untilReady(t, after, o, v)
		compare(t, after, want)
		return nil
	})
	if answer, err := client.Ask("tcp", "203.0.113.4:80"); err != nil || !strings.HasPrefix(answer, "pod ") {
		t.Errorf("answer %q, error %v; want the Pod's", answer, err)
	}
}
