package member

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

var floodKey = bytes.Repeat([]byte("k"), 32)

// flooded is a node with a peer on its LAN (eth0), and a Pod (pod0) that sends what it likes to the speakers' port. Its
// loop is turned by the test.
type flooded struct {
	*loop
	node, pod *netspace.Space
	peer      *Detector
}

func newFlooded(t testing.TB) *flooded {
	t.Helper()
	f := &flooded{node: netspace.New(t), pod: netspace.New(t)}
	other := netspace.New(t)
	netspace.Join(t, f.node, "eth0", "192.0.2.1/24", other, "eth0", "192.0.2.2/24")
	netspace.Join(t, f.node, "pod0", "10.0.0.1/24", f.pod, "eth0", "10.0.0.2/24")
	f.peer = f.detector(t, "b")
	f.run(t, other, f.peer)
	d := f.detector(t, "a")
	f.node.Must(t, func() (err error) {
		f.loop, err = d.open()
		return err
	})
	f.list(t, "eth0")
	t.Cleanup(f.close)
	return f
}

func (f *flooded) detector(t testing.TB, name string) *Detector {
	t.Helper()
	d, err := New(Options{
		Node: name, Cluster: "default", Keys: [][]byte{floodKey}, Profile: Standard, Metrics: prometheus.NewRegistry(),
		Log: slog.New(slog.DiscardHandler), Kick: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	d.SetSegments([]string{"eth0"})
	d.SetPeers(map[string][]netip.Addr{"a": {netip.MustParseAddr("192.0.2.1")}, "b": {netip.MustParseAddr("192.0.2.2")}})
	return d
}

// run runs another speaker until the test ends.
func (f *flooded) run(t testing.TB, space *netspace.Space, d *Detector) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- space.Do(func() error { return d.Run(ctx) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// list gives the loop its segments.
func (f *flooded) list(t testing.TB, names ...string) {
	f.node.Must(t, func() error {
		have, err := f.lister.list(names)
		if err == nil {
			f.put(func(in *inbox) { in.ports = &have })
		}
		return err
	})
}

// turns lets the loop turn until something holds.
func (f *flooded) turns(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not yet %s: %+v", what, f.core.Counts())
		}
		f.node.Must(t, func() error {
			for range 20 {
				if err := f.turn(); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func (f *flooded) meets() bool {
	m, _, _ := f.Observe()
	_, on := m.Peers["b"].On["eth0"]
	return on && !m.Observer
}

// junk are what a Pod may send: anything; heartbeats of another key; and with the key's id, which no Pod sees, a wrong
// tag, or a heartbeat of an earlier process of the peer.
func junk(t testing.TB) map[string][]byte {
	sign := func(key []byte, incarnation uint64) []byte {
		c, err := NewCore(Config{
			Node: "b", Cluster: "default", Incarnation: incarnation, Keys: [][]byte{key}, Profile: Standard,
		})
		if err != nil {
			t.Fatal(err)
		}
		return slices.Clone(c.finish(c.appendHello(c.begin(), 0)))
	}
	forged := sign(floodKey, 1<<62)
	forged[len(forged)-1] ^= 1
	return map[string][]byte{
		"anything": bytes.Repeat([]byte("x"), 100), "another key": sign(bytes.Repeat([]byte("x"), 32), 1<<62),
		"wrong tag": forged, "replayed": sign(floodKey, 1),
	}
}

// podAddress is the Pod's own.
var podAddress = netip.MustParseAddr("10.0.0.2")

// send has the Pod send a number of datagrams from an address to the node's port, at a rate; 0 for as fast as it can.
func (f *flooded) send(t testing.TB, from netip.Addr, data []byte, n, rate int) {
	err := f.pod.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, hopLimit); err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4()}); err != nil {
			return err
		}
		start := time.Now()
		to := &unix.SockaddrInet4{Port: DefaultPort, Addr: [4]byte{10, 0, 0, 1}}
		for i := range n {
			for rate > 0 && time.Since(start) < time.Duration(i)*time.Second/time.Duration(rate) {
				runtime.Gosched()
			}
			if err := unix.Sendto(fd, data, 0, to); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// What a Pod sends is dropped by the kernel, but for a sample, makes no entry, and is counted.
func TestFilter(t *testing.T) {
	for name, data := range junk(t) {
		t.Run(name, func(t *testing.T) {
			f := newFlooded(t)
			f.turns(t, "settled", f.meets)
			before, drops := f.core.Counts().Received, testutil.ToFloat64(f.metrics.filtered)
			const sent = 2000 // less than the buffer holds
			f.send(t, podAddress, data, sent, 0)
			dropped := func() float64 { return testutil.ToFloat64(f.metrics.filtered) - drops }
			f.turns(t, "read", func() bool { return f.core.Counts().Received-before+uint64(dropped()) >= sent })
			passed := sent - int(dropped())
			t.Logf("%d of %d passed the filter", passed, sent)
			switch {
			case name == "anything" && passed > 0, name == "another key" && (passed == 0 || passed > sent/16),
				(name == "wrong tag" || name == "replayed") && passed != sent:
				t.Errorf("%d of %d passed the filter", passed, sent)
			}
			f.turns(t, "settled after it stood still", f.meets)
			if len(f.core.peers) != 1 || len(f.core.ifaces) != 2 || f.core.Counts().FalseDeaths > 0 {
				t.Errorf("%d nodes, %d interfaces, %+v", len(f.core.peers), len(f.core.ifaces), f.core.Counts())
			}
		})
	}
}

// TestUnknownSources: while somebody who knows the key's id floods the port with datagrams that are not right, the kernel
// drops all but a sample of them; speakers that are known are met all along, also if the flood has their address, and one
// that comes new is met within seconds.
func TestUnknownSources(t *testing.T) {
	floods := junk(t)
	for _, c := range []struct{ name, data, from string }{
		{"wrong tag", "wrong tag", "10.0.0.2"}, {"replayed", "replayed", "10.0.0.2"},
		{"spoofed", "wrong tag", "192.0.2.2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFlooded(t)
			f.turns(t, "settled", f.meets)
			f.pod.Address(t, "lo", "192.0.2.2/32")
			f.node.Sysctl(t, "net.ipv4.conf.all.rp_filter", "0")
			f.node.Sysctl(t, "net.ipv4.conf.pod0.rp_filter", "0")
			stop := f.flood(t, netip.MustParseAddr(c.from), floods[c.data], 20_000)
			f.turns(t, "limited to speakers", func() bool { return f.origins.only })
			sent, before, deaths := stop.sent.Load(), f.core.Counts().Received, 0
			const n = 20_000
			f.turns(t, "flooded", func() bool {
				if !f.meets() {
					deaths++
				}
				return stop.sent.Load()-sent >= n
			})
			passed := f.core.Counts().Received - before
			t.Logf("%d of %d passed the filter", passed, n)
			if passed > n/10 || deaths > 0 || f.core.Counts().FalseDeaths > 0 {
				t.Errorf("%d of %d passed the filter; %d deaths", passed, n, deaths)
			}
			third := netspace.New(t)
			netspace.Join(t, f.node, "eth1", "198.51.100.1/24", third, "eth0", "198.51.100.2/24")
			f.list(t, "eth0", "eth1")
			f.run(t, third, f.detector(t, "c"))
			meetsThird := func() bool {
				m, _, _ := f.Observe()
				_, on := m.Peers["c"].On["eth1"]
				return on
			}
			f.turns(t, "meeting a new speaker", meetsThird)
			sent = stop.sent.Load()
			f.turns(t, "flooded", func() bool {
				if !meetsThird() {
					deaths++
				}
				return stop.sent.Load()-sent >= n
			})
			if deaths > 0 {
				t.Errorf("the new speaker was away %d times", deaths)
			}
			stop.stop()
			f.turns(t, "quiet", func() bool { return f.origins.unknown == 0 })
			f.origins.quiet = f.origins.quiet.Add(-calmFor)
			f.turns(t, "open", func() bool { return !f.origins.only })
			received := f.core.Counts().Received
			f.send(t, netip.MustParseAddr(c.from), floods[c.data], 100, 0)
			f.turns(t, "open to all", func() bool { return f.core.Counts().Received-received >= 100 })
		})
	}
}

// TestOrigins: the limit begins with many wrong datagrams in a second where a speaker is known, and ends when few came
// for a while. Origins are bounded, and known as long as right datagrams come.
func TestOrigins(t *testing.T) {
	now, o := time.Unix(0, 0), origins{}
	known, other := origin{netip.MustParseAddr("192.0.2.2"), 2}, origin{netip.MustParseAddr("192.0.2.2"), 3}
	second := func(from origin, why Drop, n int) bool {
		for range n {
			o.wrong(why, from)
		}
		now = now.Add(time.Second)
		o.evaluate(now)
		return o.only
	}
	if second(other, DropTag, 2*unknownMost) {
		t.Error("limited where no speaker is known")
	}
	o.right(now, known)
	switch {
	case second(other, DropTag, unknownMost):
		t.Error("limited for few")
	case second(known, DropTag, 2*unknownMost):
		t.Error("limited for what the limit lets pass")
	case second(other, DropKey, 2*unknownMost):
		t.Error("limited for another cluster's datagrams")
	case !second(other, DropTag, unknownMost+1):
		t.Error("not limited")
	}
	for range calmFor / time.Second {
		o.right(now, known)
		if !second(other, DropTag, unknownFew) {
			t.Fatal("the limit ended during the flood")
		}
	}
	for range calmFor/time.Second - 1 {
		if o.right(now, known); !second(other, DropTag, unknownFew-1) {
			t.Fatal("the limit ended too early")
		}
	}
	if second(other, DropTag, 0) {
		t.Error("the limit does not end")
	}
	for i := range 3 * originsMost {
		o.right(now, origin{netip.MustParseAddr("192.0.2.3"), i})
	}
	if n := len(o.seen); n > 2*originsMost {
		t.Errorf("%d origins", n)
	}
	now = now.Add(originFor)
	if second(known, DropTag, 0); len(o.seen) > 0 {
		t.Errorf("%d origins after a minute", len(o.seen))
	}
}

// flooding is a Pod that sends until stop.
type flooding struct {
	sent atomic.Int64
	stop func()
}

func (f *flooded) flood(t testing.TB, from netip.Addr, data []byte, rate int) *flooding {
	done, ended := make(chan struct{}), make(chan struct{})
	running := &flooding{stop: sync.OnceFunc(func() { close(done); <-ended })}
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				f.send(t, from, data, rate/20, rate)
				running.sent.Add(int64(rate / 20))
			}
		}
	}()
	t.Cleanup(running.stop)
	return running
}

// BenchmarkFlood reports the share of a core that the liveness thread uses, and how often it takes its peer for dead,
// while a Pod floods its port.
func BenchmarkFlood(b *testing.B) {
	floods := junk(b)
	floods["none"] = nil
	for _, name := range []string{"none", "anything", "another key", "wrong tag", "replayed"} {
		b.Run(name, func(b *testing.B) {
			f := newFlooded(b)
			f.turns(b, "settled", f.meets)
			const rate = 200_000
			running := &flooding{stop: func() {}}
			if floods[name] != nil {
				running = f.flood(b, podAddress, floods[name], rate)
			}
			var cpu time.Duration
			deaths := 0
			b.ResetTimer()
			start := time.Now()
			f.node.Must(b, func() error {
				before := threadTime()
				for time.Since(start) < time.Duration(b.N)*time.Second {
					if err := f.turn(); err != nil {
						return err
					}
					if !f.meets() {
						deaths++
					}
				}
				cpu = threadTime() - before
				return nil
			})
			b.StopTimer()
			running.stop()
			seconds := time.Since(start).Seconds()
			b.ReportMetric(float64(running.sent.Load())/seconds, "datagrams/s")
			b.ReportMetric(100*cpu.Seconds()/seconds, "%core")
			b.ReportMetric(float64(deaths), "deaths")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// threadTime is the CPU time of the calling thread.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}
