package connections

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// Client keeps connections. Each sends a line at an interval, whether or not the previous one was answered.
type Client struct {
	Targets []netip.AddrPort // ports of Pods, or of a Service for them, with [probe.PortEcho]; used one after the other
	Kept    int              // connections that stay until the end
	Every   time.Duration    // from one line of a connection to the next
	// Open is the interval at which it opens more connections once every kept one was answered, and Lines the number
	// of lines of each of those. 0: none.
	Open  time.Duration
	Lines int
	Bound time.Duration // an answer, or a connection, that takes longer is missing
	// Port is the client's own port of the first connection; those of the others follow.
	Port      int
	Interface string // for the capture; empty: none
	Out       io.Writer

	capture *capture
	started sync.WaitGroup // kept connections without an answer
	mu      sync.Mutex
	conns   []*conn
	ports   atomic.Int64
}

// Event is a line that a client prints: a connection that was answered first or has ended, and at the end all of them,
// and Done.
type Event struct {
	Life *Life `json:"life,omitempty"`
	Done *Done `json:"done,omitempty"`
}

// Done is about the client itself.
type Done struct {
	Late    time.Duration `json:"late"`    // of its own timer, at most
	Dropped int           `json:"dropped"` // packets that its capture lost
	Port    int           `json:"port"`    // the next unused one
}

// Run opens the connections and keeps them until the context ends, then waits until each line was answered or is
// overdue, and prints all.
func (c *Client) Run(ctx context.Context) (err error) {
	if len(c.Targets) == 0 || c.Every <= 0 || c.Bound <= 0 || c.Open > 0 && c.Lines < 1 {
		return fmt.Errorf("a client needs a target, an interval, a bound, and lines for each connection that it opens")
	}
	if c.Interface != "" {
		if c.capture, err = startCapture(c.Interface, c.Targets); err != nil {
			return err
		}
	}
	c.ports.Store(int64(c.Port))
	late := make(chan time.Duration, 1)
	go func() { late <- lateness(ctx) }()
	var all sync.WaitGroup
	c.started.Add(c.Kept)
	for n := range c.Kept {
		k := c.add(true)
		all.Go(func() {
			defer k.answered()
			// Spread over the interval between two lines.
			if wait(ctx, c.Every*time.Duration(n)/time.Duration(c.Kept)) {
				k.run(ctx)
			}
		})
	}
	if c.Open > 0 {
		all.Go(func() { c.openMore(ctx, &all) })
	}
	<-ctx.Done()
	all.Wait()
	done := Done{Late: <-late, Port: int(c.ports.Load())}
	if c.capture != nil {
		if done.Dropped, err = c.capture.stop(); err != nil {
			return err
		}
	}
	for _, k := range c.conns {
		if !k.life.Opened.IsZero() {
			c.print(Event{Life: k.copy()})
		}
	}
	return c.print(Event{Done: &done})
}

// openMore opens connections until the context ends.
func (c *Client) openMore(ctx context.Context, all *sync.WaitGroup) {
	ready := make(chan struct{})
	go func() { c.started.Wait(); close(ready) }()
	select {
	case <-ready:
	case <-ctx.Done():
		return
	}
	tick := time.NewTicker(c.Open)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			k := c.add(false)
			all.Go(func() { k.run(ctx) })
		}
	}
}

// lateness returns the maximum delay of a timer.
func lateness(ctx context.Context) (most time.Duration) {
	const every = 20 * time.Millisecond
	for {
		began := time.Now()
		if !wait(ctx, every) {
			return most
		}
		most = max(most, time.Since(began)-every)
	}
}

// wait waits; it reports whether the context has not ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (c *Client) add(kept bool) *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := &conn{c: c, life: Life{N: len(c.conns) + 1, Kept: kept, Target: c.Targets[len(c.conns)%len(c.Targets)]}}
	k.answered = sync.OnceFunc(func() {
		if kept {
			c.started.Done()
		}
	})
	c.conns = append(c.conns, k)
	return k
}

func (c *Client) print(e Event) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return json.NewEncoder(c.Out).Encode(e)
}

// conn is one connection.
type conn struct {
	c        *Client
	answered func() // called at the first answer, or at the end
	net.Conn

	mu       sync.Mutex
	life     Life
	pending  []pending // lines without an answer, in the order sent
	stopping bool
	writeErr error
}

type pending struct {
	line string
	sent time.Time
}

// copy returns the life with what was captured.
func (k *conn) copy() *Life {
	k.mu.Lock()
	life := k.life
	k.mu.Unlock()
	if k.c.capture != nil {
		life.Wire = k.c.capture.wire(life.Target, life.Port)
	}
	return &life
}

