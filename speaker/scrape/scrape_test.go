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
	if _, permitted, err := gate.decide(ctx, "token"); permitted || !errors.Is(err, context.Canceled) {
		t.Errorf("without a client the decision is %v (%v)", permitted, err)
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
