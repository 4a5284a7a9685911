package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

//go:embed ui
var uiFiles embed.FS

// uiTypes are the files of the page with their types, which the MIME types of the machine do not change.
var uiTypes = map[string]string{"index.html": "text/html", "ui.css": "text/css", "ui.js": "text/javascript", "icon.svg": "image/svg+xml"}

func (t *tool) uiCommand() *cobra.Command {
	port := uint16(0)
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show the cluster as a live page in the browser",
		Long: `ui serves a page to the browser of this machine until Ctrl-C, and prints its URL: the problems, which node has which
addresses, the pools, the BGP sessions and the last moves. The page is live. It needs no network but that to the API server.

It reads the objects as the user of the kubeconfig, at most every two seconds for all browser windows together, and not
at all without one. It changes nothing.

It listens on the loopback interface only. Other users of this machine cannot read the page: its URL has a random part.
From another machine: ssh -L 8080:127.0.0.1:PORT, and the URL with port 8080.`,
		Example: "  kubectl ironlb ui\n  kubectl ironlb ui --port 8080",
		Args:    cobra.NoArgs,
		RunE:    t.connected(func(ctx context.Context, _ []string) error { return t.ui(ctx, port) }),
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "The port on the loopback interface; 0 means any that is free.")
	return cmd
}

// ui serves the page until the context ends. It returns an error at once if the cluster cannot be read.
func (t *tool) ui(ctx context.Context, port uint16) error {
	u := &uiServer{ctx: ctx, token: rand.Text(), now: t.now, read: t.pageReader()}
	if _, err := u.page(); err != nil {
		return err
	}
	listeners, err := loopback(port)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: u, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range listeners {
		group.Go(func() error {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serving the page: %w", err)
			}
			return nil
		})
	}
	group.Go(func() error {
		<-ctx.Done()
		return server.Close() // what the page asks for has no effect to wait for
	})
	fmt.Fprintf(t.out, "http://%s/%s/\nCtrl-C ends it.\n", listeners[0].Addr(), u.token)
	return group.Wait()
}

// loopback listens on a port of 127.0.0.1 and, if the machine has IPv6, of ::1: a browser may use either for localhost.
func loopback(port uint16) ([]net.Listener, error) {
	for tries := 0; ; tries++ {
		v4, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
		if err != nil {
			return nil, fmt.Errorf("--port: %w", err)
		}
		v6, err := net.Listen("tcp6", net.JoinHostPort("::1", strconv.Itoa(v4.Addr().(*net.TCPAddr).Port)))
		switch {
		case err == nil:
			return []net.Listener{v4, v6}, nil
		case !errors.Is(err, syscall.EADDRINUSE): // no IPv6
			return []net.Listener{v4}, nil
		}
		_ = v4.Close()
		if port != 0 || tries == 10 {
			return nil, fmt.Errorf("--port: %w", err)
		}
	}
}

// uiServer serves the page at /TOKEN/.
type uiServer struct {
	ctx   context.Context
	token string
	now   func() time.Time
	read  func(context.Context) (*page, error)

	mu     sync.Mutex // held while the objects are read: all requests get the result
	last   *page
	answer uiAnswer
	expiry time.Time
}

// uiAnswer is the JSON of the page.
type uiAnswer struct {
	body []byte
	etag string
	read time.Time // when reading what it shows began
}

// policy allows the files of the page alone, no script in the page, and no assignment of HTML.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

func (u *uiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer") // the URL is a secret
	h.Set("Cache-Control", "no-store")
	token, file, slash := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if file == "" {
		file = "index.html"
	}
	kind, known := uiTypes[file]
	switch {
	case !isLoopback(r.Host): // a name of another site that resolves to this machine (DNS rebinding)
		http.Error(w, "this server answers to localhost only", http.StatusMisdirectedRequest)
	case !slash || subtle.ConstantTimeCompare([]byte(token), []byte(u.token)) != 1:
		http.Error(w, "use the URL that kubectl ironlb ui printed", http.StatusForbidden)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "the page can only be read", http.StatusMethodNotAllowed)
	case file == "page.json":
		u.servePage(w, r)
	case known:
		h.Set("Content-Type", kind+"; charset=utf-8")
		http.ServeFileFS(w, r, uiFiles, "ui/"+file)
	default:
		http.NotFound(w, r)
	}
}

// isLoopback reports whether a Host header names this machine. The port differs behind a tunnel.
func isLoopback(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

func (u *uiServer) servePage(w http.ResponseWriter, r *http.Request) {
	answer, err := u.page()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("ETag", answer.etag)
	w.Header().Set("Age", strconv.Itoa(int(u.now().Sub(answer.read).Seconds()))) // the browser's clock may differ
	if r.Header.Get("If-None-Match") == answer.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer.body) // the browser has gone
}

const (
	// readWithin is how long a read may take.
	readWithin = 30 * time.Second
	// readAtLeast is the longest interval between reads, however long they take.
	readAtLeast = 10 * time.Second
)

// page returns the JSON of the page, read anew if it is older than watchEvery, or than four times what reading takes, up
// to readAtLeast. If the objects cannot be read, it is the last one with the error.
func (u *uiServer) page() (uiAnswer, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	began := u.now()
	if began.Before(u.expiry) {
		return u.answer, nil
	}
	ctx, cancel := context.WithTimeout(u.ctx, readWithin)
	defer cancel()
	p, err := u.read(ctx)
	switch {
	case err != nil && u.last == nil:
		return uiAnswer{}, err
	case err != nil:
		old := *u.last
		old.Error = printable(err.Error())
		p = &old
		u.expiry = u.now().Add(watchEvery)
	default:
		u.last, u.answer.read = p, began
		done := u.now()
		u.expiry = done.Add(min(max(watchEvery, 4*done.Sub(began)), readAtLeast))
	}
	if u.answer.body, err = json.Marshal(p); err != nil {
		return uiAnswer{}, fmt.Errorf("encoding the page: %w", err)
	}
	sum := sha256.Sum256(u.answer.body)
	u.answer.etag = `"` + hex.EncodeToString(sum[:16]) + `"`
	return u.answer, nil
}
