package l2

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// A host that uses many addresses is one line.
func TestConflictLines(t *testing.T) {
	var log bytes.Buffer
	a, now := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil))}), time.Now()
	addr := netip.MustParseAddr("203.0.113.1")
	for range 37 {
		a.entries[addr] = &entry{phase: holding, conflict: &conflict{mac: mac{2, 0, 0, 0, 0, 1}, on: "eth0", nextProbe: now.Add(time.Hour)}}
		a.report(addr, a.entries[addr], now)
		addr = addr.Next()
	}
	a.tick(now)
	if got := log.String(); strings.Count(got, "\n") != 1 ||
		!strings.Contains(got, `address="203.0.113.1, 203.0.113.2, 203.0.113.3 and 34 more" times=37 mac=02:00:00:00:00:01 interface=eth0 action=defend`) {
		t.Errorf("got:\n%s", got)
	}
}
