package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// TestLoad: a client receives answers of the size that it requests, over as many connections as it is to use.
func TestLoad(t *testing.T) {
	for name, c := range map[string]struct{ size, perConn string }{
		"a connection for each":   {size: "1000", perConn: "1"},
		"three over each":         {size: "1000", perConn: "3"},
		"larger than the padding": {size: "1000000", perConn: "1"},
	} {
		t.Run(name, func(t *testing.T) {
			var conns atomic.Int64
			server := httptest.NewUnstartedServer(handler("web"))
			server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
				if s == http.StateNew {
					conns.Add(1)
				}
			}
			server.Start()
			defer server.Close()
			const workers = 2
			per, err := strconv.ParseInt(c.perConn, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			// On a busy machine it may take long until a connection is used up.
			for d := 100 * time.Millisecond; ; d *= 2 {
				conns.Store(0)
				l := loaded(t, server.URL, "-size", c.size, "-per-connection", c.perConn, "-concurrency", fmt.Sprint(workers), "-duration", d.String())
				requests, conns := int64(l.Requests), conns.Load()
				if l.Failed > 0 || l.Pods["web"] != l.Requests || l.Clients["127.0.0.1"] != l.Requests || l.P99 < l.P50 || l.P50 <= 0 {
					t.Fatalf("%+v", l)
				}
				if requests < workers || requests > per*conns || requests < per*(conns-workers) {
					t.Fatalf("%d requests over %d connections, of at most %d each", requests, conns, per)
				}
				if conns > workers {
					return // each worker's last connection may have ended early
				}
				if d > time.Minute {
					t.Fatalf("only %d connections for %d requests in %v", conns, requests, d)
				}
			}
		})
	}
}

// TestLoadFails: an answer of another size, status or form is not counted as one.
func TestLoadFails(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"size":   func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, probe.Answer("web", "192.0.2.1")) },
		"status": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusServiceUnavailable) },
		"line":   func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 1000)) },
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(answer)
			defer server.Close()
			if l := loaded(t, server.URL, "-duration", "10ms"); l.Requests > 0 || l.Failed == 0 || len(l.Errors) != 1 {
				t.Errorf("%+v", l)
			}
		})
	}
	server := httptest.NewServer(handler("web"))
	defer server.Close()
	if l := loaded(t, server.URL, "-size", "3", "-duration", "10ms"); l.Requests > 0 || l.Failed == 0 {
		t.Errorf("a size that has no room for the line: %+v", l)
	}
	if err := load([]string{"-size", "0", "127.0.0.1:1"}, io.Discard); err == nil {
		t.Error("size 0 is accepted")
	}
}

func loaded(t *testing.T, url string, flags ...string) (l probe.Load) {
	t.Helper()
	var out bytes.Buffer
	if err := load(append(flags, strings.TrimPrefix(url, "http://")), &out); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &l); err != nil {
		t.Fatal(err)
	}
	if l.InTime > l.Requests || l.Max < l.P99 || l.User+l.System <= 0 {
		t.Errorf("%+v", l)
	}
	return l
}
