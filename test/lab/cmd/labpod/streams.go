package main

import (
	"bufio"
	"cmp"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// streams keeps several connections until a stop is requested. Each sends a line at an interval, whether or not the
// previous line was answered. Each answer is printed as a result, and so is the error that breaks a connection, which
// is not reopened. At the end, an overdue oldest answer is printed as failed, one for each connection.
func (c *client) streams(asked <-chan os.Signal) {
	stop := make(chan struct{})
	var open sync.WaitGroup
	for n := range c.conns {
		open.Go(func() {
			// Spread over the interval between two lines.
			if after(stop, c.every*time.Duration(n)/time.Duration(c.conns)) {
				c.keep(n+1, stop)
			}
		})
	}
	<-asked
	close(stop)
	open.Wait()
}

// after waits; it reports whether stop was not closed in the meantime.
func after(stop <-chan struct{}, d time.Duration) bool {
	select {
	case <-stop:
		return false
	case <-time.After(d):
		return true
	}
}

// keep runs the n-th connection.
func (c *client) keep(n int, stop <-chan struct{}) {
	began := time.Now()
	conn, err := net.DialTimeout("tcp", c.target, c.timeout)
	if err != nil {
		c.print(probe.Result{N: 1, Conn: n, Sent: began}, "", err)
		return
	}
	defer conn.Close()
	var mu sync.Mutex
	var pending []probe.Result // in the order sent
	oldest := func() probe.Result {
		mu.Lock()
		defer mu.Unlock()
		if len(pending) == 0 {
			return probe.Result{Conn: n, Sent: time.Now()}
		}
		r := pending[0]
		pending = pending[1:]
		return r
	}
	// The kernel reports a reset once: to the writer or to the reader, which gets EOF then.
	var writing sync.Mutex
	var writeErr error
	broken := make(chan struct{})
	go func() {
		defer close(broken)
		for lines := bufio.NewReader(conn); ; {
			line, err := lines.ReadString('\n')
			if err == io.EOF {
				writing.Lock()
				err = cmp.Or(writeErr, err)
				writing.Unlock()
			}
			select {
			case <-stop: // closed by keep
				return
			default:
			}
			if c.print(oldest(), line, err); err != nil {
				return
			}
		}
	}()
	tick := time.NewTicker(c.every)
	defer tick.Stop()
	for i := 1; ; i++ {
		mu.Lock()
		pending = append(pending, probe.Result{N: i, Conn: n, Sent: time.Now()})
		mu.Unlock()
		writing.Lock()
		if _, err := io.WriteString(conn, "who\n"); writeErr == nil { // the reader reports it
			writeErr = err
		}
		writing.Unlock()
		select {
		case <-stop:
			if r := oldest(); r.N > 0 && time.Since(r.Sent) > c.timeout {
				c.print(r, "", os.ErrDeadlineExceeded)
			}
			conn.Close()
			<-broken
			return
		case <-broken:
			return
		case <-tick.C:
		}
	}
}
