// Package hosttest is the contract suite of host.Host.
package hosttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab/host"
)

// limit is the timeout of immediate actions, on a slow guest.
const limit = 30 * time.Second

// Suite runs the contract on h.
func Suite(t *testing.T, h host.Host) {
	for name, test := range map[string]func(*testing.T, host.Host){
		"ExitStatus": exitStatus, "Streams": streams, "Environment": environment,
		"NotFound": notFound, "LargeInput": largeInput, "Concurrent": concurrent,
		"Signal": signalled, "SignalBeforeInput": signalBeforeInput, "Cancel": cancelled,
		"Ended": ended, "BrokenOutput": brokenOutput,
	} {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
}

func sh(script string) host.Cmd { return host.Cmd{Argv: []string{"sh", "-c", script}} }

func exitStatus(t *testing.T, h host.Host) {
	for _, want := range []int{0, 3, 255} {
		_, err := host.Output(t.Context(), h, sh(fmt.Sprintf("echo bad >&2; exit %d", want)))
		var exit *host.ExitError
		switch {
		case want == 0 && err != nil:
			t.Errorf("status 0: have error %v", err)
		case want != 0 && (!errors.As(err, &exit) || exit.Code != want || exit.Stderr != "bad\n"):
			t.Errorf("status %d: have error %#v", want, err)
		}
	}
}

func streams(t *testing.T, h host.Host) {
	var out, errs bytes.Buffer
	c := sh("cat; echo to-stderr >&2")
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader("from-stdin"), &out, &errs
	if err := wait(t, h, c); err != nil {
		t.Fatal(err)
	}
	if out.String() != "from-stdin" || errs.String() != "to-stderr\n" {
		t.Errorf("stdout %q, stderr %q", &out, &errs)
	}
}

func environment(t *testing.T, h host.Host) {
	c := sh(`echo "$LAB_A $PATH"; pwd`)
	c.Env, c.Dir = []string{"LAB_A=no", "LAB_A=yes"}, "/usr"
	out, err := host.Output(t.Context(), h, c)
	if err != nil {
		t.Fatal(err)
	}
	if s := string(out); !strings.HasPrefix(s, "yes /") || !strings.HasSuffix(s, "\n/usr\n") {
		t.Errorf("have %q, want the variable, a PATH and the folder", s)
	}
}

func notFound(t *testing.T, h host.Host) {
	for _, c := range []host.Cmd{{Argv: []string{"no-such-program"}}, {}, {Argv: []string{"true"}, Dir: "/no-such-folder"}} {
		if _, err := h.Start(t.Context(), c); err == nil {
			t.Errorf("%+v was started", c)
		}
	}
}

func largeInput(t *testing.T, h host.Host) {
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // 2 MiB
	var have bytes.Buffer
	if err := wait(t, h, host.Cmd{Argv: []string{"cat"}, Stdin: bytes.NewReader(want), Stdout: &have}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have.Bytes(), want) {
		t.Errorf("%d bytes came back other than the %d sent", have.Len(), len(want))
	}
}

// concurrent starts commands that can only end when all of them run.
func concurrent(t *testing.T, h host.Host) {
	const n = 12
	var wg sync.WaitGroup
	var closers []io.Closer
	for i := range n {
		in, w := io.Pipe()
		out := &notify{seen: make(chan struct{})}
		p, err := h.Start(t.Context(), host.Cmd{Argv: []string{"sh", "-c", "echo up; cat"}, Stdin: in, Stdout: out})
		if err != nil {
			t.Fatal(err)
		}
		closers = append(closers, w)
		wg.Go(func() {
			if err := p.Wait(); err != nil {
				t.Errorf("command %d: %v", i, err)
			}
		})
		out.wait(t)
	}
	for _, c := range closers {
		c.Close()
	}
	wg.Wait()
}

func signalled(t *testing.T, h host.Host) {
	p, err := h.Start(t.Context(), host.Cmd{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	var exit *host.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.Signal != syscall.SIGTERM || exit.Code != 128+15 {
		t.Errorf("have %v, want the end by SIGTERM", err)
	}
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: have %v, want %v", err, os.ErrProcessDone)
	}
}

// signalBeforeInput: a command that reads none of an endless input still receives signals.
func signalBeforeInput(t *testing.T, h host.Host) {
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	out := &notify{seen: make(chan struct{})}
	c := sh("trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done")
	c.Stdin, c.Stdout = io.LimitReader(zero, 4<<20), out
	p, err := h.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	out.wait(t)
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	var exit *host.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.Code != 7 {
		t.Errorf("have %v, want status 7", err)
	}
}

func cancelled(t *testing.T, h host.Host) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &notify{seen: make(chan struct{})}
	c := sh("sleep 1000 & echo $! $$; wait")
	c.Stdout = out
	p, err := h.Start(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	pids := strings.Fields(out.wait(t))
	cancel()
	if err := p.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("have %v, want %v", err, context.Canceled)
	}
	Gone(t, h, pids...)
}

func ended(t *testing.T, h host.Host) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p, err := h.Start(ctx, host.Cmd{Argv: []string{"sleep", "1000"}})
	if err == nil {
		err = p.Wait()
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("start with a context that ended: have %v, want %v", err, context.Canceled)
	}
}

func brokenOutput(t *testing.T, h host.Host) {
	c := sh("echo lost")
	c.Stdout = broken{}
	if err := wait(t, h, c); !errors.Is(err, io.ErrShortBuffer) {
		t.Errorf("have %v, want the writer's error", err)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrShortBuffer }

// Gone waits until h has no running process with these numbers. A zombie counts as gone.
func Gone(t *testing.T, h host.Host, pids ...string) {
	t.Helper()
	for _, pid := range pids {
		script := fmt.Sprintf("grep -q '^State:.[^ZX]' /proc/%s/status", pid)
		for deadline := time.Now().Add(limit); ; {
			_, err := host.Run(t.Context(), h, "sh", "-c", script)
			var exit *host.ExitError
			if errors.As(err, &exit) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if time.Now().After(deadline) {
				t.Errorf("process %s still runs", pid)
				break
			}
		}
	}
}

func wait(t *testing.T, h host.Host, c host.Cmd) error {
	t.Helper()
	p, err := h.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return p.Wait()
}

// notify signals the first write and keeps it.
type notify struct {
	once  sync.Once
	seen  chan struct{}
	first string
}

func (n *notify) Write(p []byte) (int, error) {
	n.once.Do(func() {
		n.first = string(p)
		close(n.seen)
	})
	return len(p), nil
}

func (n *notify) wait(t *testing.T) string {
	t.Helper()
	select {
	case <-n.seen:
		return n.first
	case <-time.After(limit):
		t.Fatal("the command has written nothing")
		return ""
	}
}
