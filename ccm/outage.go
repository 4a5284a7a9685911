package ccm

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// longestRetry is the longest wait between two tries of a watch (client-go: 30 s, plus at most as much again at
// random). After that time without a failure the API server counts as available, even without a request.
const longestRetry = time.Minute

// outage records whether the API server is unavailable, and when it came back.
type outage struct {
	onRecovery func() // called when the API server is available again; may be nil

	mu        sync.Mutex
	down      bool
	failed    time.Time // last
	recovered time.Time // the first response after that
}

// wrap makes a client's transport report failures and responses.
func (o *outage) wrap(next http.RoundTripper) http.RoundTripper { return watched{o, next} }

type watched struct {
	outage *outage
	next   http.RoundTripper
}

// RoundTrip sends the request.
func (w watched) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.next.RoundTrip(r)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, errEnding): // caused by this process
	case err != nil,
		resp.StatusCode == http.StatusBadGateway, resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusGatewayTimeout:
		w.outage.record(false)
	default:
		w.outage.record(true)
	}
	return resp, err
}

// setOnRecovery sets the function that is called when the API server is available again.
func (o *outage) setOnRecovery(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.onRecovery = f
}

// record records whether a request was answered.
func (o *outage) record(answered bool) {
	o.mu.Lock()
	recovered := answered && o.down
	switch {
	case recovered:
		o.down, o.recovered = false, time.Now()
	case !answered:
		o.down, o.failed = true, time.Now()
	}
	onRecovery := o.onRecovery
	o.mu.Unlock()
	if recovered && onRecovery != nil {
		onRecovery()
	}
}

// Settles returns when all speakers have had the time to report what happened in the last outage, and when that ended.
// Zero: there was none.
func (o *outage) Settles(within time.Duration) (at, since time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.down:
		return o.failed.Add(longestRetry + within), o.failed
	case !o.recovered.IsZero():
		return o.recovered.Add(within), o.recovered
	}
	return time.Time{}, time.Time{}
}
