package bfd

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/plan"
)

// besides returns a node, its router on eth0, and a Pod of the node that has the router's address, too, and sends with
// it.
func besides(t testing.TB) (node, router, pod *netspace.Space) {
	t.Helper()
	node, router = link(t)
	pod = netspace.New(t)
	netspace.Join(t, node, "pod0", "203.0.113.1/24", pod, "eth0", "203.0.113.2/24")
	pod.Address(t, "lo", "192.0.2.2/32")
	pod.Route(t, "192.0.2.1/32", "203.0.113.1")
	node.Sysctl(t, "net.ipv4.conf.all.rp_filter", "0")
	node.Sysctl(t, "net.ipv4.conf.pod0.rp_filter", "0")
	return node, router, pod
}

// TestSpoofed: a Pod that sends with the router's address and a TTL of 255 ends no session, over one hop and over
// several; one in which the router itself restarts is met at once over one hop, and when the detection time is
// over, over several.
func TestSpoofed(t *testing.T) {
	t.Parallel()
	for name, multi := range map[string]bool{"single hop": false, "multihop": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x, y, pod := besides(t)
			a, b := start(t, x), start(t, y)
			a.Set(map[string]Config{"b": {Peer: addr("192.0.2.2"), MultiHop: multi, Timers: steady}})
			b.Set(map[string]Config{"a": {Peer: addr("192.0.2.1"), MultiHop: multi, Timers: steady}})
			since := a.wait(t, "b", "up", agreed(steady.Transmit, 10*steady.Receive)).Since
			port, drop := portSingleHop, DropInterface
			if multi {
				port, drop = portMultiHop, DropNewcomer
			}
			const n = 20
			for _, state := range []State{Down, AdminDown} {
				for range n {
					inject(t, pod, "192.0.2.2", "192.0.2.1", port, 255, foreign(state, 0))
				}
			}
			for deadline := time.Now().Add(patience); testutil.ToFloat64(a.metrics.dropped[drop]) < 2*n; {
				if time.Now().After(deadline) {
					t.Fatalf("%v were dropped for %q: %+v", testutil.ToFloat64(a.metrics.dropped[drop]), drop, a.is("b"))
				}
				<-time.After(10 * time.Millisecond)
			}
			if is := a.is("b"); !up(is) || !is.Since.Equal(since) {
				t.Errorf("the session was up since %v and is %+v", since, is)
			}
			b.stop()
			again := start(t, y)
			again.Set(map[string]Config{"a": {Peer: addr("192.0.2.1"), MultiHop: multi, Timers: steady}})
			want := map[bool]Reason{false: PeerDown, true: Expired}[multi]
			a.wait(t, "b", "up again", func(s Status) bool { return up(s) && s.Downs == 1 })
			if n := testutil.ToFloat64(a.metrics.downs.WithLabelValues("b", string(want))); n != 1 {
				t.Errorf("after the restart of the router it went down %v times for %s", n, want)
			}
		})
	}
}

// TestElsewhere: a peer on another interface than that of the route to it has no session, the status says why, and it
// has one at once when the route is right.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	x, _, pod := besides(t)
	a, b := start(t, x), start(t, pod)
	a.Set(map[string]Config{"b": {Peer: addr("192.0.2.2"), Timers: fast}})
	b.Set(map[string]Config{"a": {Peer: addr("192.0.2.1"), Local: addr("192.0.2.2"), Timers: fast}})
	a.wait(t, "b", "its problem", func(s Status) bool {
		return strings.Contains(s.Problem, "another interface") && !s.Heard
	})
	x.Route(t, "192.0.2.2/32", "203.0.113.2")
	a.wait(t, "b", "up", func(s Status) bool { return up(s) && s.Problem == "" })
}

// junkOf sends datagrams from a namespace until stop, as fast as it can or at a rate, and returns how many.
func junkOf(t testing.TB, space *netspace.Space, to string, rate int, data []byte) (stop func() int) {
	t.Helper()
	var conn net.PacketConn
	space.Must(t, func() (err error) {
		conn, err = net.ListenPacket("udp4", "192.0.2.2:0")
		if err == nil {
			err = ipv4.NewPacketConn(conn).SetTTL(255)
		}
		return err
	})
	dst, err := net.ResolveUDPAddr("udp4", to)
	if err != nil {
		t.Fatal(err)
	}
	batch := make([]ipv4.Message, 100)
	for i := range batch {
		batch[i] = ipv4.Message{Buffers: [][]byte{data}, Addr: dst}
	}
	var sent atomic.Int64
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		p, began := ipv4.NewPacketConn(conn), time.Now()
		for {
			select {
			case <-done:
				return
			default:
			}
			if n, err := p.WriteBatch(batch, 0); err == nil {
				sent.Add(int64(n))
			}
			if ahead := time.Duration(sent.Load())*time.Second/time.Duration(rate) - time.Since(began); ahead > 0 {
				<-time.After(ahead)
			}
		}
	}()
	return func() int {
		close(done)
		<-ended
		conn.Close()
		return int(sent.Load())
	}
}

