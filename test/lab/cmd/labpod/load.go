package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// loader sends HTTP requests: each worker one after the other, so that a slow answer delays the next request.
type loader struct {
	target        string
	workers, size int // size of an answer in bytes
	perConn       int // requests over one connection
	duration      time.Duration
	timeout       time.Duration // of one request, with its connection
}

// load runs a loader and prints a probe.Load.
func load(args []string, out io.Writer) error {
	var l loader
	flags := flag.NewFlagSet("labpod load", flag.ContinueOnError)
	flags.IntVar(&l.workers, "concurrency", 1, "requests under way at once")
	flags.IntVar(&l.size, "size", 1000, "bytes of each answer")
	flags.IntVar(&l.perConn, "per-connection", 1, "requests over one connection")
	flags.DurationVar(&l.duration, "duration", time.Second, "time after which no request is sent")
	flags.DurationVar(&l.timeout, "timeout", 10*time.Second, "time after which a request has failed")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 || min(l.workers, l.size, l.perConn) < 1 || min(l.duration, l.timeout) <= 0 {
		return errors.New("use: labpod load [flags] ADDRESS:PORT, with flags above 0")
	}
	l.target = flags.Arg(0)
	result := l.run()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return err
	}
	result.User, result.System = time.Duration(used.Utime.Nano()), time.Duration(used.Stime.Nano())
	return json.NewEncoder(out).Encode(result)
}

func (l *loader) run() probe.Load {
	began := time.Now()
	var all []*probe.Tally
	var ended sync.WaitGroup
	for range l.workers {
		t := probe.NewTally()
		all = append(all, t)
		ended.Go(func() {
			for buf := make([]byte, l.size); time.Since(began) < l.duration; {
				if err := l.connection(t, buf, began.Add(l.duration)); err != nil {
					t.Errors[plain(err)]++
				}
			}
		})
	}
	ended.Wait()
	return probe.Sum(all...)
}

// connection sends the requests of one connection, until one fails or the end has come. The server closes it: the
// client's port is free at once, and not for a minute in TIME_WAIT.
func (l *loader) connection(t *probe.Tally, buf []byte, end time.Time) error {
	began := time.Now()
	conn, err := net.DialTimeout("tcp", l.target, l.timeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	for n := 1; ; n++ {
		if err := conn.SetDeadline(began.Add(l.timeout)); err != nil {
			return err
		}
		last := n == l.perConn || !time.Now().Before(end)
		pod, client, err := l.ask(conn, answers, buf, last)
		if err != nil {
			return err
		}
		now := time.Now()
		t.Answered(now.Sub(began), now.Before(end), pod, client)
		if last {
			_, err := io.Copy(io.Discard, answers)
			return err
		}
		began = now
	}
}

// ask sends one request and reads the answer into buf.
func (l *loader) ask(conn net.Conn, answers *bufio.Reader, buf []byte, last bool) (pod, client string, err error) {
	keep := ""
	if last {
		keep = "Connection: close\r\n"
	}
	if _, err := fmt.Fprintf(conn, "GET %s%d HTTP/1.1\r\nHost: %s\r\n%s\r\n", probe.SizedPath, l.size, l.target, keep); err != nil {
		return "", "", err
	}
	answer, err := http.ReadResponse(answers, nil)
	if err != nil {
		return "", "", err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK || answer.ContentLength != int64(l.size) {
		return "", "", fmt.Errorf("answered with status %s and %d bytes, want %d", answer.Status, answer.ContentLength, l.size)
	}
	if _, err := io.ReadFull(answer.Body, buf); err != nil {
		return "", "", err
	}
	line, _, ok := bytes.Cut(buf, []byte("\n"))
	if !ok {
		return "", "", errors.New("the answer has no first line")
	}
	return probe.ParseAnswer(string(line))
}
