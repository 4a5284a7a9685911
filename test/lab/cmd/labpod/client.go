package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// client sends requests and prints a probe.Result for each.
type client struct {
	network, target string
	every, timeout  time.Duration
	count, most     int // requests in all, and at once
	conns           int // of network "streams"
	serial          bool
	port            int  // the client's own port; 0: any
	walk            bool // each request uses the next port
	out             io.Writer

	walked atomic.Uint32
	mu     sync.Mutex
	stream net.Conn // the one connection of network "stream" or "download"
	lines  *bufio.Reader
	block  []byte // of a download
	server string // answer line of the Pod that sends it
}

// run ends after count requests or at SIGTERM, and waits for outstanding answers.
func (c *client) run() error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	if c.network == "streams" {
		c.streams(stop)
		return nil
	}
	asks := map[string]func() (string, error){"tcp": c.tcp, "udp": c.udp, "line": c.oneLine, "stream": c.line, "download": c.download}
	ask, ok := asks[c.network]
	if !ok {
		return fmt.Errorf("network %q is not tcp, udp, line, stream, streams or download", c.network)
	}
	connected := c.network == "stream" || c.network == "download"
	if connected {
		c.serial = true
	}
	tick := time.NewTicker(c.every)
	defer tick.Stop()
	var due sync.WaitGroup
	defer due.Wait()
	room := make(chan struct{}, c.most)
	for n := 1; ; n++ {
		if !c.serial {
			select {
			case room <- struct{}{}:
			case <-stop:
				return nil
			}
			due.Go(func() { c.one(n, ask); <-room })
		} else if err := c.one(n, ask); err != nil && connected {
			return err // the connection is broken and not reopened
		}
		if n == c.count {
			return nil
		}
		select {
		case <-stop:
			return nil
		case <-tick.C:
		}
	}
}

// one sends one request and prints its result.
func (c *client) one(n int, ask func() (string, error)) error {
	r := probe.Result{N: n, Sent: time.Now()}
	line, err := ask()
	return c.print(r, line, err)
}

// print prints the result of a request that was just answered or has failed.
func (c *client) print(r probe.Result, line string, err error) error {
	r.Took = time.Since(r.Sent)
	if err == nil {
		r.Pod, r.Client, err = probe.ParseAnswer(line)
	}
	if err != nil {
		r.Error = plain(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(err, json.NewEncoder(c.out).Encode(r))
}

// tcp makes one HTTP request over a connection of its own.
func (c *client) tcp() (string, error) {
	conn, err := c.dial("tcp")
	if err != nil {
		return "", err
	}
	defer conn.Close()
	host, _, _ := net.SplitHostPort(c.target)
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.0\r\nHost: %s\r\n\r\n", host); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return "", err
	}
	head, body, ok := strings.Cut(string(answer), "\r\n\r\n")
	if status := strings.Fields(head); !ok || len(status) < 2 || status[1] != "200" {
		return "", fmt.Errorf("answered %q", answer)
	}
	return body, nil
}

// udp sends one datagram from a port of its own.
func (c *client) udp() (string, error) {
	conn, err := c.dial("udp")
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("who\n")); err != nil {
		return "", err
	}
	buf := make([]byte, 1500)
	n, err := conn.Read(buf)
	return string(buf[:n]), err
}

// oneLine sends a line over a connection of its own.
func (c *client) oneLine() (string, error) {
	conn, err := c.dial("tcp")
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "who\n"); err != nil {
		return "", err
	}
	return bufio.NewReader(conn).ReadString('\n')
}

// line sends a line over the one connection.
func (c *client) line() (string, error) {
	if c.stream == nil {
		conn, err := c.dial("tcp")
		if err != nil {
			return "", err
		}
		c.stream, c.lines = conn, bufio.NewReader(conn)
	}
	if err := c.stream.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c.stream, "who\n"); err != nil {
		return "", err
	}
	return c.lines.ReadString('\n')
}

// download reads the next block of an endless answer from the one connection.
func (c *client) download() (string, error) {
	if c.stream == nil {
		conn, err := c.dial("tcp")
		if err != nil {
			return "", err
		}
		c.stream, c.lines, c.block = conn, bufio.NewReader(conn), make([]byte, probe.BlockSize)
		if _, err := io.WriteString(conn, "GET "+probe.EndlessPath+" HTTP/1.0\r\n\r\n"); err != nil {
			return "", err
		}
		for line := ""; line != "\r\n"; { // the head
			if line, err = c.lines.ReadString('\n'); err != nil {
				return "", err
			}
		}
	}
	if err := c.stream.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return "", err
	}
	if _, err := io.ReadFull(c.lines, c.block); err != nil {
		return "", err
	}
	if c.server == "" {
		line, _, _ := bytes.Cut(c.block, []byte("\n"))
		c.server = string(line)
	}
	return c.server, nil
}

func (c *client) dial(network string) (conn net.Conn, err error) {
	for range 100 { // retries on ports in use
		dialer := net.Dialer{Timeout: c.timeout}
		if port := c.own(); port != 0 && network == "udp" {
			dialer.LocalAddr = &net.UDPAddr{Port: port}
		} else if port != 0 {
			dialer.LocalAddr = &net.TCPAddr{Port: port}
		}
		if c.walk && network == "tcp" {
			dialer.Control = reuse
		}
		conn, err = dialer.Dial(network, c.target)
		if !c.walk || !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(c.timeout))
}

// Ports of a client with walk.
const (
	firstPort = 1024
	ports     = 65536 - firstPort
)

// own returns the port of the next request; 0: any.
func (c *client) own() int {
	if !c.walk {
		return c.port
	}
	return firstPort + (c.port+int(c.walked.Add(1)))%ports
}

// reuse allows two connections to different destinations on one port.
func reuse(_, _ string, conn syscall.RawConn) (err error) {
	control := conn.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	})
	return errors.Join(control, err)
}

// plain removes the ports from an error, so that equal errors have equal text.
func plain(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		if op.Timeout() {
			return op.Op + ": timeout"
		}
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}
