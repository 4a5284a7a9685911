package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/rare"
)

// fullTable makes a BIRD announce this number of prefixes to one neighbor, each with unique attributes: no two fit into
// one UPDATE.
func fullTable(n int) string {
	var b strings.Builder
	b.WriteString("ipv4 table full4;\nprotocol static full { ipv4 { table full4; };\n")
	for i := range n {
		const route = "route 10.%d.%d.%d/28 unreachable { bgp_large_community.add((65002, %d, %d)); };\n"
		fmt.Fprintf(&b, route, i>>12, i>>4&255, i&15<<4, i, i)
	}
	b.WriteString(`}
protocol bgp flood {
  local 192.0.2.253 as 65002; neighbor 192.0.2.2 as 65001; direct; passive on;
  ipv4 { table full4; import none; export all; next hop self; };
}
`)
	return b.String()
}

// newFlood is a rig whose BIRD has a second session with the node, for a peer named flood, and announces this number of
// prefixes in it.
func newFlood(t *testing.T, n int, flags ...string) (*rig, routes.Peer) {
	t.Helper()
	r := newRig(t, "bird", true, flags...)
	r.node.Address(t, "eth0", "192.0.2.2/24")
	c := config(timers)
	c.BIRD = fullTable(n)
	r.far.Address(t, "eth0", "192.0.2.253/24")
	if err := r.router.Configure(r.ctx, c); err != nil {
		t.Fatal(err)
	}
	return r, routes.Peer{Address: addr("192.0.2.253"), Source: addr("192.0.2.2"), Port: 179, MyASN: 65001, PeerASN: 65002,
		IPv4: true, ConnectTime: time.Second}
}

// memory samples the maximum total resident memory of all processes of a rig, in MB, until it is stopped.
func (r *rig) memory() (stop func() (most float64)) {
	done, result := make(chan struct{}), make(chan float64)
	go func() {
		most, ticker := 0.0, time.NewTicker(10*time.Millisecond)
		defer ticker.Stop()
		for {
			sum := rss(r.process.Pid())
			children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", r.process.Pid()))
			for _, file := range children {
				data, _ := os.ReadFile(file) // the task may have ended
				for _, pid := range strings.Fields(string(data)) {
					sum += rss(pid)
				}
			}
			most = max(most, sum)
			select {
			case <-ticker.C:
			case <-done:
				result <- most
				return
			}
		}
	}()
	return func() float64 { close(done); return <-result }
}

// rss returns the resident memory of a process in MB, 0 if it has ended.
func rss(pid any) (mb float64) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%v/status", pid))
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			fmt.Sscan(text, &mb)
		}
	}
	return mb / 1024
}

// TestFullTable: a router that announces 100,000 prefixes ends its own session: because of the number of prefixes or,
// if that limit is raised, of memory. The memory of all processes stays bounded, the other session and BFD continue,
// and the router is not contacted for a while.
func TestFullTable(t *testing.T) {
	rare.Test(t)
	const n = 100_000
	for _, c := range []struct {
		name   string
		memory string
		limit  uint32
		reason view.Reason
		most   float64 // MB of all processes
	}{
		{"prefixes", "384", 0, routes.TooManyPrefixes, 256},
		{"memory", "192", 1_000_000, routes.OutOfMemory, 320},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, flood := newFlood(t, n, "--peer-memory", c.memory)
			s := r.speaker()
			s.Set(wanted(true, true))
			before := r.settled(true)
			mine, seen := r.session(s, "established", established), len(r.monitor.Events())
			bfd, err := r.bfd()
			if err != nil {
				t.Fatal(err)
			}
			stop := r.memory()
			flood.MaxReceivedPrefixes = c.limit
			s.Set(routes.Change{RouterID: addr("192.0.2.1"), Peers: map[string]*routes.Peer{"flood": &flood}})
			began := time.Now()
			now := r.sessionOf(s, "flood", "it is held off", func(s routes.Session) bool {
				return s.Reason == c.reason && strings.Contains(s.Message, "retry in 5m0s")
			})
			took, most := time.Since(began), stop()
			t.Logf("%d prefixes: %s after %v, at most %.0f MB of all processes: %s",
				n, now.Reason, took.Round(time.Millisecond), most, now.Message)
			if most > c.most {
				t.Errorf("the processes had %.0f MB, want at most %.0f", most, c.most)
			}
			if now := r.session(s, "established", established); now != mine {
				t.Errorf("the other's session was %+v and is %+v", mine, now)
			}
			if now := r.settled(true); !same(now.Since, before.Since) {
				t.Errorf("the router's session was since %v and is since %v", before.Since, now.Since)
			}
			if is, err := r.bfd(); err != nil || is.State != "Up" || is.Since.Sub(bfd.Since).Abs() > 2*time.Second {
				t.Errorf("the router's BFD session was %+v and is %+v (%v)", bfd, is, err)
			}
			if events := r.changes(seen); len(events) > 0 {
				t.Errorf("the router's routes changed: %v", events)
			}
		})
	}
}
