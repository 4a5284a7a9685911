package health_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/ipvs/health"
)

// fixture serves checks under a fake clock, and records requests and reports.
type fixture struct {
	mu      sync.Mutex
	answers map[string]func() (*http.Response, error) // by host
	asked   map[string][]time.Duration
	most    int
	busy    int
	start   time.Time
	changes []string
}

func newFixture() *fixture {
	return &fixture{answers: map[string]func() (*http.Response, error){}, asked: map[string][]time.Duration{}, start: time.Now()}
}

func status(code int, weight string) func() (*http.Response, error) {
	return func() (*http.Response, error) {
		h := http.Header{}
		if weight != "" {
			h.Set("X-Load-Balancing-Endpoint-Weight", weight)
		}
		return &http.Response{StatusCode: code, Header: h, Body: http.NoBody}, nil
	}
}

func (f *fixture) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.asked[r.URL.Host] = append(f.asked[r.URL.Host], time.Since(f.start))
	f.busy++
	f.most = max(f.most, f.busy)
	answer := f.answers[r.URL.Host]
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.busy--
		f.mu.Unlock()
	}()
	if answer == nil { // a dead host
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return answer()
}

func (f *fixture) set(host string, answer func() (*http.Response, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[host] = answer
}

// changed returns what was reported since the last call.
func (f *fixture) changed() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := strings.Join(f.changes, ", ")
	f.changes = nil
	return text
}

func (f *fixture) config() health.ProberConfig {
	return health.ProberConfig{
		Log: slog.New(slog.DiscardHandler), Transport: f,
		Changed: func(c health.Check, r health.Result) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.changes = append(f.changes, fmt.Sprintf("%s %v %d", c.Node, r.Healthy, r.Weight))
		},
	}
}

func check(name string) health.Check {
	n := 1
	_, _ = fmt.Sscanf(name, "node%d", &n)
	return health.Check{Node: name, Addr: netip.AddrFrom4([4]byte{192, 0, byte(2 + n/256), byte(n)}), Port: 30100, Path: "/"}
}

func checks(names ...string) map[health.Check]struct{} {
	set := map[health.Check]struct{}{}
	for _, name := range names {
		set[check(name)] = struct{}{}
	}
	return set
}

// run runs a Prober in a bubble until the test's end.
func run(t *testing.T, cfg health.ProberConfig) *health.Prober {
	p := health.NewProber(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestProberRiseAndFall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		host := "192.0.2.1:30100"
		f.set(host, status(200, "5"))
		p := run(t, f.config())
		p.Set(checks("node1"))
		expect := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := f.changed(); got != want {
				t.Errorf("%v: reported %q, want %q", time.Since(f.start), got, want)
			}
		}
		expect(0, "node1 true 5") // the first response counts
		expect(10*time.Second, "")
		f.set(host, status(200, "3"))
		expect(2500*time.Millisecond, "node1 true 3") // another weight at once
		f.set(host, status(503, "0"))
		expect(3500*time.Millisecond, "") // at most two of these
		expect(5*time.Second, "node1 false 3")
		f.set(host, status(200, ""))
		expect(1700*time.Millisecond, "") // at most one
		expect(5*time.Second, "node1 true 1")
		f.set(host, nil)
		expect(3*2200*time.Millisecond+3*time.Second, "node1 false 1")
	})
}

// One bad response between good ones has no effect, nor has one good response between bad ones.
func TestProberFlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		n := 0
		pattern := "1001100110010000" + "0100010001" // falls once, never rises
		f.set("192.0.2.1:30100", func() (*http.Response, error) {
			n++
			if n <= len(pattern) && pattern[n-1] == '1' {
				return status(200, "1")()
			}
			return nil, errors.New("reset")
		})
		p := run(t, f.config())
		p.Set(checks("node1"))
		time.Sleep(2300 * time.Millisecond * time.Duration(len(pattern)))
		synctest.Wait()
		if got := f.changed(); got != "node1 true 1, node1 false 1" {
			t.Errorf("reported %q", got)
		}
	})
}

// An unhealthy first response is reported, too: before it nothing is known.
func TestProberFirstBad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		p := run(t, f.config())
		p.Set(checks("node1"))
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		if got := f.changed(); got != "" {
			t.Errorf("reported %q before the time-out", got)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if got := f.changed(); got != "node1 false 0" {
			t.Errorf("reported %q", got)
		}
	})
}

