package main

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// padding is what an answer of a requested size consists of, after its first line.
var padding [1 << 16]byte

// handler answers every request with the Pod's line, those for probe.SizedPath with as many bytes as requested, and those
// for probe.EndlessPath until the client has gone.
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
	mux.HandleFunc("GET "+probe.EndlessPath, func(w http.ResponseWriter, r *http.Request) {
		block := padding[:probe.BlockSize]
		line := probe.Answer(name, addr(r.RemoteAddr))
		block = append([]byte(line), block[len(line):]...)
		tick := time.NewTicker(probe.BlockEvery)
		defer tick.Stop()
		for flush := http.NewResponseController(w).Flush; ; <-tick.C {
			if _, err := w.Write(block); err != nil || flush() != nil {
				return
			}
		}
	})
	return mux
}
