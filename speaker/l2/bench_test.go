package l2

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/ownership"
)

// answererEnv makes the test binary an announcer in its own process, so that its processor time is separate from the
// requester's. Its value is the number of addresses of each family.
const answererEnv = "IRONLB_L2_ANSWERER"

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(answererEnv)); err == nil {
		answerer(n)
		return
	}
	os.Exit(m.Run())
}

// answerer holds addresses on eth0 and prints its processor time for each line that it reads.
func answerer(n int) {
	a := New(Config{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	go a.Run(context.Background())
	want := map[netip.Addr]ownership.Announcement{}
	for _, addr := range append(addrsFrom("198.51.100.0", n), addrsFrom("2001:db8::1:0", n)...) {
		want[addr] = on("eth0")
	}
	if held, err := a.Announce(want); err != nil || len(held) != len(want) {
		fmt.Fprintln(os.Stderr, "holds", len(held), "of", len(want), "addresses:", err)
		os.Exit(1)
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var used unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(unix.TimevalToNsec(used.Utime) + unix.TimevalToNsec(used.Stime))
	}
}

// process is an answerer in the node of a segment.
type process struct {
	in  *bufio.Writer
	out *bufio.Scanner
}

// answerIn starts an answerer and waits until its announcements have ended.
func answerIn(b *testing.B, s *segment, n int) *process {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), answererEnv+"="+strconv.Itoa(n))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	s.node.Must(b, cmd.Start)
	b.Cleanup(func() { stdin.Close(); _ = cmd.Wait() })
	p := &process{in: bufio.NewWriter(stdin), out: bufio.NewScanner(stdout)}
	if !p.out.Scan() || p.out.Text() != "ready" {
		b.Fatal("the answerer does not begin")
	}
	p.waitIdle(b)
	return p
}

// waitIdle waits until the answerer has no more announcements to send, which use some processor time. After that, only
// requests use it.
func (p *process) waitIdle(b *testing.B) {
	b.Helper()
	for before, deadline := p.used(b), time.Now().Add(30*time.Second); time.Now().Before(deadline); {
		time.Sleep(steps[len(steps)-1].after / 2) // no two steps of an address are further apart
		now := p.used(b)
		if now-before < 2*time.Millisecond {
			return
		}
		before = now
	}
	b.Fatal("the answerer does not become idle")
}

// used returns the processor time that the answerer has used so far.
func (p *process) used(b *testing.B) time.Duration {
	b.Helper()
	if _, err := p.in.WriteString("\n"); err != nil {
		b.Fatal(err)
	}
	if err := p.in.Flush(); err != nil {
		b.Fatal(err)
	}
	if !p.out.Scan() {
		b.Fatal("the answerer is gone")
	}
	ns, err := strconv.ParseInt(p.out.Text(), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(ns)
}

// BenchmarkForeignRequests measures the cost of requests for foreign addresses: each op is one of them, 10,000 arrive
// per second, and the result is the processor time of the answering process in percent of one core. unfiltered-% is the
// cost of as many requests that it must read and answer.
func BenchmarkForeignRequests(b *testing.B) {
	for _, family := range []int{ipv4, ipv6} {
		for _, n := range []int{10, 2000} {
			b.Run(fmt.Sprintf("%s/addresses=%d", codecs[family].family(), n), func(b *testing.B) {
				s := join(b).side(b, family)
				p := answerIn(b, s.segment, n)
				foreign, owned := addrsFrom("203.0.113.10", 100), addrsFrom("198.51.100.0", n)
				if family == ipv6 {
					foreign, owned = addrsFrom("2001:db8::a:0", 100), addrsFrom("2001:db8::1:0", n)
				}
				cost := func(targets []netip.Addr, count int) float64 {
					before, began := p.used(b), time.Now()
					s.flood(b, targets, count, 10000)
					return 100 * float64(p.used(b)-before) / float64(time.Since(began))
				}
				b.ResetTimer()
				foreignCost := cost(foreign, b.N)
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
				b.ReportMetric(foreignCost, "core-%")
				b.ReportMetric(cost(owned, 10000), "answering-core-%")
			})
		}
	}
}

// flood sends requests at a rate, in batches of a hundredth of a second.
func (s *side) flood(b *testing.B, targets []netip.Addr, count, perSecond int) {
	b.Helper()
	frames := make([][]byte, len(targets))
	for i, target := range targets {
		frames[i] = s.request(s.host, target)
	}
	began := time.Now()
	for i := range count {
		if i%(perSecond/100) == 0 {
			time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(perSecond))))
		}
		s.send(b, frames[i%len(frames)])
	}
}

