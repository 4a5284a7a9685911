package ccm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestOutage: which results indicate an outage of the API server, and which do not.
func TestOutage(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		err    error
		away   bool
	}{
		"fine":         {200, nil, false},
		"conflict":     {409, nil, false},
		"too many":     {429, nil, false},
		"its error":    {500, nil, false},
		"not ready":    {503, nil, true},
		"gateway":      {504, nil, true},
		"no answer":    {0, errors.New("connection refused"), true},
		"too late":     {0, context.DeadlineExceeded, true},
		"we stopped":   {0, fmt.Errorf("watching: %w", context.Canceled), false},
		"we are going": {0, errEnding, false},
	} {
		o := &outage{}
		next := roundTrip(func(*http.Request) (*http.Response, error) {
			if c.err != nil {
				return nil, c.err
			}
			return &http.Response{StatusCode: c.status}, nil
		})
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://192.0.2.1/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.wrap(next).RoundTrip(r); !errors.Is(err, c.err) {
			t.Errorf("%s: error %v, want %v", name, err, c.err)
		}
		if o.down != c.away {
			t.Errorf("%s: away is %v", name, o.down)
		}
	}
}

const within = 10 * time.Second

// TestOutageSettles: the period starts at the first response after the last failure, however long ago that was. Without
// a response it starts long after the failure.
func TestOutageSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := 0
		o := &outage{}
		o.setOnRecovery(func() { back++ })
		o.record(true)
		if at, _ := o.Settles(within); !at.IsZero() {
			t.Errorf("without an outage it settles at %s", at)
		}
		o.record(false)
		failed := time.Now()
		if at, since := o.Settles(within); at != failed.Add(longestRetry+within) || since != failed {
			t.Errorf("away: settles at %s since %s", at, since)
		}
		time.Sleep(25 * time.Second) // the delays between tries have grown
		o.record(true)
		came := time.Now()
		time.Sleep(time.Second)
		o.record(true)
		if at, since := o.Settles(within); at != came.Add(within) || since != came || back != 1 {
			t.Errorf("back %d times: settles at %s since %s", back, at, since)
		}
	})
}
