package echo

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestHandler(t *testing.T) {
	server := httptest.NewServer(handler("server"))
	if got := Request(t.Context(), server.URL+Hostname); !got.OK || got.Body != "server" || got.Took <= 0 {
		t.Errorf("%+v", got)
	}
	if got := Request(t.Context(), server.URL+ClientIP); !got.OK || !strings.HasPrefix(got.Body, "127.0.0.1:") {
		t.Errorf("%+v", got)
	}
	for _, path := range []string{"/", "/shell", Hostname + "/x"} {
		if got := Request(t.Context(), server.URL+path); got.OK || got.Error != "HTTP status 404" {
			t.Errorf("%s: %+v", path, got)
		}
	}
	answer, err := http.Post(server.URL+Hostname, "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: status %d", answer.StatusCode)
	}
	server.Close()
	if got := Request(t.Context(), server.URL); got.OK || !strings.Contains(got.Error, "connection refused") {
		t.Errorf("%+v", got)
	}
}

// The server has a budget of connections, and ends with its context.
func TestServe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- serve(ctx, l, "server") }()
	url := "http://" + l.Addr().String() + Hostname
	var open []net.Conn
	for range mostConnections {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	short, done := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer done()
	if got := Request(short, url); got.OK {
		t.Error("one more connection is served")
	}
	for _, c := range open {
		c.Close()
	}
	if got := Request(t.Context(), url); !got.OK {
		t.Errorf("%+v", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began, made := time.Now(), 0
		request := func(context.Context) Transfer {
			if made++; made == 2 {
				time.Sleep(300 * time.Millisecond) // longer than the interval
			}
			return Transfer{}
		}
		got := 0
		count := func(Transfer) error { got++; return nil }
		if err := Requests(ctx, 4, 10, request, count); err != nil || got != 4 || time.Since(began) != 600*time.Millisecond {
			t.Errorf("%v, %d results after %v", err, got, time.Since(began))
		}
		full := errors.New("full")
		if err := Requests(ctx, 4, 0, request, func(Transfer) error { return full }); err != full {
			t.Error(err)
		}
		err := Requests(ctx, 4, 0, func(context.Context) Transfer { cancel(); return Transfer{} }, count)
		if err != nil || got != 4 {
			t.Errorf("%v, an interrupted request counts: %d", err, got)
		}
	})
}