// A check that stays keeps its state and its schedule. A removed one is not sent or reported any more, even if it was
// under way. One that is added again starts over.
func TestProberSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.set("192.0.2.1:30100", status(200, "1"))
		p := run(t, f.config())
		p.Set(checks("node1", "node2"))
		time.Sleep(500 * time.Millisecond)
		p.Set(checks("node1"))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := f.changed(); got != "node1 true 1" {
			t.Errorf("reported %q", got)
		}
		if n := len(f.asked["192.0.2.2:30100"]); n != 1 {
			t.Errorf("node2 was asked %d times", n)
		}
		for range 20 {
			p.Set(checks("node1"))
			time.Sleep(100 * time.Millisecond)
		}
		at := f.asked["192.0.2.1:30100"]
		for i := range at[1:] {
			if pause := at[i+1] - at[i]; pause < 1800*time.Millisecond || pause > 2200*time.Millisecond {
				t.Errorf("asked at %v and %v, want about 2 s between", at[i], at[i+1])
			}
		}
		p.Set(nil)
		time.Sleep(10 * time.Second)
		p.Set(checks("node1"))
		synctest.Wait()
		if got := f.changed(); got != "node1 true 1" {
			t.Errorf("after it came back: reported %q", got)
		}
	})
}

// A thousand nodes, half of them dead, are checked within the concurrency limit, and the results of the others are not
// delayed indefinitely.
func TestProberConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		set := map[health.Check]struct{}{}
		for i := range 1000 {
			c := check(fmt.Sprintf("node%d", i))
			set[c] = struct{}{}
			if i%2 == 0 {
				f.set(netip.AddrPortFrom(c.Addr, c.Port).String(), status(200, "1"))
			}
		}
		cfg := f.config()
		cfg.Concurrency = 16
		p := run(t, cfg)
		p.Set(set)
		time.Sleep(time.Minute)
		synctest.Wait()
		if f.most != 16 {
			t.Errorf("%d at a time, want 16", f.most)
		}
		if n := len(f.asked); n != 1000 {
			t.Errorf("%d of 1000 asked", n)
		}
		good := 0
		for _, change := range f.changes {
			if strings.HasSuffix(change, "true 1") {
				good++
			}
		}
		if good != 500 || len(f.changes) != 1000 {
			t.Errorf("reported %d, %d of them good; want 1000 and 500", len(f.changes), good)
		}
	})
}

// TestProberOverTheNetwork checks real servers: one with a weight, one without endpoints, a redirect, a closed port, a
// server that does not respond, one whose response does not end.
func TestProberOverTheNetwork(t *testing.T) {
	server := func(handler http.HandlerFunc) (c health.Check) {
		t.Helper()
		srv := httptest.NewServer(handler)
		t.Cleanup(func() {
			srv.CloseClientConnections()
			srv.Close()
		})
		at := netip.MustParseAddrPort(srv.Listener.Addr().String())
		return health.Check{Addr: at.Addr(), Port: at.Port(), Path: "/healthz"}
	}
	weight := func(n string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Load-Balancing-Endpoint-Weight", n)
			if n == "0" {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	want := map[string]string{
		"weight": "true 4", "none": "false 0", "redirect": "false 0", "closed": "false 0", "silent": "false 0",
		"endless": "true 1", "path": "true 1",
	}
	set := map[health.Check]struct{}{}
	add := func(name string, c health.Check) {
		c.Node = name
		set[c] = struct{}{}
	}
	add("weight", server(weight("4")))
	add("none", server(weight("0")))
	at := netip.MustParseAddrPort(closed.Addr().String())
	add("closed", health.Check{Addr: at.Addr(), Port: at.Port(), Path: "/"})
	add("redirect", server(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }))
	add("silent", server(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	add("endless", server(func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<16)); err != nil {
				return
			}
		}
	}))
	add("path", server(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "GET" || r.URL.Path != "/healthz" {
			w.WriteHeader(http.StatusTeapot)
		}
	}))

	results := make(chan string, 100)
	p := health.NewProber(health.ProberConfig{
		Log:     slog.New(slog.DiscardHandler),
		Changed: func(c health.Check, r health.Result) { results <- fmt.Sprintf("%s %v %d", c.Node, r.Healthy, r.Weight) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	p.Set(set)
	for range want {
		select {
		case got := <-results:
			name, result, _ := strings.Cut(got, " ")
			if want[name] != result {
				t.Errorf("%s, want %s", got, want[name])
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no result")
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
