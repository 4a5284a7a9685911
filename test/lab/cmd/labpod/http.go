package main

import (
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// padding is what an answer of a requested size consists of, after its first line.
var padding [1 << 16]byte

// handler answers every request with the Pod's line, and those for probe.SizedPath with as many bytes as requested.
func handler(name string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, probe.Answer(name, addr(r.RemoteAddr))) // the client may be gone
	})
	mux.HandleFunc("GET "+probe.SizedPath+"{size}", func(w http.ResponseWriter, r *http.Request) {
		line := probe.Answer(name, addr(r.RemoteAddr))
		size, err := strconv.Atoi(r.PathValue("size"))
		if err != nil || size < len(line) {
			http.Error(w, fmt.Sprintf("size %q is not a number of at least %d bytes", r.PathValue("size"), len(line)), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.Itoa(size))
		_, err = io.WriteString(w, line)
		for left := size - len(line); left > 0 && err == nil; { // an error: the client is gone
			var n int
			n, err = w.Write(padding[:min(left, len(padding))])
			left -= n
		}
	})
	return mux
}