// run opens the connection, and sends and reads lines until it breaks or its lines are done.
func (k *conn) run(ctx context.Context) {
	defer k.answered()
	if err := k.dial(); err != nil {
		k.end(causeOf(err), err)
		return
	}
	defer k.Close()
	k.mu.Lock()
	k.life.Connected = time.Now()
	k.mu.Unlock()
	broken := make(chan struct{})
	go func() {
		defer close(broken)
		k.end(k.read())
	}()
	tick := time.NewTicker(k.c.Every)
	defer tick.Stop()
	for n := 1; ; n++ {
		k.send(n)
		last := !k.life.Kept && n == k.c.Lines
		select {
		case <-broken:
			return
		case <-tick.C:
			if !last {
				continue
			}
		case <-ctx.Done():
		}
		k.stop()
		<-broken
		return
	}
}

// dial connects from the next port that is free.
func (k *conn) dial() (err error) {
	for range 100 {
		port := firstPort + int(k.c.ports.Add(1)-1)%ports
		k.mu.Lock()
		k.life.Port, k.life.Opened = uint16(port), time.Now()
		k.mu.Unlock()
		d := net.Dialer{Timeout: k.c.Bound, LocalAddr: &net.TCPAddr{Port: port}, Control: reuse, KeepAlive: -1}
		if k.Conn, err = d.Dial("tcp", k.life.Target.String()); !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			break
		}
	}
	return err
}

// The client's own ports. After the last one the first one follows.
const (
	firstPort = 1024
	ports     = 65536 - firstPort
)

// reuse allows the port of an earlier client whose connection is in TIME_WAIT, or leads elsewhere.
func reuse(_, _ string, conn syscall.RawConn) (err error) {
	control := conn.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	})
	return errors.Join(control, err)
}

// send sends the n-th line. The reader reports an error of the connection.
func (k *conn) send(n int) {
	line := probe.Numbered(k.life.N, n)
	now := time.Now()
	k.mu.Lock()
	k.pending = append(k.pending, pending{line, now})
	k.life.Sent++
	if len(k.pending) == 1 {
		k.SetReadDeadline(now.Add(k.c.Bound))
	}
	k.mu.Unlock()
	if _, err := io.WriteString(k, line+"\n"); err != nil {
		k.mu.Lock()
		k.writeErr = errors.Join(k.writeErr, err)
		k.mu.Unlock()
	}
}

// stop lets the reader end once all lines are answered.
func (k *conn) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopping = true; len(k.pending) == 0 {
		k.SetReadDeadline(time.Now())
	}
}

// read reads answers until the connection breaks, or all lines are answered and no more are sent.
func (k *conn) read() (Cause, error) {
	for lines := bufio.NewReader(k); ; {
		answer, err := lines.ReadString('\n')
		if cause, err := k.take(answer, err); cause != Unbroken {
			return cause, err
		}
		k.mu.Lock()
		done := k.stopping && len(k.pending) == 0
		k.mu.Unlock()
		if done {
			return Unbroken, nil
		}
	}
}

// take records an answer, or the error in its place.
func (k *conn) take(answer string, err error) (Cause, error) {
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	cause := causeOf(err)
	switch {
	case cause == Timeout && len(k.pending) == 0: // an earlier deadline, or stop's
		k.SetReadDeadline(time.Time{})
		return Unbroken, nil
	case cause == Timeout:
		return cause, fmt.Errorf("%d lines unanswered, the oldest for %s", len(k.pending), now.Sub(k.pending[0].sent).Round(time.Millisecond))
	case cause == Closed && causeOf(k.writeErr) == Reset:
		return Reset, k.writeErr // the kernel reports an error once, to the writer or to the reader
	case err != nil:
		return cause, err
	}
	pod, client, line, err := probe.ParseEcho(answer)
	switch {
	case err != nil:
		return WrongBytes, err
	case len(k.pending) == 0 || line != k.pending[0].line:
		return WrongBytes, fmt.Errorf("%q is not the answer to the oldest of %d lines", answer, len(k.pending))
	case k.life.Answered > 0 && pod != k.life.Pod:
		return OtherPod, fmt.Errorf("%s, and before %s", pod, k.life.Pod)
	case k.life.Answered > 0 && client != k.life.Client:
		return OtherClient, fmt.Errorf("%s, and before %s", client, k.life.Client)
	}
	k.pending = k.pending[1:]
	k.life.Answered, k.life.Last = k.life.Answered+1, now
	if k.life.Answered == 1 {
		k.life.First, k.life.Pod, k.life.Client = now, pod, client
		life := k.life
		k.c.print(Event{Life: &life})
		k.answered()
	}
	deadline := time.Time{}
	if len(k.pending) > 0 {
		deadline = k.pending[0].sent.Add(k.c.Bound)
	}
	return Unbroken, k.SetReadDeadline(deadline)
}

// end records the end.
func (k *conn) end(cause Cause, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.life.Ended, k.life.Cause = time.Now(), cause
	if cause != Unbroken && err != nil {
		k.life.Detail = err.Error()
	}
	life := k.life
	k.c.print(Event{Life: &life})
}
