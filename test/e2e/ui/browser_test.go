package ui

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/eventually"
	"github.com/ironlb/ironlb/test/lab/host"
)

// browser is a headless Chromium with one page, driven by the Chrome DevTools Protocol.
type browser struct {
	in      *os.File
	session string

	mu       sync.Mutex
	number   int
	waiting  map[int]chan answer
	requests []string
	errors   []string // of the page: exceptions, and what its policy blocked
}

// message is what Chromium writes: an answer has an ID, an Event a method.
type message struct {
	ID     int
	Method string
	Params json.RawMessage
	answer
}

type answer struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// pipes gives Chromium its standard input and output as the files 3 and 4, of --remote-debugging-pipe.
const pipes = `exec 3<&0 4>&1 </dev/null >/dev/null; exec "$@"`

// startBrowser starts Chromium where the API server is: it reaches no other network than the lab's.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	profile := t.TempDir()
	stdin, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{in: in, waiting: map[int]chan answer{}}
	p, err := cluster.Management.Start(t.Context(), "chromium", host.Cmd{
		Argv: []string{"sh", "-c", pipes, "sh", "chromium", "--headless", "--no-sandbox", "--remote-debugging-pipe", "--user-data-dir=" + profile,
			"--disable-background-networking", "--disable-component-update", "--disable-breakpad", "--no-first-run", "--hide-scrollbars", "about:blank"},
		Env:   []string{"HOME=" + profile, "XDG_CONFIG_HOME=" + profile, "XDG_CACHE_HOME=" + profile},
		Stdin: stdin, Stdout: &split{each: b.receive},
	})
	stdin.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Kill(), in.Close()); err != nil {
			t.Error(err)
		}
	})
	var target struct{ TargetID string }
	b.call(t, "Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	b.call(t, "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		b.call(t, domain+".enable", nil, nil)
	}
	return b
}

// split calls each for every message, which ends with a zero byte.
type split struct {
	each func([]byte)
	rest []byte
}

func (s *split) Write(p []byte) (int, error) {
	s.rest = append(s.rest, p...)
	for {
		one, rest, whole := bytes.Cut(s.rest, []byte{0})
		if !whole {
			return len(p), nil
		}
		s.each(one)
		s.rest = bytes.Clone(rest)
	}
}

func (b *browser) receive(data []byte) {
	var m message
	if err := json.Unmarshal(data, &m); err != nil {
		m.Method, m.Params = "unreadable message", data
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case m.ID != 0:
		if c := b.waiting[m.ID]; c != nil {
			c <- m.answer
		}
	case m.Method == "Network.requestWillBeSent":
		var one struct{ Request struct{ URL string } }
		_ = json.Unmarshal(m.Params, &one) // an empty URL is not the page's
		b.requests = append(b.requests, one.Request.URL)
	case m.Method == "Runtime.exceptionThrown", m.Method == "Log.entryAdded", m.Method == "unreadable message":
		b.errors = append(b.errors, string(m.Params))
	}
}

// call calls a method of the protocol.
func (b *browser) call(t *testing.T, method string, params map[string]any, result any) {
	t.Helper()
	reply := make(chan answer, 1)
	b.mu.Lock()
	b.number++
	id := b.number
	b.waiting[id] = reply
	b.mu.Unlock()
	request := map[string]any{"id": id, "method": method}
	if params != nil {
		request["params"] = params
	}
	if b.session != "" {
		request["sessionId"] = b.session
	}
	data, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.in.Write(append(data, 0)); err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	select {
	case a := <-reply:
		if a.Error != nil {
			t.Fatalf("%s: %s", method, a.Error.Message)
		}
		if result == nil {
			return
		}
		if err := json.Unmarshal(a.Result, result); err != nil {
			t.Fatalf("%s: %v", method, err)
		}
	case <-time.After(patience):
		t.Fatalf("%s: no answer from Chromium", method)
	}
}

// eval evaluates an expression in the page, whose value becomes that of result.
func (b *browser) eval(t *testing.T, expression string, result any) {
	t.Helper()
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call(t, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &got)
	if got.ExceptionDetails != nil {
		t.Fatalf("%s: %s", expression, got.ExceptionDetails)
	}
	if result == nil {
		return
	}
	if err := json.Unmarshal(got.Result.Value, result); err != nil {
		t.Fatalf("%s: %v in %s", expression, err, got.Result.Value)
	}
}

// open loads a page, and records how much its layout shifts by itself from then on.
func (b *browser) open(t *testing.T, url string) {
	t.Helper()
	b.call(t, "Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": `
		window.shifted = 0;
		new PerformanceObserver(list => { for (const e of list.getEntries()) if (!e.hadRecentInput) window.shifted += e.value; }).observe({type: 'layout-shift', buffered: true});`}, nil)
	b.call(t, "Page.navigate", map[string]any{"url": url}, nil)
	cluster.Await(t, patience, "the page is loaded", func(context.Context) error {
		var state string
		b.eval(t, `location.href + " " + document.readyState`, &state)
		return eventually.Unless(state == url+" complete", "%s", state)
	})
}

// show sets the size of the window and the preferred colours.
func (b *browser) show(t *testing.T, width, height int, colours string) {
	t.Helper()
	b.call(t, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	b.call(t, "Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": colours}}}, nil)
}

// picture returns what the window shows, as PNG.
func (b *browser) picture(t *testing.T) []byte {
	t.Helper()
	var shot struct{ Data string }
	b.call(t, "Page.captureScreenshot", map[string]any{"format": "png", "optimizeForSpeed": false}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		t.Fatal(err)
	}
	return png
}

// clean fails the test if the page had an error, its policy blocked something, or it asked anyone but its server.
func (b *browser) clean(t *testing.T, url string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.errors {
		t.Errorf("the page: %s", e)
	}
	if len(b.requests) == 0 {
		t.Error("the page asked for nothing")
	}
	for _, r := range b.requests {
		if !strings.HasPrefix(r, url) {
			t.Errorf("the page asked for %s", r)
		}
	}
}

// startUI starts kubectl ironlb ui with a kubeconfig, and returns the URL that it prints.
func startUI(t *testing.T, kubeconfig string) string {
	t.Helper()
	if _, err := cluster.Plugin(t.Context(), "version", "--client"); err != nil { // it builds the plugin
		t.Fatal(err)
	}
	lines := make(chan string, 8)
	p, err := cluster.Management.Start(t.Context(), "ui", host.Cmd{
		Argv: []string{cluster.Program("kubectl-ironlb"), "ui", "--kubeconfig", kubeconfig}, Stdout: writer(func(p []byte) (int, error) {
			for s := bufio.NewScanner(bytes.NewReader(p)); s.Scan(); {
				lines <- s.Text()
			}
			return len(p), nil
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(10 * time.Second); err != nil {
			t.Error(err)
		}
		if err := p.Wait(); err != nil {
			t.Errorf("the end of kubectl ironlb ui: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case line := <-lines:
		if !strings.HasPrefix(line, "http://127.0.0.1:") {
			t.Fatalf("kubectl ironlb ui printed %q", line)
		}
		return line
	case <-p.Done():
		t.Fatal(fmt.Errorf("kubectl ironlb ui: %w", p.Err()))
	case <-ctx.Done():
		t.Fatal("kubectl ironlb ui printed no URL")
	}
	return ""
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
