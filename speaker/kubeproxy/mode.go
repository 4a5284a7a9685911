package kubeproxy

import (
	"io"
	"net/http"
)

// server is the Server header that lets a Detector distinguish a ModeHandler from a kube-proxy.
const server = "ironlb-speaker"

// ModeHandler serves only /proxyMode, like a kube-proxy of the mode. An empty mode is not known yet.
func ModeHandler(mode func() Mode) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Server", server)
		m := mode()
		if m == "" {
			http.Error(w, "the data plane is not known yet", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = io.WriteString(w, string(m))
	})
	return mux
}
