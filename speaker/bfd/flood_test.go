package bfd

import (
	"context"
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
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/eventually"
)

// routerAndPod returns a node, its router on eth0, and a Pod of the node that also has the router's address and sends
// with it.
func routerAndPod(t testing.TB) (node, router, pod *netspace.Space) {
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

// TestSpoofed: a Pod that sends with the router's address and a TTL of 255 ends no session, over one hop or several. If
// the router itself restarts, it is accepted at once over one hop, and after the detection time over several.
func TestSpoofed(t *testing.T) {
	t.Parallel()
	for name, multi := range map[string]bool{"single hop": false, "multihop": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x, y, pod := routerAndPod(t)
			a, b := start(t, x), start(t, y)
			a.Set(map[string]Config{"b": {Peer: addr("192.0.2.2"), MultiHop: multi, Timers: steady}})
			b.Set(map[string]Config{"a": {Peer: addr("192.0.2.1"), MultiHop: multi, Timers: steady}})
			since := a.wait(t, "b", "up", agreed(steady.Transmit, 10*steady.Receive)).Since
			port, drop := portSingleHop, DropInterface
			if multi {
				port, drop = portMultiHop, DropDiscriminator
			}
			const n = 20
			for _, state := range []State{Down, AdminDown} {
				for range n {
					inject(t, pod, "192.0.2.2", "192.0.2.1", port, 255, foreign(state, 0))
				}
			}
			eventually.Nil(t, patience, fmt.Sprintf("all dropped for %q", drop), func(context.Context) error {
				have := testutil.ToFloat64(a.metrics.dropped[drop])
				return eventually.Unless(have >= 2*n, "%v were: %+v", have, a.is("b"))
			})
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

// TestOtherInterface: a peer on another interface than that of the route to it gets no session, the status reports the
// reason, and the session comes up at once when the route is fixed.
func TestOtherInterface(t *testing.T) {
	t.Parallel()
	x, _, pod := routerAndPod(t)
	a, b := start(t, x), start(t, pod)
	a.Set(map[string]Config{"b": {Peer: addr("192.0.2.2"), Timers: fast}})
	b.Set(map[string]Config{"a": {Peer: addr("192.0.2.1"), Local: addr("192.0.2.2"), Timers: fast}})
	a.wait(t, "b", "its problem", func(s Status) bool {
		return strings.Contains(s.Problem, "another interface") && !s.Received
	})
	x.Route(t, "192.0.2.2/32", "203.0.113.2")
	a.wait(t, "b", "up", func(s Status) bool { return up(s) && s.Problem == "" })
}

// junkOf sends datagrams from an address of a namespace until stop, as fast as possible or at a rate, and returns their
// number.
func junkOf(t testing.TB, space *netspace.Space, source, to string, rate int, data []byte) (stop func() int) {
	t.Helper()
	var conn net.PacketConn
	space.Must(t, func() (err error) {
		conn, err = net.ListenPacket("udp4", source+":0")
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

// TestRestartFiltered: a router several hops away, with an address that a Pod spoofs, restarts. The session is up again
// once the router is: for an active session while the Pod continues, because the router answers this node's packets;
// for a passive session while the kernel still drops.
func TestRestartFiltered(t *testing.T) {
	t.Parallel()
	for name, passive := range map[string]bool{"active, while it lasts": false, "passive, afterwards": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			restartFiltered(t, passive)
		})
	}
}

func restartFiltered(t *testing.T, passive bool) {
	x, y, pod := routerAndPod(t)
	a, b := start(t, x), start(t, y)
	timers := view.BFD{Transmit: 50 * time.Millisecond, Receive: 100 * time.Millisecond, Multiplier: 10}
	router := map[string]Config{"a": {Peer: addr("192.0.2.1"), MultiHop: true, Timers: timers}}
	timers.Passive = passive
	a.Set(map[string]Config{"b": {Peer: addr("192.0.2.2"), MultiHop: true, Timers: timers}})
	b.Set(router)
	a.wait(t, "b", "up", agreed(100*time.Millisecond, time.Second))
	processed := func() float64 { return testutil.ToFloat64(a.metrics.dropped[DropDiscriminator]) }
	spoofed := foreign(Down, 0)
	spoofed.Multiplier, spoofed.DesiredTx = 255, time.Hour // its effect lasts
	stop := junkOf(t, pod, "192.0.2.2", fmt.Sprintf("192.0.2.1:%d", portMultiHop), 20_000, spoofed.Append(nil))
	eventually.Nil(t, patience, "spoofed packets", func(context.Context) error {
		return eventually.Unless(processed() > tolerated, "too few came: %+v", a.is("b"))
	})
	if is := a.is("b"); !up(is) || is.Downs > 0 {
		t.Errorf("spoofed, the session is %+v", is)
	}
	if passive {
		before := processed()
		for deadline := time.Now().Add(patience); ; before = processed() { // until the socket drops them
			if <-time.After(200 * time.Millisecond); processed() == before {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the loop still processes spoofed packets: %v", processed())
			}
		}
		stop()
	} else {
		defer stop()
	}
	b.stop()
	accepted := func() float64 { return testutil.ToFloat64(a.metrics.received.WithLabelValues("b")) }
	was := accepted()
	a.wait(t, "b", "not up", func(s Status) bool { return !up(s) })
	// The router takes longer to start than the detection time, and meanwhile the Pod's packets count as the peer's.
	eventually.Nil(t, patience, "the Pod's packets are those of the peer", func(context.Context) error {
		return eventually.Unless(passive || accepted() > was+tolerated, "it is %+v", a.is("b"))
	})
	again := start(t, y)
	again.Set(router)
	restarted := time.Now()
	is := a.wait(t, "b", "up again", func(s Status) bool { return up(s) && s.Downs >= 1 })
	// Both send once a second until the session is up (RFC 5880, 6.8.3).
	if took := is.Since.Sub(restarted); took > filtered/2 || is.Downs != 1 {
		t.Errorf("%v after the router's restart, %+v", took, is)
	}
}

// startCounted is start that also returns the processor time of the loop's thread.
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

// foreign returns a packet of a host that has no discriminator of a session.
func foreign(state State, your uint32) Packet {
	return Packet{State: state, Multiplier: 3, My: 7, Your: your, DesiredTx: time.Second, RequiredRx: time.Second}
}

// junk is the traffic of a foreign host, in a Pod of the node or in the router's network, and its source address.
type junk struct {
	pod    bool
	source string
	port   int
	packet Packet
}

// absent is the peer of a multihop session that is never up.
const absent = "192.0.2.9"

// floods are sent by foreign hosts at full rate: from a Pod and from the router's network, to either port; with the
// address of a peer with a session that is up, and of one with a session that is not.
var floods = map[string]junk{
	"spoofed, from a Pod":           {true, "192.0.2.2", portSingleHop, foreign(Down, 0)},
	"up, from the network":          {false, "192.0.2.2", portSingleHop, foreign(Up, 9)},
	"multihop, from a Pod":          {true, "192.0.2.2", portMultiHop, foreign(Up, 9)},
	"multihop, spoofed, from a Pod": {true, "192.0.2.2", portMultiHop, foreign(Down, 0)},
	"multihop, of an absent peer":   {true, absent, portMultiHop, foreign(Down, 0)},
}

// BenchmarkFlood: 200,000 datagrams per second to a BFD port that match no session. An op is one of them. It fails if a
// session goes down.
func BenchmarkFlood(b *testing.B) {
	for name, f := range floods {
		b.Run(name, func(b *testing.B) {
			flooded(b, f, fast, 200_000, max(time.Second, time.Duration(b.N)*5*time.Microsecond))
		})
	}
}

// TestFlood is a short flood of each kind: no session goes down, and the loop processes only a small part of its
// packets.
func TestFlood(t *testing.T) {
	for name, f := range floods {
		t.Run(name, func(t *testing.T) {
			sent, processed := flooded(t, f, steady, 100_000, time.Second)
			if sent < 10_000 || processed > sent/5 {
				t.Errorf("of %d packets the loop processed %d", sent, processed)
			}
		})
	}
}

// flooded runs sessions over one hop and over several during a flood, and returns how many packets were sent and how
// many of them the loop processed.
func flooded(t testing.TB, f junk, timers view.BFD, rate int, lasts time.Duration) (sent, processed int) {
	x, y, pod := routerAndPod(t)
	a, cpu := startCounted(t, x)
	b := start(t, y)
	pod.Address(t, "lo", absent+"/32")
	over := func(peer string) map[string]Config {
		return map[string]Config{"one": {Peer: addr(peer), Timers: timers},
			"several": {Peer: addr(peer), MultiHop: true, Timers: timers}}
	}
	b.Set(over("192.0.2.1"))
	sessions := over("192.0.2.2")
	sessions["absent"] = Config{Peer: addr(absent), MultiHop: true, Timers: timers}
	a.Set(sessions)
	for _, name := range []string{"one", "several"} {
		a.wait(t, name, "up", up)
		b.wait(t, name, "up", up)
	}
	from := y
	if f.pod {
		from = pod
	}
	before, began := cpu(), time.Now()
	stop := junkOf(t, from, f.source, fmt.Sprintf("192.0.2.1:%d", f.port), rate, f.packet.Append(nil))
	<-time.After(lasts) // the flood is the wait
	sent = stop()
	spent, took := cpu()-before, time.Since(began)
	for reason, counter := range a.metrics.dropped {
		if reason != DropFiltered {
			processed += int(testutil.ToFloat64(counter))
		}
	}
	processed += int(testutil.ToFloat64(a.metrics.received.WithLabelValues("absent")))
	for _, name := range []string{"one", "several"} {
		if is := a.is(name); !up(is) || is.Downs > 0 {
			t.Errorf("session %s: %+v", name, is)
		}
	}
	t.Logf("%d packets in %v: the loop saw %d, and had %.1f %% of a core", sent,
		took.Round(time.Millisecond), processed, 100*spent.Seconds()/took.Seconds())
	if b, is := t.(*testing.B); is {
		b.ReportMetric(float64(sent)/took.Seconds(), "packets/s")
		b.ReportMetric(100*spent.Seconds()/took.Seconds(), "%core")
	}
	return sent, processed
}
