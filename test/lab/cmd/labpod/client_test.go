package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// The limit of concurrent requests holds, and requests that had to wait are still sent.
func TestMost(t *testing.T) {
	const most, count = 3, 20
	var mu sync.Mutex
	now, highest, full := 0, 0, make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		now++
		if highest = max(highest, now); now == most {
			select {
			case <-full:
			default:
				close(full) // until then no request is answered, whatever the client's interval
			}
		}
		mu.Unlock()
		<-full
		mu.Lock()
		now--
		mu.Unlock()
		io.WriteString(w, probe.Answer("web", "192.0.2.1"))
	}))
	defer server.Close()
	var out bytes.Buffer
	c := client{network: "tcp", target: strings.TrimPrefix(server.URL, "http://"), every: time.Microsecond, timeout: time.Minute, count: count, most: most, out: &out}
	if err := c.run(); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != count || strings.Contains(out.String(), "error") || highest != most {
		t.Errorf("%d results, %d requests at once; want %d and %d:\n%s", lines, highest, count, most, &out)
	}
}
