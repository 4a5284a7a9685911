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
	back func() // called when it has come back; may be nil

	mu     sync.Mutex
	away   bool
	failed time.Time // last
	came   time.Time // the first response after that
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
	case errors.Is(err, context.Canceled), errors.Is(err, errLeaving): // caused by this process
	case err != nil,
		resp.StatusCode == http.StatusBadGateway, resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusGatewayTimeout:
		w.outage.note(false)
	default:
		w.outage.note(true)
	}
	return resp, err
}

// calls sets the function that is called when the API server comes back.
func (o *outage) calls(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.back = f
}

// note records whether a request was answered.
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

// settles returns when all speakers have had the time to report what happened in the last outage, and when that ended.
// Zero: there was none.
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
