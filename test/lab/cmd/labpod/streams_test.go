package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// Of three connections one is answered to the end, one is reset after its second answer, and one is silent after its
// first. The reset is printed when it happens, the silence at the end.
func TestStreams(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const answered = 20
	enough := make(chan struct{})
	var reset time.Time
	var serving sync.WaitGroup
	for _, most := range []int{answered, 2, 1} {
		serving.Go(func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			lines := bufio.NewScanner(conn)
			for n := 1; lines.Scan(); n++ {
				switch {
				case n <= most:
					name := map[int]string{answered: "all", 2: "reset", 1: "silent"}[most]
					io.WriteString(conn, probe.Answer(name, "192.0.2.1"))
				case most == 2:
					conn.(*net.TCPConn).SetLinger(0)
					reset = time.Now()
					return
				case most == answered:
					close(enough)
					most = 1 << 30
				}
			}
		})
	}
	var out bytes.Buffer
	c := client{
		network: "streams", target: l.Addr().String(), conns: 3, out: &out,
		every: 10 * time.Millisecond, timeout: 50 * time.Millisecond,
	}
	stop, ended := make(chan os.Signal), make(chan struct{})
	go func() { c.streams(stop); close(ended) }()
	select {
	case <-enough:
	case <-time.After(10 * time.Second):
		t.Fatal("no more answers after 10s")
	}
	stop <- os.Interrupt
	<-ended
	serving.Wait()

	pods, last := map[int]string{}, map[string]probe.Result{}
	for lines := json.NewDecoder(&out); ; {
		var r probe.Result
		if err := lines.Decode(&r); err != nil {
			break
		}
		if r.OK() {
			pods[r.Conn] = r.Pod
		}
		last[pods[r.Conn]] = r
	}
	if r := last["all"]; len(pods) != 3 || !r.OK() || r.N < answered {
		t.Errorf("%d connections, the last result of the first: %+v", len(pods), r)
	}
	if r := last["reset"]; r.N != 3 || !strings.Contains(r.Error, "reset") || r.End().Before(reset) {
		t.Errorf("the last result of one that is reset at %v: %+v", reset, r)
	}
	if r := last["silent"]; r.N != 2 || !strings.Contains(r.Error, "timeout") {
		t.Errorf("the last result of one that is silent: %+v", r)
	}
}
