package ccm

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// outage knows when the API server was last found away.
type outage struct {
	mu   sync.Mutex
	last time.Time
}

// wrap has a client's transport tell of failures.
func (o *outage) wrap(next http.RoundTripper) http.RoundTripper { return watched{o, next} }

type watched struct {
	outage *outage
	next   http.RoundTripper
}

// RoundTrip sends the request.
func (w watched) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.next.RoundTrip(r)
	switch {
	case err != nil:
		if !errors.Is(err, context.Canceled) && !errors.Is(err, errLeaving) {
			w.outage.note()
		}
	case resp.StatusCode == http.StatusBadGateway || resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusGatewayTimeout:
		w.outage.note()
	}
	return resp, err
}

func (o *outage) note() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = time.Now()
}

// seen is when the API server was last away, zero for never.
func (o *outage) seen() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last
}
