// Package health reports the health of this node's data plane and checks that of other nodes: the ports
// healthCheckNodePort, healthz and livez, checks of nodes for forwarding over NodePorts, and checks of new endpoints.
package health

import (
	"encoding/json"
	"log"
	"net/http"
	"time"
)

// weightHeader contains the number of ready endpoints on the responding node.
const weightHeader = "X-Load-Balancing-Endpoint-Weight"

// NewServer returns a server that clients cannot block: they are load balancers, anywhere on the network. Use it with a
// listener that is [Bound].
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    8 << 10,
		ErrorLog:          log.New(discard{}, "", 0), // errors of clients do not belong in this node's log
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
	_ = json.NewEncoder(w).Encode(body) // fails when the client has disconnected
}
