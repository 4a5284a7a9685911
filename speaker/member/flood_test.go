package member

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

var floodKey = bytes.Repeat([]byte("k"), 32)

// flooded is a node with a peer on its LAN (eth0), and a Pod (pod0) that sends arbitrary datagrams to the speakers'
// port. The test runs its loop.
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
	detector := func(name string) *Detector {
		d, err := New(Options{
			Node: name, Cluster: "default", Keys: [][]byte{floodKey}, Profile: Standard, Metrics: prometheus.NewRegistry(),
			Log: slog.New(slog.DiscardHandler), Wake: func() {},
		})
		if err != nil {
			t.Fatal(err)
		}
		d.SetSegments([]string{"eth0"})
		d.SetPeers(map[string][]netip.Addr{"a": {netip.MustParseAddr("192.0.2.1")}, "b": {netip.MustParseAddr("192.0.2.2")}})
		return d
	}
	f.peer = detector("b")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- other.Do(func() error { return f.peer.Run(ctx) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	d := detector("a")
	f.node.Must(t, func() (err error) {
		if f.loop, err = d.open(); err == nil {
			var have ports
			if have, err = f.lister.list([]string{"eth0"}); err == nil {
				d.put(func(in *inbox) { in.ports = &have })
			}
		}
		return err
	})
	t.Cleanup(f.close)
	return f
}

// until runs ticks of the loop until a condition holds.
func (f *flooded) until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not yet %s: %+v", what, f.core.Counts())
		}
		f.node.Must(t, func() error {
			for range 20 {
				if err := f.iterate(); err != nil {
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

// junk are datagrams that a Pod may send: arbitrary bytes; heartbeats of another key; and a wrong tag with the key's
// id, which no Pod can observe.
func junk(t testing.TB) map[string][]byte {
	sign := func(key []byte) []byte {
		c, err := NewCore(Config{Node: "b", Cluster: "default", Incarnation: 1 << 62, Keys: [][]byte{key}, Profile: Standard})
		if err != nil {
			t.Fatal(err)
		}
		return slices.Clone(c.finish(c.appendHello(c.begin(), 0)))
	}
	forged := sign(floodKey)
	forged[len(forged)-1] ^= 1
	return map[string][]byte{
		"anything": bytes.Repeat([]byte("x"), 100), "another key": sign(bytes.Repeat([]byte("x"), 32)), "wrong tag": forged,
	}
}

// send makes the Pod send a number of datagrams to the node's port, at a rate; 0 for as fast as possible.
func (f *flooded) send(t testing.TB, data []byte, n, rate int) {
	err := f.pod.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, hopLimit); err != nil {
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

// A Pod's datagrams are dropped by the kernel except for a sample, create no entry, and are counted.
func TestFilter(t *testing.T) {
	for name, data := range junk(t) {
		t.Run(name, func(t *testing.T) {
			f := newFlooded(t)
			f.until(t, "settled", f.meets)
			before, drops := f.core.Counts().Received, testutil.ToFloat64(f.metrics.filtered)
			const sent = 2000 // less than the buffer holds
			f.send(t, data, sent, 0)
			dropped := func() float64 { return testutil.ToFloat64(f.metrics.filtered) - drops }
			f.until(t, "read", func() bool { return f.core.Counts().Received-before+uint64(dropped()) >= sent })
			passed := sent - int(dropped()) // copies of the peer's broadcasts may be counted late
			t.Logf("%d of %d passed the filter", passed, sent)
			switch {
			case name == "anything" && passed > 3, name == "another key" && (passed == 0 || passed > sent/16),
				name == "wrong tag" && passed != sent:
				t.Errorf("%d of %d passed the filter", passed, sent)
			}
			f.until(t, "settled after it stalled", f.meets)
			if len(f.core.peers) != 1 || len(f.core.ifaces) != 2 || f.core.Counts().FalseDeaths > 0 {
				t.Errorf("%d nodes, %d interfaces, %+v", len(f.core.peers), len(f.core.ifaces), f.core.Counts())
			}
		})
	}
}

// BenchmarkFlood reports the share of a core that the liveness thread uses, and how often its peer falsely counts as
// dead, while a Pod floods its port.
func BenchmarkFlood(b *testing.B) {
	floods := junk(b)
	floods["none"] = nil
	for _, name := range []string{"none", "anything", "another key", "wrong tag"} {
		b.Run(name, func(b *testing.B) {
			f := newFlooded(b)
			f.until(b, "settled", f.meets)
			const rate = 200_000
			sent := make(chan int)
			stop := make(chan struct{})
			go func() {
				n := 0
				for floods[name] != nil {
					select {
					case <-stop:
						sent <- n
						return
					default:
						f.send(b, floods[name], rate/20, rate)
						n += rate / 20
					}
				}
				<-stop
				sent <- 0
			}()
			var cpu time.Duration
			deaths := 0
			b.ResetTimer()
			start := time.Now()
			f.node.Must(b, func() error {
				before := threadTime()
				for time.Since(start) < time.Duration(b.N)*time.Second {
					if err := f.iterate(); err != nil {
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
			close(stop)
			seconds := time.Since(start).Seconds()
			b.ReportMetric(float64(<-sent)/seconds, "datagrams/s")
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
