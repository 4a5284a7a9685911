package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/conntrack"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/kernel"
	"github.com/ironlb/ironlb/test/eventually"
)

// Every scheduler of Linux is available, and those with flags keep them.
func TestSchedulers(t *testing.T) {
	k, _ := openNew(t)
	for _, scheduler := range []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh"} {
		if err := k.Probe(scheduler); err != nil {
			t.Errorf("%s: %v", scheduler, err)
		}
		want := ipvs.Settings{Scheduler: scheduler}
		if scheduler == "sh" || scheduler == "mh" {
			want.Flags = 0x18 // fallback, port
		}
		if _, err := k.Apply([]ipvs.Op{{Action: ipvs.AddVirtual, Virtual: web, Settings: want}}); err != nil {
			t.Errorf("%s: %v", scheduler, err)
		}
		if got, err := k.Virtuals(); err != nil || got[web] != want {
			t.Errorf("wrote %v, read %v, %v", want, got, err)
		}
	}
}

// Count counts IPv4 virtual servers of any program.
func TestCount(t *testing.T) {
	k, _ := openNew(t)
	web6 := ipvs.Key{Addr: netip.MustParseAddr("2001:db8::4"), Protocol: ipvs.TCP, Port: 80}
	for _, key := range []ipvs.Key{web, dns, web6} {
		if _, err := k.Apply([]ipvs.Op{{Action: ipvs.AddVirtual, Virtual: key, Settings: ipvs.Settings{Scheduler: "rr"}}}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := k.Count(); err != nil || n != 2 {
		t.Errorf("Count = %d, %v; want 2", n, err)
	}
}

func TestTimeouts(t *testing.T) {
	k, _ := openNew(t)
	before, err := k.Timeouts()
	if want := (kernel.Timeouts{TCP: 15 * time.Minute, TCPFin: 2 * time.Minute, UDP: 5 * time.Minute}); err != nil || before != want {
		t.Errorf("of the kernel: %v, %v; want %v", before, err, want)
	}
	for _, c := range []struct {
		set     kernel.Timeouts
		changed bool
	}{{kernel.Timeouts{}, false}, {kernel.Timeouts{UDP: 30 * time.Second}, true}, {kernel.Timeouts{UDP: 30 * time.Second}, false}} {
		if changed, err := k.SetTimeouts(c.set); err != nil || changed != c.changed {
			t.Errorf("%v: changed %v, %v", c.set, changed, err)
		}
	}
	before.UDP = 30 * time.Second
	if after, err := k.Timeouts(); err != nil || after != before {
		t.Errorf("after: %v, %v; want %v", after, err, before)
	}
}

// sticky is a virtual server with session affinity, a time-out in seconds and the given weights of the two Pods.
func sticky(key ipvs.Key, timeout uint32, weights [2]uint32) ipvs.Table {
	virtual := ipvs.VirtualServer{
		Settings:    ipvs.Settings{Scheduler: "rr", Flags: ipvs.Persistent, Timeout: timeout},
		RealServers: map[netip.AddrPort]ipvs.RealServer{},
	}
	for i, weight := range weights {
		addr := []string{"198.51.100.2", "198.51.100.66"}[i]
		if key.Addr.Is6() {
			addr = []string{"2001:db8:20::2", "2001:db8:21::2"}[i]
		}
		port := map[ipvs.Protocol]uint16{ipvs.TCP: 8080, ipvs.UDP: 5353}[key.Protocol]
		virtual.RealServers[netip.AddrPortFrom(netip.MustParseAddr(addr), port)] = ipvs.RealServer{Weight: weight}
	}
	return ipvs.Table{key: virtual}
}

func pod(answer string) string { name, _, _ := strings.Cut(answer, " "); return name }

// ask sends a request to a virtual server from one of the client's addresses.
func (l *lab) ask(t *testing.T, key ipvs.Key, from string) string {
	t.Helper()
	network := map[ipvs.Protocol]string{ipvs.TCP: "tcp", ipvs.UDP: "udp"}[key.Protocol]
	conn, err := l.client.Dial(network, from, netip.AddrPortFrom(key.Addr, key.Port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer, err := netspace.AskOn(conn)
	if err != nil {
		t.Fatal(err)
	}
	return pod(answer)
}

// Affinity uses the full address, in both families: neighbors are spread. A client whose Pod has weight 0
// moves with its next connection, while its existing ones stay.
func TestAffinity(t *testing.T) {
	l := newLab(t)
	l.client.Address(t, "eth0", "192.0.2.3/24")
	l.client.Address(t, "eth0", "2001:db8:1::3/64")
	web6 := ipvs.Key{Addr: netip.MustParseAddr(vip6), Protocol: ipvs.TCP, Port: 80}
	for _, c := range []struct {
		key       ipvs.Key
		one, next string
	}{{web, "192.0.2.2", "192.0.2.3"}, {web6, "2001:db8:1::2", "2001:db8:1::3"}} {
		l.apply(t, sticky(c.key, 10800, [2]uint32{1, 1}), c.key)
		first, second := l.ask(t, c.key, c.one), l.ask(t, c.key, c.next)
		if first == second {
			t.Errorf("%v: two clients both have %s", c.key, first)
		}
		for range 3 {
			if a, b := l.ask(t, c.key, c.one), l.ask(t, c.key, c.next); a != first || b != second {
				t.Errorf("%v: answers of %s and %s, want %s and %s again", c.key, a, b, first, second)
			}
		}
		open, err := l.client.Dial("tcp", c.one, netip.AddrPortFrom(c.key.Addr, 80).String())
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		weights := map[string][2]uint32{"pod0": {0, 1}, "pod1": {1, 0}}
		l.apply(t, sticky(c.key, 10800, weights[first]), c.key)
		if got := l.ask(t, c.key, c.one); got != second {
			t.Errorf("%v: a new connection reaches %s, which drains", c.key, got)
		}
		if answer, err := netspace.AskOn(open); err != nil || pod(answer) != first {
			t.Errorf("%v: the open connection: %q, %v; want %s", c.key, answer, err, first)
		}
	}
}

// Affinity ends with its time-out after the last connection, also for a client with many, and not before. IPVS
// keeps the template as long as it has connections; here those are of UDP and end after a second.
func TestAffinityEnds(t *testing.T) {
	l := newLab(t)
	if _, err := l.kernel.SetTimeouts(kernel.Timeouts{UDP: time.Second}); err != nil {
		t.Fatal(err)
	}
	templates := func() (n int) {
		l.node.Must(t, func() error {
			text, err := os.ReadFile("/proc/thread-self/net/ip_vs_conn")
			for line := range strings.Lines(string(text)) {
				fields := strings.Fields(line)
				if len(fields) > 3 && fields[0] == "UDP" && fields[2] == "0000" { // no client port
					n++
				}
			}
			return err
		})
		return n
	}
	const timeout = 4
	l.apply(t, sticky(dns, timeout, [2]uint32{1, 1}), dns)
	began := time.Now()
	first := l.ask(t, dns, "192.0.2.2")
	for range 3 {
		if got := l.ask(t, dns, "192.0.2.2"); got != first && time.Since(began) < timeout*time.Second {
			t.Errorf("answer of %s, want %s again", got, first)
		}
	}
	if n := templates(); n != 1 && time.Since(began) < timeout*time.Second {
		t.Fatalf("%d templates after the first answer, want 1", n)
	}
	eventually.True(t, 30*time.Second, fmt.Sprintf("the template to end after %ds", timeout), func() bool { return templates() == 0 })
	if took := time.Since(began); took < timeout*time.Second {
		t.Errorf("the template ended after %s, want %ds", took, timeout)
	}
}

// dialFrom connects repeatedly from a fixed port: closing sends a reset, so the port is free at once.
func (l *lab) dialFrom(t *testing.T, port int) (net.Conn, time.Duration) {
	t.Helper()
	var conn net.Conn
	began := time.Now()
	l.client.Must(t, func() (err error) {
		dialer := net.Dialer{
			Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: port},
			Control: func(_, _ string, c syscall.RawConn) (err error) {
				_ = c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
				return err
			},
		}
		conn, err = dialer.Dial("tcp4", vip+":80")
		return err
	})
	_ = conn.(*net.TCPConn).SetLinger(0)
	return conn, time.Since(began)
}

// A client that reuses its port while its Pod drains gets another Pod (4.6, T16). That happens at once if its
// connection was closed before. If not, as after a crash of the client, a conntrack entry costs it the first SYN, and
// the second follows after a second.
func TestPortReuseWhileDraining(t *testing.T) {
	for name, c := range map[string]struct {
		vanish bool
		most   time.Duration
	}{"after a reset": {false, 900 * time.Millisecond}, "after a crash of the client": {true, 2500 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.apply(t, ipvs.Table{web: rr(webReals)}, web)
			conn, took := l.dialFrom(t, 40000)
			answer, err := netspace.AskOn(conn)
			if err != nil {
				t.Fatal(err)
			}
			if c.vanish {
				vanish(t, conn)
			}
			conn.Close()
			t.Logf("first connection after %v", took)
			drained := ipvs.Table{web: rr(map[netip.AddrPort]ipvs.RealServer{})}
			for i, at := range []string{"198.51.100.2:8080", "198.51.100.66:8080"} {
				weight := uint32(1)
				if pod(answer) == []string{"pod0", "pod1"}[i] {
					weight = 0
				}
				drained[web].RealServers[netip.MustParseAddrPort(at)] = ipvs.RealServer{Weight: weight}
			}
			l.apply(t, drained, web)
			again, took := l.dialFrom(t, 40000)
			defer again.Close()
			after, err := netspace.AskOn(again)
			if err != nil || pod(after) == pod(answer) {
				t.Errorf("answer %q, %v; want the Pod that does not drain", after, err)
			}
			if t.Logf("the same port again after %v", took); took > c.most {
				t.Errorf("connecting took %v, want %v at most", took, c.most)
			}
		})
	}
}

// vanish closes the socket silently: in repair mode (tcp(7), TCP_REPAIR) closing sends nothing.
func vanish(t *testing.T, conn net.Conn) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_REPAIR, 1) })
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
}

