package kube

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestWatchErrors: an outage of the API server has one line for each cause, whatever the number of watches and retries.
// A later outage has another.
func TestWatchErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		failures := &watchErrors{log: slog.New(slog.NewTextHandler(&log, nil)), last: map[string]time.Time{}}
		kinds := []string{kindService, kindSlice, kindNode, kindVIP, kindAdvertisement, kindPool}
		outage := func(cause error, retries int) {
			for retry := range retries {
				for i, kind := range kinds {
					source := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 40000 + retry}
					err := &url.Error{Op: "Get", URL: fmt.Sprintf("https://192.0.2.9:6443/%s?timeoutSeconds=%d", kind, 300+i), Err: &net.OpError{Op: "read", Net: "tcp", Source: source, Err: cause}}
					failures.of(kind)(t.Context(), nil, fmt.Errorf("failed to list %s: %w", kind, err))
				}
				time.Sleep(20 * time.Second)
			}
		}
		outage(syscall.ECONNRESET, 1)
		outage(syscall.ECONNREFUSED, 10)
		time.Sleep(time.Hour)
		outage(syscall.ECONNREFUSED, 3)
		failures.of(kindPool)(t.Context(), nil, errors.New("the server could not find the requested resource"))
		if got := strings.Count(log.String(), "\n"); got != 4 {
			t.Errorf("%d lines, want 4:\n%s", got, &log)
		}
	})
}
