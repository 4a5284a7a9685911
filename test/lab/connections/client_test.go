package connections

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// server answers lines as a Pod does, until a connection misbehaves after its third answer.
func server(t *testing.T, misbehave func(conn *net.TCPConn, line string)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { l.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				lines := bufio.NewScanner(conn)
				for n := 1; lines.Scan(); n++ {
					if n > 3 && misbehave != nil {
						misbehave(conn.(*net.TCPConn), lines.Text())
						return
					}
					io.WriteString(conn, probe.Echo("web", "192.0.2.100", lines.Text()))
				}
			})
		}
	})
	return netip.MustParseAddrPort(l.Addr().String())
}

// run runs a client until the lives satisfy a condition, and returns those at the end.
func run(t *testing.T, c *Client, until func(map[int]Life) bool) map[int]Life {
	t.Helper()
	reader, writer := io.Pipe()
	c.Out = writer
	c.Every = 5 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { err := c.Run(ctx); writer.Close(); ended <- err }()
	lives, done := map[int]Life{}, false
	for events := json.NewDecoder(reader); ; {
		var e Event
		if events.Decode(&e) != nil {
			break
		}
		if e.Life != nil {
			lives[e.Life.N] = *e.Life
		}
		if done = e.Done != nil; until(lives) {
			cancel()
		}
	}
	if err := <-ended; err != nil || !done || !until(lives) {
		t.Fatalf("%v, its last line is Done: %t; %+v", err, done, lives)
	}
	return lives
}

// A connection that is served to the end is not broken. All lines are answered.
func TestUnbroken(t *testing.T) {
	lives := run(t, &Client{
		Targets: []netip.AddrPort{server(t, nil)}, Kept: 3, Open: 20 * time.Millisecond, Lines: 2, Bound: 10 * time.Second,
	}, func(lives map[int]Life) bool { return len(lives) >= 6 && !lives[4].Ended.IsZero() })
	for _, l := range lives {
		if l.Cause != Unbroken || l.Sent != l.Answered || l.Answered == 0 || l.Pod != "web" || l.Client != "192.0.2.100" || l.Kept != (l.N <= 3) {
			t.Errorf("%+v", l)
		}
		if !l.Kept && l.Answered > 2 {
			t.Errorf("%d lines of a connection that is to have 2", l.Answered)
		}
	}
}

// Each way in which a connection breaks has its cause, and a connection to another server is unaffected.
func TestCauses(t *testing.T) {
	answer := func(pod, client, line string) func(*net.TCPConn, string) {
		return func(conn *net.TCPConn, sent string) {
			if line == "" {
				line = sent
			}
			io.WriteString(conn, probe.Echo(pod, client, line))
			io.Copy(io.Discard, conn)
		}
	}
	for name, c := range map[string]struct {
		misbehave func(*net.TCPConn, string)
		want      Cause
	}{
		"reset":   {func(conn *net.TCPConn, _ string) { conn.SetLinger(0) }, Reset},
		"stalled": {func(conn *net.TCPConn, _ string) { io.Copy(io.Discard, conn) }, Timeout},
		"closed":  {func(conn *net.TCPConn, _ string) {}, Closed},
		"swapped bytes": {func(conn *net.TCPConn, line string) {
			b := []byte(line)
			b[len(b)-2], b[len(b)-1] = b[len(b)-1], b[len(b)-2]^1
			answer("web", "192.0.2.100", string(b))(conn, line)
		}, WrongBytes},
		"of another connection": {answer("web", "192.0.2.100", probe.Numbered(2, 4)), WrongBytes},
		"an earlier line":       {answer("web", "192.0.2.100", probe.Numbered(1, 2)), WrongBytes},
		"another Pod":           {answer("other", "192.0.2.100", ""), OtherPod},
		"another client":        {answer("web", "192.0.2.11", ""), OtherClient},
		"no Pod's answer":       {func(conn *net.TCPConn, _ string) { io.WriteString(conn, "hello\n"); io.Copy(io.Discard, conn) }, WrongBytes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lives := run(t, &Client{
				Targets: []netip.AddrPort{server(t, c.misbehave), server(t, nil)}, Kept: 2, Bound: time.Second,
			}, func(lives map[int]Life) bool { return !lives[1].Ended.IsZero() && !lives[2].First.IsZero() })
			if l := lives[1]; l.Cause != c.want || l.Answered != 3 || l.Ended.IsZero() || l.Detail == "" {
				t.Errorf("%+v, want %q after 3 answers", l, c.want)
			}
			if l := lives[2]; l.Cause != Unbroken || l.Answered != l.Sent {
				t.Errorf("the other one: %+v", l)
			}
		})
	}
}

// Connections that are not established have a cause, too.
func TestNotEstablished(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	silent := silentServer(t)
	lives := run(t, &Client{
		Targets: []netip.AddrPort{netip.MustParseAddrPort(closed.Addr().String()), silent}, Kept: 2, Bound: 100 * time.Millisecond,
	}, func(lives map[int]Life) bool { return !lives[1].Ended.IsZero() && !lives[2].Ended.IsZero() })
	if l := lives[1]; l.Cause != Refused || !l.Connected.IsZero() {
		t.Errorf("%+v, want one that is refused", l)
	}
	if l := lives[2]; l.Cause != Timeout || l.Connected.IsZero() || !l.First.IsZero() {
		t.Errorf("%+v, want one without an answer", l)
	}
}

// silentServer accepts connections and does not answer.
func silentServer(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return netip.MustParseAddrPort(l.Addr().String())
}

func TestIncomplete(t *testing.T) {
	if err := (&Client{}).Run(t.Context()); err == nil {
		t.Error("a client without a target starts")
	}
}
