package bgp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
)

// Limit is the maximum length of a line, in octets. A full set of 10,000 routes to two peers is about 1 MB.
const Limit = 64 << 20

// Time limits for the other side's first line, and for reading a line. It is on the same machine.
const (
	firstLimit = 5 * time.Second
	writeLimit = 30 * time.Second
)

// conn carries lines of JSON. One goroutine may send while another receives.
type conn struct {
	net.Conn
	in *bufio.Scanner
}

func newConn(c net.Conn) *conn {
	in := bufio.NewScanner(c)
	in.Buffer(nil, Limit)
	return &conn{c, in}
}

// send writes a value as a line.
func (c *conn) send(v any) error {
	line, err := json.Marshal(v) // the result contains no line break
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	if line = append(line, '\n'); len(line) > Limit {
		return fmt.Errorf("a message of %d octets is longer than %d", len(line), Limit)
	}
	if err := c.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	_, err = c.Write(line)
	return err
}

// receive waits for a line and decodes it. The error is io.EOF if the other side closed the connection.
func (c *conn) receive(v any) error {
	if !c.in.Scan() {
		if err := c.in.Err(); err != nil {
			return fmt.Errorf("receive a message: %w", err)
		}
		return io.EOF
	}
	return decode(c.in.Bytes(), v)
}

// decode parses a line.
func decode(line []byte, v any) error {
	err := json.Unmarshal(line, v)
	if checked, is := v.(interface{ check() error }); err == nil && is {
		err = checked.check()
	}
	if err != nil {
		return fmt.Errorf("decode a message: %w", err)
	}
	return nil
}

// exchange passes received values to handle, and sends what next returns, until that is nil, at the start and whenever
// wake is triggered. It returns when the connection ends or handle fails, and closes the connection.
func exchange[T any](c *conn, wake <-chan struct{}, next func() any, handle func(T) error) error {
	group, ended := errgroup.WithContext(context.Background())
	defer context.AfterFunc(ended, func() { c.Close() })()
	group.Go(func() error {
		for {
			var v T
			if err := c.receive(&v); err != nil {
				return err
			}
			if err := handle(v); err != nil {
				return err
			}
		}
	})
	group.Go(func() error {
		for {
			for v := next(); v != nil; v = next() {
				if err := c.send(v); err != nil {
					return err
				}
			}
			select {
			case <-ended.Done():
				return nil
			case <-wake:
			}
		}
	})
	return group.Wait()
}

// trigger fills a channel of size 1.
func trigger(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