// The connections to a deleted Pod end with a reset, not in silence: IPVS deletes the connection. The next packet
// reaches the node's own stack, which has no such connection.
func TestPodGone(t *testing.T) {
	l := newLab(t)
	l.apply(t, ipvs.Table{web: rr(webReals)}, web)
	conn, err := l.client.Dial("tcp", "", vip+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer, err := netspace.AskOn(conn)
	if err != nil {
		t.Fatal(err)
	}
	gone := map[string]string{"pod0": "198.51.100.2:8080", "pod1": "198.51.100.66:8080"}[pod(answer)]
	left := map[netip.AddrPort]ipvs.RealServer{}
	for at, r := range webReals {
		if at.String() != gone {
			left[at] = r
		}
	}
	l.apply(t, ipvs.Table{web: rr(left)}, web)
	if after, err := netspace.AskOnWithin(20*time.Second, conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("answer %q, %v; want a reset", after, err)
	}
	if got := l.ask(t, web, ""); got == pod(answer) {
		t.Errorf("a new connection reaches %s, which is gone", got)
	}
}

// A UDP client that keeps its port follows a change of endpoints, also from none to some.
func TestUDPFollows(t *testing.T) {
	l := newLab(t)
	only := func(i int) map[netip.AddrPort]ipvs.RealServer {
		at := netip.MustParseAddrPort([]string{"198.51.100.2:5353", "198.51.100.66:5353"}[i])
		return map[netip.AddrPort]ipvs.RealServer{at: {Weight: 1}}
	}
	become := func(reals map[netip.AddrPort]ipvs.RealServer) {
		t.Helper()
		l.apply(t, ipvs.Table{dns: rr(reals)}, dns)
		l.node.Must(t, func() error {
			_, err := conntrack.Clean(context.Background(), ipvs.Table{dns: rr(reals)})
			return err
		})
	}
	var conn net.Conn
	l.client.Must(t, func() (err error) {
		conn, err = net.DialUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 40000}, &net.UDPAddr{IP: net.ParseIP(vip), Port: 53})
		return err
	})
	defer conn.Close()
	want := func(name string) {
		t.Helper()
		// One packet may be lost: the one with which IPVS detects that its real server is deleted.
		for deadline := time.Now().Add(20 * time.Second); ; {
			answer, err := netspace.AskOnWithin(2*time.Second, conn)
			if err == nil && pod(answer) == name {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("answer %q, %v; want one of %s", answer, err, name)
			}
		}
	}
	become(nil)
	if answer, err := netspace.AskOn(conn); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("without endpoints: answer %q, %v; want it refused", answer, err)
	}
	become(only(0))
	want("pod0")
	become(only(1))
	want("pod1")
	become(nil)
	become(only(0))
	want("pod0")
}
