package router

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironlb/ironlb/test/lab/host"
)

// Route of the kernel.
type Route struct {
	Prefix   netip.Prefix
	Protocol string
	// Via are the next hops' addresses, ascending.
	Via []netip.Addr
}

// Routes returns the routes of the main table, of a protocol ("bird", "bgp"; empty: all) and of a family (4 or 6),
// ascending.
func (p Place) Routes(ctx context.Context, family int, protocol string) ([]Route, error) {
	argv := []string{"ip", "-json", fmt.Sprintf("-%d", family), "route", "show"}
	if protocol != "" {
		argv = append(argv, "proto", protocol)
	}
	out, err := p.run(ctx, argv...)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's routes: %w", err)
	}
	type hop struct {
		Gateway string
		Via     struct{ Host string }
	}
	var parsed []struct {
		hop
		Dst, Protocol string
		NextHops      []hop
	}
	if err := json.Unmarshal([]byte(cmp.Or(strings.TrimSpace(out), "[]")), &parsed); err != nil {
		return nil, fmt.Errorf("read the kernel's routes: %w", err)
	}
	var routes []Route
	for _, r := range parsed {
		prefix, err := destination(r.Dst, family)
		if err != nil {
			return nil, fmt.Errorf("read the kernel's routes: %w", err)
		}
		route := Route{Prefix: prefix, Protocol: r.Protocol}
		for _, h := range append(r.NextHops, r.hop) {
			if a, err := netip.ParseAddr(cmp.Or(h.Gateway, h.Via.Host)); err == nil {
				route.Via = append(route.Via, a)
			}
		}
		slices.SortFunc(route.Via, netip.Addr.Compare)
		routes = append(routes, route)
	}
	slices.SortFunc(routes, func(a, b Route) int { return a.Prefix.Compare(b.Prefix) })
	return routes, nil
}

// destination parses a destination as ip prints it: an address is a host route.
func destination(s string, family int) (netip.Prefix, error) {
	if s == "default" {
		s = map[int]string{4: "0.0.0.0/0", 6: "::/0"}[family]
	}
	if strings.Contains(s, "/") {
		return netip.ParsePrefix(s)
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	return a.Prefix(a.BitLen())
}

// Event is a change of one of the kernel's routes.
type Event struct {
	// At is the time, by the clock of the kernel that has the route.
	At      time.Time
	Deleted bool
	Prefix  netip.Prefix
	// Text is the route as ip prints it.
	Text string
}

// Monitor records every change of the kernel's routes of the main table.
type Monitor struct {
	mu      sync.Mutex
	events  []Event
	changed chan struct{} // closed and replaced at each event
	stop    func() error
}

// probe is the table of the routes that test a monitor.
const probe = "4711"

// Monitor starts recording. It returns once the monitor receives all changes.
func (p Place) Monitor(ctx context.Context) (*Monitor, error) {
	m := &Monitor{changed: make(chan struct{})}
	life, kill := context.WithCancel(context.WithoutCancel(ctx))
	reader, writer := io.Pipe()
	proc, err := p.Host.Start(life, host.Cmd{
		Argv: []string{"nsenter", "--net=" + p.Namespace, "--", "ip", "-timestamp", "-tshort", "-oneline", "monitor", "route"},
		Env:  []string{"TZ=UTC"}, Stdout: writer})
	if err != nil {
		kill()
		return nil, fmt.Errorf("watch the kernel's routes: %w", err)
	}
	tried, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(reader); s.Scan(); {
			if strings.Contains(s.Text(), "table "+probe) {
				select {
				case tried <- struct{}{}:
				default:
				}
			} else if e, ok := event(s.Text()); ok {
				m.add(e)
			}
		}
	}()
	m.stop = sync.OnceValue(func() error {
		kill()
		proc.Wait() // killed
		writer.Close()
		<-done
		return nil
	})
	if err := p.try(ctx, tried); err != nil {
		m.Stop()
		return nil, fmt.Errorf("watch the kernel's routes: %w", err)
	}
	return m, nil
}

// try adds and removes routes in an unused table until the monitor receives one.
func (p Place) try(ctx context.Context, seen <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		if _, err := p.run(ctx, "sh", "-ec", "ip route add unreachable 192.0.2.255 table "+probe+"; ip route del unreachable 192.0.2.255 table "+probe); err != nil {
			return err
		}
		select {
		case <-seen:
			return nil
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// event parses "[2006-01-02T15:04:05.000000] Deleted 192.0.2.1 via ...". It skips tables other than main.
func event(line string) (Event, bool) {
	stamp, rest, ok := strings.Cut(strings.TrimPrefix(line, "["), "] ")
	at, err := time.Parse("2006-01-02T15:04:05.999999999", stamp)
	if !ok || err != nil || strings.Contains(rest, " table ") {
		return Event{}, false
	}
	e := Event{At: at, Text: strings.TrimSpace(rest)}
	for part := range strings.FieldsSeq(rest) {
		family := 4
		if strings.Contains(part, ":") || strings.Contains(rest, "inet6") {
			family = 6
		}
		if part == "Deleted" {
			e.Deleted = true
		} else if e.Prefix, err = destination(part, family); err == nil {
			return e, true
		}
	}
	return Event{}, false
}

func (m *Monitor) add(e Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events = append(m.events, e)
	close(m.changed)
	m.changed = make(chan struct{})
}

// Events returns the events so far.
func (m *Monitor) Events() []Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.events)
}

// Wait returns the first wanted event, recorded already or later.
func (m *Monitor) Wait(ctx context.Context, wanted func(Event) bool) (Event, error) {
	for seen := 0; ; {
		m.mu.Lock()
		events, changed := m.events, m.changed
		m.mu.Unlock()
		for _, e := range events[seen:] {
			if wanted(e) {
				return e, nil
			}
		}
		seen = len(events)
		select {
		case <-changed:
		case <-ctx.Done():
			return Event{}, fmt.Errorf("wait for a change of the kernel's routes: %w", ctx.Err())
		}
	}
}

// Stop ends the recording.
func (m *Monitor) Stop() error { return m.stop() }