func (s *side) send(b *testing.B, frame []byte) {
	if _, err := s.conn.WriteTo(frame, &packet.Addr{HardwareAddr: frame[:6]}); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkAnswer measures the time from a request on the wire to its answer, one at a time, while 10,000 foreign
// requests arrive per second. The answerer is a separate process, as in production.
func BenchmarkAnswer(b *testing.B) {
	for _, family := range []int{ipv4, ipv6} {
		for _, noise := range []int{0, 10000} {
			b.Run(fmt.Sprintf("%s/foreign=%d", codecs[family].family(), noise), func(b *testing.B) {
				s := join(b).side(b, family)
				answerIn(b, s.segment, 100)
				s.conn = s.socket(b, s.segment.host, family) // the other one, full of announcements, would drop answers
				target := netip.MustParseAddr("198.51.100.50")
				if family == ipv6 {
					target = netip.MustParseAddr("2001:db8::1:32")
				}
				defer s.background(b, noise)()
				var took []time.Duration
				b.ResetTimer()
				for range b.N {
					began := time.Now()
					s.send(b, s.request(s.host, target))
					if s.replied(b, 200*time.Millisecond) {
						took = append(took, time.Since(began))
					}
					time.Sleep(time.Millisecond) // separates the requests
				}
				b.StopTimer()
				b.ReportMetric(100*float64(b.N-len(took))/float64(b.N), "lost-%")
				if len(took) == 0 {
					b.Fatal("nothing is answered")
				}
				slices.Sort(took)
				for _, q := range []struct {
					name string
					at   float64
				}{{"p50-µs", 0.5}, {"p99-µs", 0.99}, {"max-µs", 1}} {
					i := min(int(float64(len(took))*q.at), len(took)-1)
					b.ReportMetric(float64(took[i].Microseconds()), q.name)
				}
				b.ReportMetric(0, "ns/op") // mostly pauses
			})
		}
	}
}

// replied reports whether an answer arrived in time: a flood can make the kernel drop a request.
func (s *side) replied(b *testing.B, within time.Duration) bool {
	b.Helper()
	if err := s.conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 1514)
	for {
		n, _, err := s.conn.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
		if err != nil {
			b.Fatal(err)
		}
		if m, err := s.codec.parse(buf[:n]); err == nil && m.dst == s.peer && !m.target.IsValid() {
			return true
		}
	}
}

// background floods with foreign requests until stop is called.
func (s *side) background(b *testing.B, perSecond int) (stop func()) {
	b.Helper()
	if perSecond == 0 {
		return func() {}
	}
	other := *s
	other.conn = s.socket(b, s.segment.host, s.family)
	foreign := addrsFrom("203.0.113.10", 100)
	if s.family == ipv6 {
		foreign = addrsFrom("2001:db8::a:0", 100)
	}
	ending, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ending:
				return
			default:
				other.flood(b, foreign, perSecond/10, perSecond)
			}
		}
	}()
	return func() { close(ending); <-done }
}

// BenchmarkAnnounce measures a call without changes.
func BenchmarkAnnounce(b *testing.B) {
	for _, n := range []int{10, 2000} {
		b.Run("addresses="+strconv.Itoa(n), func(b *testing.B) {
			s := newSegment(b, nil)
			want := map[netip.Addr]ownership.Announcement{}
			for _, a := range append(addrsFrom("198.51.100.0", n), addrsFrom("2001:db8::1:0", n)...) {
				want[a] = on("eth0")
			}
			s.announce(b, want)
			runtime.GC()
			b.ReportAllocs()
			b.ResetTimer()
			s.node.Must(b, func() error {
				for range b.N {
					if _, err := s.announcer.Announce(want); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}
