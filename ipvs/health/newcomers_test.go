package health_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/ipvs/health"
)

// endpoints answer under a false clock.
type endpoints struct {
	start   time.Time
	listens map[uint16]time.Duration // from when on; negative: they do not answer
	delay   time.Duration            // of each answer

	mu         sync.Mutex
	busy, most int
	ended      []string
}

func (e *endpoints) ask(ctx context.Context, at netip.AddrPort) error {
	e.count(1)
	defer e.count(-1)
	listens := e.listens[at.Port()]
	delay := e.delay
	if listens < 0 {
		delay = time.Hour
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(delay):
	}
	if time.Since(e.start) < listens {
		return syscall.ECONNREFUSED
	}
	return nil
}

func (e *endpoints) count(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.busy += n
	e.most = max(e.most, e.busy)
}

func (e *endpoints) note(at netip.AddrPort) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = append(e.ended, fmt.Sprintf("%d after %v", at.Port(), time.Since(e.start)))
}

func ports(from, to uint16) map[netip.AddrPort]struct{} {
	out := map[netip.AddrPort]struct{}{}
	for port := from; port <= to; port++ {
		out[netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port)] = struct{}{}
	}
	return out
}

func TestNewcomers(t *testing.T) {
	for name, c := range map[string]struct {
		listens time.Duration
		want    string
		result  string
	}{
		"listens":           {0, "80 after 1ms", "accepted"},
		"begins to listen":  {50 * time.Millisecond, "80 after 64ms", "late"},
		"never listens":     {time.Hour, "80 after 2s", "refused"},
		"does not answer":   {-1, "80 after 100ms", "unanswered"},
		"listens at length": {1990 * time.Millisecond, "80 after 1.996s", "late"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &endpoints{start: time.Now(), listens: map[uint16]time.Duration{80: c.listens}, delay: time.Millisecond}
				metrics := prometheus.NewRegistry()
				n := health.NewNewcomers(health.NewcomersConfig{Log: slog.New(slog.DiscardHandler), Metrics: metrics, Ask: e.ask, Ended: e.note})
				defer n.Close()
				n.Set(ports(80, 80))
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := strings.Join(e.ended, ", "); got != c.want {
					t.Errorf("ended: %q, want %q", got, c.want)
				}
				if got, want := counted(t, metrics), map[string]float64{c.result: 1}; !maps.Equal(got, want) {
					t.Errorf("counted: %v, want %v", got, want)
				}
			})
		})
	}
}

// counted are the results that are not 0.
func counted(t *testing.T, from prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		if n := m.GetCounter().GetValue(); n > 0 {
			out[m.GetLabel()[0].GetValue()] = n
		}
	}
	return out
}

// What is not asked for any more is not told, and what is asked for again is checked anew.
func TestNewcomersGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoints{start: time.Now(), listens: map[uint16]time.Duration{80: time.Hour, 81: time.Second}}
		n := health.NewNewcomers(health.NewcomersConfig{Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Ask: e.ask, Ended: e.note})
		n.Set(ports(80, 81))
		time.Sleep(500 * time.Millisecond)
		n.Set(ports(81, 81))
		time.Sleep(time.Second)
		n.Set(ports(80, 81))
		time.Sleep(time.Second)
		n.Close()
		synctest.Wait()
		if got, want := strings.Join(e.ended, ", "), "81 after 1s"; got != want {
			t.Errorf("ended: %q, want %q", got, want)
		}
	})
}

// Thousands of new endpoints are asked a few at a time, and none waits longer than its limit.
func TestNewcomersAreMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoints{start: time.Now(), listens: map[uint16]time.Duration{}}
		for port := range uint16(5000) {
			e.listens[port+1] = -1
		}
		n := health.NewNewcomers(health.NewcomersConfig{Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Ask: e.ask, Ended: e.note})
		defer n.Close()
		n.Set(ports(1, 5000))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(e.ended) != 5000 || e.most != 64 {
			t.Errorf("%d of 5000 ended, %d at once, want 64", len(e.ended), e.most)
		}
	})
}
