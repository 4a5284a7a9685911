package ccm

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// longestRetry is the longest wait between two tries of a watch (client-go: 30 s, and at most as much again at random). After
// it without a failure the API server is there, though nothing was asked of it.
const longestRetry = time.Minute

// outage knows whether the API server is away, and when it came back.
type outage struct {
	back func() // called when it has come back; nil: nobody

	mu     sync.Mutex
	away   bool
	failed time.Time // last
	came   time.Time // the first answer after that
}

// wrap has a client's transport tell of failures and answers.
func (o *outage) wrap(next http.RoundTripper) http.RoundTripper { return watched{o, next} }

type watched struct {
	outage *outage
	next   http.RoundTripper
}

// RoundTrip sends the request.
func (w watched) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.next.RoundTrip(r)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, errLeaving): // our doing
	case err != nil,
		resp.StatusCode == http.StatusBadGateway, resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusGatewayTimeout:
		w.outage.note(false)
	default:
		w.outage.note(true)
	}
	return resp, err
}

// calls has f called when the API server comes back.
func (o *outage) calls(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.back = f
}

// note tells of a request that was answered, or not.
func (o *outage) note(answered bool) {
	o.mu.Lock()
	came := answered && o.away
	switch {
	case came:
		o.away, o.came = false, time.Now()
	case !answered:
		o.away, o.failed = true, time.Now()
	}
	back := o.back
	o.mu.Unlock()
	if came && back != nil {
		back()
	}
}

// settles is when everybody has had the time to say what happened in the last outage, which lasted until since. Zero: there
// was none.
func (o *outage) settles(within time.Duration) (at, since time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.away:
		return o.failed.Add(longestRetry + within), o.failed
	case !o.came.IsZero():
		return o.came.Add(within), o.came
	}
	return time.Time{}, time.Time{}
}
