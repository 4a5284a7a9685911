package health_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/ipvs/health"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// answer is the response that a load balancer reads; its fields are those that kube-proxy documents.
type answer struct {
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible *bool     `json:"nodeEligible"`
	Healthy      bool      `json:"healthy"`
	Status       map[string]struct {
		LastUpdated time.Time `json:"lastUpdated"`
		Healthy     bool      `json:"healthy"`
	} `json:"status"`
}

func get(t *testing.T, h *health.Healthz, path string) (int, answer) {
	t.Helper()
	w := httptest.NewRecorder()
	h.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	var a answer
	decoder := json.NewDecoder(w.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&a); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if w.Header().Get("Content-Type") != "application/json" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%s: headers %v", path, w.Header())
	}
	return w.Code, a
}

// wantStatus checks healthz and livez, and the health of each family ("IPv4 true").
func wantStatus(t *testing.T, h *health.Healthz, healthz, livez int, families map[string]bool) {
	t.Helper()
	now := time.Now()
	for path, want := range map[string]int{"/healthz": healthz, "/livez": livez} {
		code, a := get(t, h, path)
		got := map[string]bool{}
		for family, s := range a.Status {
			got[family] = s.Healthy
		}
		if code != want || fmt.Sprint(got) != fmt.Sprint(families) || !a.CurrentTime.Equal(now) || a.Healthy != (livez == 200) {
			t.Errorf("%s: %d %+v, want %d and families %v at %v", path, code, a, want, families, now)
		}
		if (a.NodeEligible != nil) != (path == "/healthz") {
			t.Errorf("%s: nodeEligible is %v", path, a.NodeEligible)
		}
		if code == 200 && !a.LastUpdated.Equal(now) {
			t.Errorf("%s: lastUpdated %v, want now", path, a.LastUpdated)
		}
	}
	if h.Healthy() != (livez == 200) {
		t.Errorf("Healthy is %v", h.Healthy())
	}
}

func TestHealthzLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := health.NewHealthz()
		h.SetNode(true)
		wantStatus(t, h, 200, 200, nil)

		h.Queued(health.IPv4, health.IPv6)
		time.Sleep(59 * time.Second)
		wantStatus(t, h, 200, 200, map[string]bool{"IPv4": true, "IPv6": true})
		time.Sleep(time.Second)
		wantStatus(t, h, 503, 503, map[string]bool{"IPv4": false, "IPv6": false})
		// More changes do not make it appear healthier; one family that catches up is not enough.
		h.Queued(health.IPv4, health.IPv6)
		h.Applied(time.Now().Add(1), health.IPv4)
		wantStatus(t, h, 503, 503, map[string]bool{"IPv4": true, "IPv6": false})
		applied := time.Now()
		time.Sleep(time.Second)
		if _, a := get(t, h, "/livez"); !a.LastUpdated.Equal(applied) || !a.Status["IPv4"].LastUpdated.Equal(applied) || !a.Status["IPv6"].LastUpdated.IsZero() {
			t.Errorf("last updated %+v, want IPv4 at %v alone", a, applied)
		}
		h.Applied(time.Now(), health.IPv6)
		wantStatus(t, h, 200, 200, map[string]bool{"IPv4": true, "IPv6": true})
		time.Sleep(time.Hour) // nothing pending is healthy
		wantStatus(t, h, 200, 200, map[string]bool{"IPv4": true, "IPv6": true})
	})
}

// A change that arrives while others are applied does not count as applied.
func TestHealthzChangeDuringRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := health.NewHealthz()
		h.SetNode(true)
		h.Queued(health.IPv4)
		time.Sleep(30 * time.Second)
		began := time.Now()
		time.Sleep(time.Second)
		h.Queued(health.IPv4)
		time.Sleep(time.Second)
		h.Applied(began, health.IPv4)
		time.Sleep(57 * time.Second)
		wantStatus(t, h, 200, 200, map[string]bool{"IPv4": true})
		time.Sleep(time.Second)
		wantStatus(t, h, 503, 503, map[string]bool{"IPv4": false})
	})
}

func TestHealthzNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := health.NewHealthz()
		wantStatus(t, h, 503, 200, nil)
		h.SetNode(true)
		wantStatus(t, h, 200, 200, nil)
		h.SetNode(false)
		wantStatus(t, h, 503, 200, nil)
	})
}

// Run waits for the port that kube-proxy still has, then serves both families until ctx ends.
func TestHealthzRun(t *testing.T) {
	s := netspace.New(t)
	s.Address(t, "lo", "192.0.2.1/32")
	s.Address(t, "lo", "2001:db8::1/128")
	waitUsable(t, s, "[2001:db8::1]:0")
	h := health.NewHealthz()
	h.SetNode(true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lines := make(chan string, 10)
	ended := make(chan error, 1)
	var other net.Listener
	s.Must(t, func() (err error) {
		other, err = net.Listen("tcp", ":10256")
		return err
	})
	go func() {
		ended <- s.Do(func() error {
			return h.Run(ctx, slog.New(lineHandler{lines: lines}), netip.MustParseAddrPort("0.0.0.0:10256"))
		})
	}()
	if line := <-lines; line != "cannot serve healthz; trying again" {
		t.Errorf("first line %q", line)
	}
	other.Close()
	if line := <-lines; line != "serve healthz" {
		t.Errorf("second line %q", line)
	}
	for _, at := range []string{"192.0.2.1:10256", "[2001:db8::1]:10256"} {
		for path, want := range map[string]int{"/healthz": 200, "/livez": 200, "/other": 404} {
			response, body, err := (&node{Space: s}).ask("GET", at, path)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != want {
				t.Errorf("%s%s: %d %s, want %d", at, path, response.StatusCode, body, want)
			}
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if conn, err := s.Dial("tcp", "", "192.0.2.1:10256"); err == nil {
		conn.Close()
		t.Error("still listening after the end")
	}
}

// lineHandler passes on the messages of a log.
type lineHandler struct {
	slog.Handler
	lines chan string
}

func (h lineHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h lineHandler) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h lineHandler) Handle(_ context.Context, r slog.Record) error {
	h.lines <- r.Message
	return nil
}
