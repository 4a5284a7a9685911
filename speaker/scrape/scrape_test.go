package scrape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// reviewer answers for the API server, and counts.
type reviewer struct {
	users map[string]string // by token
	may   map[string]bool   // by user
	away  bool
	count int
}

// elsewhere is the address of a client that no other request has.
func (r *reviewer) elsewhere() string { return fmt.Sprintf("203.0.113.%d:40000", r.count%250) }

func (r *reviewer) review(_ context.Context, token string) (string, bool, error) {
	if r.count++; r.away {
		return "", false, errors.New("the API server is away")
	}
	user := r.users[token]
	return user, r.may[user], nil
}

type fixture struct {
	*testing.T
	reviewer
	gate    *Gate
	handler http.Handler
	log     bytes.Buffer
	at      time.Time
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{T: t, at: time.Unix(1e9, 0), reviewer: reviewer{
		users: map[string]string{"good": "prometheus", "other": "tenant"}, may: map[string]bool{"prometheus": true},
	}}
	f.gate = NewGate(f.review, slog.New(slog.NewTextHandler(&f.log, nil)))
	f.gate.now = func() time.Time { return f.at }
	f.handler = f.gate.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "metrics") }))
	return f
}

// want fails unless a request has this result, after this number of reviews.
func (f *fixture) want(authorization string, status int, text string, reviews int) {
	f.Helper()
	r := httptest.NewRequest(http.MethodGet, Path, nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	r.RemoteAddr = f.elsewhere()
	w, before := httptest.NewRecorder(), f.count
	f.handler.ServeHTTP(w, r)
	if body := w.Body.String(); w.Code != status || !strings.Contains(body, text) {
		f.Errorf("%q: status %d, %q; want %d, %q", authorization, w.Code, body, status, text)
	}
	if challenge := w.Header().Get("WWW-Authenticate"); (challenge != "") != (status == http.StatusUnauthorized) {
		f.Errorf("%q: status %d with WWW-Authenticate %q", authorization, status, challenge)
	}
	if have := f.count - before; have != reviews {
		f.Errorf("%q: %d reviews, want %d", authorization, have, reviews)
	}
}

// TestGate: only clients with permission get metrics; others get the reason. A permission is reviewed once a minute, a
// refusal each time.
func TestGate(t *testing.T) {
	f := newFixture(t)
	for _, none := range []string{"", "good", "Bearer", "Bearer ", "Basic good"} {
		f.want(none, http.StatusUnauthorized, "need the bearer token", 0)
	}
	for range 2 {
		f.want("Bearer unknown", http.StatusUnauthorized, "not valid", 1)
		f.want("Bearer other", http.StatusForbidden, "tenant may not get the nonResourceURL /metrics", 1)
	}
	f.want("Bearer good", http.StatusOK, "metrics", 1)
	f.at = f.at.Add(reviewAfter - 1)
	f.want("bearer  good", http.StatusOK, "metrics", 0)
	f.at = f.at.Add(1)
	f.want("Bearer good", http.StatusOK, "metrics", 1)
	f.may["prometheus"] = false
	f.at = f.at.Add(reviewAfter)
	f.want("Bearer good", http.StatusForbidden, "prometheus may not", 1)
	f.want("Bearer good", http.StatusForbidden, "prometheus may not", 1)
	if f.log.Len() > 0 {
		t.Errorf("the log has %s", &f.log)
	}
}

// TestGateWithoutAPIServer: a client with permission keeps it for an hour; others have none.
func TestGateWithoutAPIServer(t *testing.T) {
	f := newFixture(t)
	f.want("Bearer good", http.StatusOK, "metrics", 1)
	f.away = true
	f.want("Bearer other", http.StatusServiceUnavailable, "did not review", 1)
	f.at = f.at.Add(keepFor - 1)
	f.want("Bearer good", http.StatusOK, "metrics", 1)
	f.want("Bearer good", http.StatusOK, "metrics", 1)
	if n := strings.Count(f.log.String(), "\n"); n != 2 {
		t.Errorf("the log has %d lines, want one for each minute with a failure:\n%s", n, &f.log)
	}
	f.at = f.at.Add(1)
	f.want("Bearer good", http.StatusServiceUnavailable, "did not review", 1)
	f.away = false
	f.want("Bearer good", http.StatusOK, "metrics", 1)
}

// TestGateForgets: the number of remembered permissions is bounded; the oldest ones go.
func TestGateForgets(t *testing.T) {
	f := newFixture(t)
	for i := range mostClients + 1 {
		token := fmt.Sprint("token-", i)
		f.users[token] = "prometheus"
		f.at = f.at.Add(time.Millisecond)
		f.want("Bearer "+token, http.StatusOK, "metrics", 1)
	}
	if n := len(f.gate.permitted); n != mostClients {
		t.Errorf("%d permissions are remembered, want %d", n, mostClients)
	}
	f.want("Bearer token-1", http.StatusOK, "metrics", 0)
	f.want("Bearer token-0", http.StatusOK, "metrics", 1)
}

// TestGateLimitsTime: a review ends before the server's time limit of an answer, or with the client's connection.
func TestGateLimitsTime(t *testing.T) {
	gate := NewGate(func(ctx context.Context, _ string) (string, bool, error) {
		if at, ok := ctx.Deadline(); !ok || time.Until(at) > reviewLimit {
			t.Errorf("its time limit is %v (%v)", at, ok)
		}
		return "", false, ctx.Err()
	}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, permitted, err := gate.decide(ctx, "192.0.2.1:1", "token"); permitted || !errors.Is(err, context.Canceled) {
		t.Errorf("without a client the decision is %v (%v)", permitted, err)
	}
}

// TestGateBudget: a client without permission has few reviews, which takes none from clients at other addresses. One
// behind the same address keeps the permission that it has.
func TestGateBudget(t *testing.T) {
	f := newFixture(t)
	f.gate.budget.now = f.gate.now
	ask := func(client, token string, status int) {
		t.Helper()
		r, w := httptest.NewRequest(http.MethodGet, Path, nil), httptest.NewRecorder()
		r.RemoteAddr = client
		r.Header.Set("Authorization", "Bearer "+token)
		if f.handler.ServeHTTP(w, r); w.Code != status {
			t.Errorf("%s with token %q: status %d, want %d", client, token, w.Code, status)
		}
	}
	const first = "192.0.2.7:1000"
	other := otherBucket(f.gate.budget, first)
	ask(first, "good", http.StatusOK)
	for range burst - 1 {
		ask(first, "other", http.StatusForbidden)
	}
	f.at = f.at.Add(reviewAfter - 1)
	for range burst {
		ask(first, "unknown", http.StatusUnauthorized)
	}
	f.at = f.at.Add(1)
	ask("192.0.2.7:1001", "unknown", http.StatusTooManyRequests)
	ask(first, "good", http.StatusOK) // without a review
	if f.count != 2*burst {
		t.Errorf("%d reviews, want %d", f.count, 2*burst)
	}
	ask(other, "other", http.StatusForbidden)
	f.at = f.at.Add(time.Second)
	ask(first, "other", http.StatusForbidden)
	ask(first, "other", http.StatusTooManyRequests)
	if text := f.log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "192.0.2.7:1001") {
		t.Errorf("the log has %q, want one line with the client", text)
	}
}

// otherBucket is the address of a client that shares no budget with the first.
func otherBucket(b *budget, first string) string {
	for i := 1; ; i++ {
		if client := fmt.Sprintf("127.0.0.%d:0", i); b.bucket(client) != b.bucket(first) {
			return client
		}
	}
}

// TestBudget: an address has its own budget, with all its ports and, in IPv6, with its /64; and all have one.
func TestBudget(t *testing.T) {
	at := time.Unix(1e9, 0)
	b := newBudget(1, 0)
	for _, same := range [][2]string{{"192.0.2.7:1", "192.0.2.7:2"}, {"192.0.2.7:1", "[::ffff:192.0.2.7]:2"}, {"[2001:db8::1]:1", "[2001:db8::2]:1"}} {
		if b.bucket(same[0]) != b.bucket(same[1]) {
			t.Errorf("%s and %s have two budgets", same[0], same[1])
		}
	}
	buckets := map[uint64]bool{}
	for i := range 200 {
		buckets[b.bucket(fmt.Sprintf("192.0.2.%d:1", i))], buckets[b.bucket(fmt.Sprintf("[2001:db8:0:%x::1]:1", i))] = true, true
	}
	if len(buckets) < 100 {
		t.Errorf("400 addresses share %d budgets", len(buckets))
	}
	b = newBudget(1, 20)
	b.now = func() time.Time { return at }
	taken := 0
	for i := range 200 {
		for range burst + 1 {
			if b.take(fmt.Sprintf("192.0.2.%d:1", i)) {
				taken++
			}
		}
	}
	if taken != 20 {
		t.Errorf("all addresses have taken %d, want 20", taken)
	}
}

// TestLimit: a few requests are served at a time, and as many again after them.
func TestLimit(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	handler := Limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-leave
	}))
	ask := func() int {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path, nil))
		return w.Code
	}
	for range 2 {
		codes := make(chan int)
		for range mostScrapes {
			go func() { codes <- ask() }()
		}
		for range mostScrapes {
			<-entered
		}
		if code := ask(); code != http.StatusServiceUnavailable {
			t.Errorf("one more request has status %d", code)
		}
		for range mostScrapes {
			leave <- struct{}{}
			if code := <-codes; code != http.StatusOK {
				t.Errorf("a request has status %d", code)
			}
		}
	}
}
