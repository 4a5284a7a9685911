package bfd

import (
	"context"
	"log/slog"
	"net/netip"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/view"
)

const patience = 20 * time.Second

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// end is a Driver in a namespace.
type end struct {
	*Driver
	space    *netspace.Space
	registry *prometheus.Registry
	stop     func()

	mu      sync.Mutex
	status  map[string]Status
	history []string // of states, "name State"
	wake    chan struct{}
}

// start runs a Driver in a namespace until the test's end or stop.
func start(t testing.TB, space *netspace.Space) *end { return startWith(t, space, func() {}) }

// startWith is start that first calls begin on the Driver's thread.
func startWith(t testing.TB, space *netspace.Space, begin func()) *end {
	e := &end{space: space, registry: prometheus.NewRegistry(), status: map[string]Status{}, wake: make(chan struct{}, 1)}
	e.Driver = New(Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Changed: e.changed, Independent: true, Metrics: e.registry})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- space.Do(func() error { begin(); return e.Run(ctx) }) }()
	e.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(e.stop)
	return e
}

func (e *end) changed(all map[string]Status) {
	e.mu.Lock()
	for name, is := range all {
		if was, known := e.status[name]; !known || was.State != is.State {
			e.history = append(e.history, name+" "+string(is.State))
		}
	}
	e.status = all
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *end) is(name string) Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status[name]
}

func (e *end) states() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.history, ", ")
}

// wait waits until the status of a session is as wanted.
func (e *end) wait(t testing.TB, name, what string, ok func(Status) bool) Status {
	t.Helper()
	deadline := time.After(patience)
	for {
		e.mu.Lock()
		is, known := e.status[name]
		e.mu.Unlock()
		if known && ok(is) {
			return is
		}
		select {
		case <-e.wake:
		case <-deadline:
			t.Fatalf("%s: %s: not within %v: %+v", name, what, patience, is)
		}
	}
}

func up(s Status) bool   { return s.State == view.BFDUp }
func down(s Status) bool { return s.State == view.BFDDown }

// agreed reports whether a session is up with these intervals in force.
func agreed(transmit, detection time.Duration) func(Status) bool {
	return func(s Status) bool { return up(s) && s.Transmit == transmit && s.Detection == detection }
}

// fast are the timers of most tests. A session with them may expire on a busy or emulated machine.
var fast = view.BFD{Receive: 100 * time.Millisecond, Transmit: 100 * time.Millisecond, Multiplier: 3}

// steady are the timers of sessions that stay up on the busiest machine.
var steady = view.BFD{Receive: 300 * time.Millisecond, Transmit: 300 * time.Millisecond, Multiplier: 10}

// silence makes a namespace drop all BFD packets silently, in and out, until heal.
func silence(t testing.TB, space *netspace.Space) (heal func()) {
	t.Helper()
	nft(t, space, `table inet cut {
		chain in { type filter hook input priority 0; udp dport { 3784, 4784 } drop; }
		chain out { type filter hook output priority 0; udp dport { 3784, 4784 } drop; }
	}`)
	return func() { nft(t, space, "delete table inet cut") }
}

func nft(t testing.TB, space *netspace.Space, rules string) {
	t.Helper()
	space.Must(t, func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Logf("%s", out)
		}
		return err
	})
}

var counter = regexp.MustCompile(`counter packets (\d+) .*comment "(.*)"`)

// counters returns the counters of table inet count by their comments.
func counters(t testing.TB, space *netspace.Space) map[string]int {
	t.Helper()
	counters := map[string]int{}
	space.Must(t, func() error {
		out, err := exec.Command("nft", "list", "table", "inet", "count").Output()
		for _, m := range counter.FindAllStringSubmatch(string(out), -1) {
			counters[m[2]], _ = strconv.Atoi(m[1])
		}
		return err
	})
	return counters
}

// link joins two namespaces with addresses of both families.
func link(t testing.TB) (a, b *netspace.Space) {
	a, b = netspace.New(t), netspace.New(t)
	netspace.Join(t, a, "eth0", "192.0.2.1/24", b, "eth0", "192.0.2.2/24")
	for space, six := range map[*netspace.Space][2]string{a: {"2001:db8::1/64", "fe80::1/64"}, b: {"2001:db8::2/64", "fe80::2/64"}} {
		for _, one := range six {
			space.Address(t, "eth0", one)
		}
	}
	return a, b
}

// far joins two namespaces over a router.
func far(t testing.TB) (a, b *netspace.Space) {
	a, b = netspace.New(t), netspace.New(t)
	r := netspace.New(t)
	netspace.Join(t, a, "eth0", "192.0.2.1/24", r, "eth0", "192.0.2.254/24")
	netspace.Join(t, b, "eth0", "198.51.100.2/24", r, "eth1", "198.51.100.254/24")
	for space, six := range map[*netspace.Space][3]string{a: {"2001:db8:1::1/64", "", "2001:db8:1::fe"}, b: {"2001:db8:2::2/64", "", "2001:db8:2::fe"}} {
		space.Address(t, "eth0", six[0])
	}
	r.Address(t, "eth0", "2001:db8:1::fe/64")
	r.Address(t, "eth1", "2001:db8:2::fe/64")
	r.Sysctl(t, "net.ipv4.ip_forward", "1")
	r.Sysctl(t, "net.ipv6.conf.all.forwarding", "1")
	a.Route(t, "0.0.0.0/0", "192.0.2.254")
	b.Route(t, "0.0.0.0/0", "198.51.100.254")
	a.Route(t, "::/0", "2001:db8:1::fe")
	b.Route(t, "::/0", "2001:db8:2::fe")
	return a, b
}

// inject sends a datagram to a BFD port from a namespace, with a TTL.
func inject(t testing.TB, space *netspace.Space, from, to string, port, ttl int, p Packet) {
	t.Helper()
	injectTimes(t, 1, space, from, to, port, ttl, p)
}

// injectTimes sends a number of them from one socket.
func injectTimes(t testing.TB, times int, space *netspace.Space, from, to string, port, ttl int, p Packet) {
	t.Helper()
	space.Must(t, func() error {
		local := addr(from)
		family := unix.AF_INET6
		if local.Is4() {
			family = unix.AF_INET
		}
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if family == unix.AF_INET {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, ttl)
		} else {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, ttl)
		}
		if err != nil {
			return err
		}
		if err := unix.Bind(fd, sockaddr(local, 0, 0)); err != nil {
			return err
		}
		data, target := p.Append(nil), sockaddr(addr(to), uint16(port), 0)
		for range times {
			if err := unix.Sendto(fd, data, 0, target); err != nil {
				return err
			}
		}
		return nil
	})
}
