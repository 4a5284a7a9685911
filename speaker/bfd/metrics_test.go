package bfd

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/eventually"
)

// TestMetrics: the metrics of a session that was up and went down, and that no metrics of a removed session are left.
func TestMetrics(t *testing.T) {
	t.Parallel()
	x, y := link(t)
	a, b := start(t, x), start(t, y)
	a.Set(map[string]Config{"b": {Peer: addr("192.0.2.2"), Timers: fast}})
	b.Set(map[string]Config{"a": {Peer: addr("192.0.2.1"), Timers: fast}})
	a.wait(t, "b", "up", agreed(100*time.Millisecond, 300*time.Millisecond))
	a.shows(t, `state{peer="b"} 3`, `transmit_interval_seconds{peer="b"} 0.1`, `detection_time_seconds{peer="b"} 0.3`)
	b.stop()
	a.wait(t, "b", "down", down)
	a.shows(t, `state{peer="b"} 1`, `downs_total{peer="b",reason="DetectionTimeExpired"} 1`, `detection_time_seconds{peer="b"} 0`, "detection_seconds 1", "unsent_total 0")
	for _, name := range []string{`sent_total{peer="b"}`, `received_total{peer="b"}`, "tick_late_seconds", "silence_ratio"} {
		if text := "\n" + a.metricsText(t); !strings.Contains(text, "\n"+name+" ") || strings.Contains(text, "\n"+name+" 0\n") {
			t.Errorf("%s: nothing is counted:%s", name, text)
		}
	}
	a.Set(nil)
	eventually.Nil(t, patience, "the end of the session's metrics", func(context.Context) error {
		text := a.metricsText(t)
		return eventually.Unless(!strings.Contains(text, `peer="b"`), "there are\n%s", text)
	})
}

// metricsText lists the values, and for histograms the counts.
func (e *end) metricsText(t *testing.T) string {
	t.Helper()
	families, err := e.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := strings.TrimPrefix(f.GetName(), "ironlb_bfd_")
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			fmt.Fprintf(&out, "%s %v\n", name, value)
		}
	}
	return out.String()
}

// shows waits until all the lines are among the metrics: states are exported a moment after they are reported.
func (e *end) shows(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		eventually.Nil(t, patience, line, func(context.Context) error {
			text := e.metricsText(t)
			return eventually.Unless(strings.Contains(text, line+"\n"), "there are\n%s", text)
		})
	}
}
