// Package scrape restricts metrics to clients that the API server authenticates and authorizes, and makes the
// certificate of their listener. docs/design/metrics.md has the reasons.
package scrape

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Path is the nonResourceURL that a client must be permitted to get, for the metrics of each program.
const Path = "/metrics"

const (
	// reviewAfter is how long a permission is used without another review.
	reviewAfter = time.Minute
	// keepFor is how long a permission is used while no review is possible: alerts must work without the API server.
	keepFor = time.Hour
	// reviewLimit is the time limit of a review, which leaves time for the answer.
	reviewLimit = 2 * time.Second
	// mostClients is the number of remembered permissions.
	mostClients = 64
	// logEvery is the minimum time between two lines of the log about reviews.
	logEvery = time.Minute
)

// Review has the API server authenticate the bearer of a token, and authorize it to get Path. The user is empty if the
// token is not valid. Its own limit of requests bounds what all clients without permission cost the API server.
type Review func(ctx context.Context, token string) (user string, permitted bool, err error)

// Gate admits clients with permission.
type Gate struct {
	review Review
	budget *budget
	log    *slog.Logger
	now    func() time.Time

	mu        sync.Mutex
	permitted map[[sha256.Size]byte]time.Time // the last review, by the digest of the token
	logged    time.Time
}

// NewGate returns a gate without remembered permissions.
func NewGate(review Review, log *slog.Logger) *Gate {
	return &Gate{review: review, budget: newBudget(reviewsOfClient, 0), log: log, now: time.Now, permitted: map[[sha256.Size]byte]time.Time{}}
}

// Wrap returns a handler that passes the requests of clients with permission to next. Others get an error.
func (g *Gate) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "metrics need the bearer token of a ServiceAccount that may get the nonResourceURL "+Path, http.StatusUnauthorized)
			return
		}
		switch user, permitted, err := g.decide(r.Context(), r.RemoteAddr, token); {
		case errors.Is(err, errBudget):
			http.Error(w, errBudget.Error(), http.StatusTooManyRequests)
		case err != nil:
			http.Error(w, "the API server did not review the token; the log has the error", http.StatusServiceUnavailable)
		case permitted:
			next.ServeHTTP(w, r)
		case user == "":
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "the token is not valid for the API server", http.StatusUnauthorized)
		default:
			http.Error(w, fmt.Sprintf("%s may not get the nonResourceURL %s: bind a ClusterRole that permits it", user, Path), http.StatusForbidden)
		}
	})
}

// decide is a review, or a remembered permission.
func (g *Gate) decide(ctx context.Context, client, token string) (user string, permitted bool, err error) {
	key, now := sha256.Sum256([]byte(token)), g.now()
	g.mu.Lock()
	age := now.Sub(g.permitted[key])
	g.mu.Unlock()
	if age < reviewAfter {
		return "", true, nil
	}
	user, permitted, err = g.limited(ctx, client, token)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case err != nil:
		if now.Sub(g.logged) >= logEvery {
			g.logged = now
			g.log.Warn("cannot review a client of the metrics", "kept", age < keepFor, "error", err)
		}
		if age < keepFor {
			return "", true, nil
		}
	case permitted:
		g.remember(key, now)
	default:
		delete(g.permitted, key)
	}
	return user, permitted, err
}

// limited is a review within the budget of the client and the time limit.
func (g *Gate) limited(ctx context.Context, client, token string) (user string, permitted bool, err error) {
	if !g.budget.take(client) {
		return "", false, fmt.Errorf("%s: %w", client, errBudget)
	}
	ctx, cancel := context.WithTimeout(ctx, reviewLimit)
	defer cancel()
	return g.review(ctx, token)
}

// remember records a permission, in place of the oldest one if there are too many.
func (g *Gate) remember(key [sha256.Size]byte, now time.Time) {
	g.permitted[key] = now
	if len(g.permitted) <= mostClients {
		return
	}
	oldest := key
	for k, at := range g.permitted {
		if at.Before(g.permitted[oldest]) {
			oldest = k
		}
	}
	delete(g.permitted, oldest)
}

// mostScrapes is the number of requests that are served at a time.
const mostScrapes = 4

// Limit returns a handler that serves a few requests at a time, and refuses more.
func Limit(next http.Handler) http.Handler {
	slots := make(chan struct{}, mostScrapes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			next.ServeHTTP(w, r)
		default:
			http.Error(w, fmt.Sprintf("%d other requests for metrics are being served", mostScrapes), http.StatusServiceUnavailable)
		}
	})
}
