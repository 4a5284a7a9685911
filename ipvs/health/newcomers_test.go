package health_test

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/ipvs/health"
)

// endpoints are fake endpoints with a fake clock.
type endpoints struct {
	start   time.Time
	listens map[uint16]time.Duration // start time; negative: they do not answer
	silent  time.Duration            // from when on there is no answer before they listen; 0: never
	delay   time.Duration            // of each answer

	mu         sync.Mutex
	busy, most int
	ended      []ended
}

type ended struct {
	at    netip.AddrPort
	after time.Duration
}

func (e *endpoints) ask(ctx context.Context, at netip.AddrPort) error {
	e.count(1)
	defer e.count(-1)
	listens := e.listens[at.Port()]
	delay := e.delay
	if now := time.Since(e.start); listens < 0 || e.silent > 0 && now >= e.silent && now < listens {
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

func (e *endpoints) record(at netip.AddrPort) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = append(e.ended, ended{at, time.Since(e.start)})
}

func ports(from, to uint16) map[netip.AddrPort]struct{} {
	out := map[netip.AddrPort]struct{}{}
	for port := from; port <= to; port++ {
		out[netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port)] = struct{}{}
	}
	return out
}

func TestNewcomers(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		listens, silent time.Duration
		least, most     time.Duration // duration of the check
		result          string
	}{
		"listens":          {0, 0, ms, ms, "accepted"},
		"begins to listen": {50 * ms, 0, 50 * ms, 110 * ms, "late"},
		"listens at last":  {4700 * ms, 0, 4700 * ms, 5000 * ms, "late"},
		"never listens":    {time.Hour, 0, 5000 * ms, 5000 * ms, "refused"},
		"does not answer":  {-1, 0, 100 * ms, 100 * ms, "unanswered"},
		"refuses, then does not answer, then listens": {time.Second, 30 * ms, time.Second, 1400 * ms, "late"},
		"refuses, then does not answer":               {time.Hour, 30 * ms, 5000 * ms, 5000 * ms, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &endpoints{start: time.Now(), listens: map[uint16]time.Duration{80: c.listens}, silent: c.silent, delay: ms}
				metrics := prometheus.NewRegistry()
				n := health.NewNewcomers(health.NewcomersConfig{Log: slog.New(slog.DiscardHandler), Metrics: metrics, Ask: e.ask, Ended: e.record})
				defer n.Close()
				n.Set(ports(80, 80))
				time.Sleep(time.Minute)
				synctest.Wait()
				if len(e.ended) != 1 || e.ended[0].at.Port() != 80 || e.ended[0].after < c.least || e.ended[0].after > c.most {
					t.Errorf("ended: %v, want port 80 between %v and %v", e.ended, c.least, c.most)
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

// A removed endpoint is not reported; one that is added again is checked from the start.
func TestNewcomersGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoints{start: time.Now(), listens: map[uint16]time.Duration{80: time.Hour, 81: time.Second}}
		n := health.NewNewcomers(health.NewcomersConfig{Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Ask: e.ask, Ended: e.record})
		n.Set(ports(80, 81))
		time.Sleep(500 * time.Millisecond)
		n.Set(ports(81, 81))
		time.Sleep(time.Second)
		n.Set(ports(80, 81))
		time.Sleep(time.Second)
		n.Close()
		synctest.Wait()
		if len(e.ended) != 1 || e.ended[0].at.Port() != 81 || e.ended[0].after < time.Second {
			t.Errorf("ended: %v, want port 81 after 1s", e.ended)
		}
	})
}

// Thousands of new endpoints are probed a few at a time, and none waits longer than its limit.
func TestNewcomersAreMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoints{start: time.Now(), listens: map[uint16]time.Duration{}}
		for port := range uint16(5000) {
			e.listens[port+1] = -1
		}
		n := health.NewNewcomers(health.NewcomersConfig{Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Ask: e.ask, Ended: e.record})
		defer n.Close()
		n.Set(ports(1, 5000))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if len(e.ended) != 5000 || e.most != 64 {
			t.Errorf("%d of 5000 ended, %d at once, want 64", len(e.ended), e.most)
		}
	})
}
