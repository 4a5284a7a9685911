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

// A download is one connection, whose blocks come from one Pod, until it breaks.
func TestDownload(t *testing.T) {
	server := httptest.NewServer(handler("web"))
	defer server.Close()
	var out bytes.Buffer
	c := client{network: "download", target: strings.TrimPrefix(server.URL, "http://"), every: time.Microsecond, timeout: time.Minute, count: 3, most: 1, out: &out}
	if err := c.run(); err != nil {
		t.Fatal(err)
	}
	if blocks := strings.Count(out.String(), `"pod":"web","client":"127.0.0.1"`); blocks != 3 || strings.Contains(out.String(), "error") {
		t.Errorf("%d blocks, want 3:\n%s", blocks, &out)
	}
	c.count = 0
	server.CloseClientConnections()
	if err := c.run(); err == nil || !strings.Contains(out.String(), "error") {
		t.Errorf("the connection broke, and the client ended with %v:\n%s", err, &out)
	}
}