// startCounted is start, and returns the processor time of the loop's thread as well.
func startCounted(t testing.TB, space *netspace.Space) (e *end, cpu func() time.Duration) {
	t.Helper()
	tid := make(chan int, 1)
	e = startWith(t, space, func() { tid <- unix.Gettid() })
	file := fmt.Sprintf("/proc/self/task/%d/schedstat", <-tid)
	return e, func() (spent time.Duration) {
		text, err := os.ReadFile(file)
		if err == nil {
			_, err = fmt.Sscan(string(text), (*int64)(&spent))
		}
		if err != nil {
			t.Error(err)
		}
		return spent
	}
}

// foreign is a packet of a host that knows no discriminator of a session.
func foreign(state State, your uint32) Packet {
	return Packet{State: state, Multiplier: 3, My: 7, Your: your, DesiredTx: time.Second, RequiredRx: time.Second}
}

// junk is what a foreign host sends, from a Pod of the node or from the router's network.
type junk struct {
	pod    bool
	port   int
	packet Packet
}

// floods are what foreign hosts send at full rate: from a Pod and from the router's network, to either port.
var floods = map[string]junk{
	"spoofed, from a Pod":  {true, portSingleHop, foreign(Down, 0)},
	"up, from the network": {false, portSingleHop, foreign(Up, 9)},
	"multihop, from a Pod": {true, portMultiHop, foreign(Up, 9)},
}

// BenchmarkFlood: 200,000 datagrams in a second to a port of BFD that belong to no session. An op is one of them. It
// fails if a session goes down.
func BenchmarkFlood(b *testing.B) {
	for name, f := range floods {
		b.Run(name, func(b *testing.B) {
			flooded(b, f, fast, 200_000, max(time.Second, time.Duration(b.N)*5*time.Microsecond))
		})
	}
}

// TestFlood is a short flood of each kind: no session goes down, and the loop has a small part of its packets to deal
// with.
func TestFlood(t *testing.T) {
	for name, f := range floods {
		t.Run(name, func(t *testing.T) {
			sent, dealt := flooded(t, f, steady, 100_000, time.Second)
			if sent < 10_000 || dealt > sent/5 {
				t.Errorf("of %d packets the loop dealt with %d", sent, dealt)
			}
		})
	}
}

// flooded has sessions over one hop and over several while a flood lasts, and returns how many packets it has and how
// many of them the loop saw.
func flooded(t testing.TB, f junk, timers plan.BFD, rate int, lasts time.Duration) (sent, dealt int) {
	x, y, pod := besides(t)
	a, cpu := startCounted(t, x)
	b := start(t, y)
	over := func(peer string) map[string]Config {
		return map[string]Config{"one": {Peer: addr(peer), Timers: timers},
			"several": {Peer: addr(peer), MultiHop: true, Timers: timers}}
	}
	a.Set(over("192.0.2.2"))
	b.Set(over("192.0.2.1"))
	for _, name := range []string{"one", "several"} {
		a.wait(t, name, "up", up)
		b.wait(t, name, "up", up)
	}
	from := y
	if f.pod {
		from = pod
	}
	before, began := cpu(), time.Now()
	stop := junkOf(t, from, fmt.Sprintf("192.0.2.1:%d", f.port), rate, f.packet.Append(nil))
	<-time.After(lasts) // the flood is the wait
	sent = stop()
	spent, took := cpu()-before, time.Since(began)
	for reason, counter := range a.metrics.dropped {
		if reason != DropFiltered {
			dealt += int(testutil.ToFloat64(counter))
		}
	}
	for _, name := range []string{"one", "several"} {
		if is := a.is(name); !up(is) || is.Downs > 0 {
			t.Errorf("session %s: %+v", name, is)
		}
	}
	t.Logf("%d packets in %v: the loop saw %d, and had %.1f %% of a core", sent,
		took.Round(time.Millisecond), dealt, 100*spent.Seconds()/took.Seconds())
	if b, is := t.(*testing.B); is {
		b.ReportMetric(float64(sent)/took.Seconds(), "packets/s")
		b.ReportMetric(100*spent.Seconds()/took.Seconds(), "%core")
	}
	return sent, dealt
}
