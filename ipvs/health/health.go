// Package health tells others how the data plane of this node does, and finds out how that of other nodes does: the ports
// healthCheckNodePort (ipvs.md 5.1), healthz and livez (5.2), checks of nodes for forwarding over NodePorts, and checks of new endpoints.
package health

import (
	"encoding/json"
	"log"
	"net/http"
	"time"
)

// weightHeader carries the number of ready endpoints on the node that answers.
const weightHeader = "X-Load-Balancing-Endpoint-Weight"

// NewServer returns a server whose clients cannot hold it up: they are load balancers, anywhere on the network. It is to serve a
// listener that is [Bound].
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    8 << 10,
		ErrorLog:          log.New(discard{}, "", 0), // what a client does wrong is no business of this node's log
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// answer writes body as JSON with status 200 or 503.
func answer(w http.ResponseWriter, ok bool, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	status := http.StatusOK
	if !ok {
		status = http.StatusServiceUnavailable
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // fails when the client is gone
}
