package health_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs/health"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/test/eventually"
)

// node is a namespace whose health check ports are requested from inside.
type node struct {
	*netspace.Space
	ports   *health.Ports
	healthy atomic.Bool
}

func newNode(t *testing.T) *node {
	n := &node{Space: netspace.New(t)}
	n.healthy.Store(true)
	n.ports = health.NewPorts(slog.New(slog.DiscardHandler), n.healthy.Load)
	t.Cleanup(n.ports.Close)
	n.Address(t, "lo", "192.0.2.1/32")
	n.Address(t, "lo", "192.0.2.2/32")
	n.Address(t, "lo", "2001:db8::1/128")
	waitUsable(t, n.Space, "[2001:db8::1]:0")
	return n
}

// waitUsable waits until duplicate address detection of an IPv6 address has finished.
func waitUsable(t *testing.T, s *netspace.Space, addr string) {
	t.Helper()
	eventually.Nil(t, 10*time.Second, addr+" can be used", func(context.Context) error {
		return s.Do(func() error {
			l, err := net.Listen("tcp", addr)
			if err == nil {
				l.Close()
			}
			return err
		})
	})
}

// set serves these Services, at the addresses or, without any, at all addresses of the node.
func (n *node) set(t *testing.T, want map[health.Service]health.Port, addrs ...string) map[health.Service]error {
	t.Helper()
	if len(addrs) == 0 {
		addrs = []string{"192.0.2.1", "192.0.2.2", "2001:db8::1"}
	}
	placed := map[health.Service]health.Port{}
	for service, port := range want {
		for _, addr := range addrs {
			port.Addrs = append(port.Addrs, netip.MustParseAddr(addr))
		}
		placed[service] = port
	}
	var errs map[health.Service]error
	n.Must(t, func() error {
		errs = n.ports.Set(placed)
		return nil
	})
	return errs
}

// ask returns the response with its full body, over a new connection.
func (n *node) ask(method, at, path string) (*http.Response, string, error) {
	conn, err := n.Dial("tcp", "", at)
	if err != nil {
		return nil, "", err
	}
	defer conn.Close()
	return askOn(conn, bufio.NewReader(conn), method, path)
}

func askOn(conn net.Conn, r *bufio.Reader, method, path string) (*http.Response, string, error) {
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: node\r\n\r\n", method, path); err != nil {
		return nil, "", err
	}
	response, err := http.ReadResponse(r, nil)
	if err != nil {
		return nil, "", err
	}
	body, err := io.ReadAll(response.Body)
	return response, string(body), err
}

var (
	web  = health.Service{Namespace: "shop", Name: "web"}
	mail = health.Service{Namespace: "shop", Name: "mail"}
)

type wanted = map[health.Service]health.Port

// wantAnswer checks a response.
func (n *node) wantAnswer(t *testing.T, at string, status int, service health.Service, endpoints int, healthy bool) {
	t.Helper()
	response, body, err := n.ask("GET", at, "/")
	if err != nil {
		t.Errorf("%s: %v", at, err)
		return
	}
	var got any
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Errorf("%s: body %q: %v", at, body, err)
	}
	want := fmt.Sprint(map[string]any{
		"service":        map[string]any{"namespace": service.Namespace, "name": service.Name},
		"localEndpoints": endpoints, "serviceProxyHealthy": healthy,
	})
	if response.StatusCode != status || fmt.Sprint(got) != want {
		t.Errorf("%s: %d %v, want %d %s", at, response.StatusCode, got, status, want)
	}
	for key, want := range map[string]string{
		"Content-Type": "application/json", "X-Content-Type-Options": "nosniff",
		"X-Load-Balancing-Endpoint-Weight": fmt.Sprint(endpoints),
	} {
		if got := response.Header.Values(key); len(got) != 1 || got[0] != want {
			t.Errorf("%s: header %s is %q, want %q", at, key, got, want)
		}
	}
}

func (n *node) wantRefused(t *testing.T, at string) {
	t.Helper()
	if _, body, err := n.ask("GET", at, "/"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%s: %q, %v; want it refused", at, body, err)
	}
}

func TestPorts(t *testing.T) {
	n := newNode(t)
	if errs := n.set(t, wanted{web: {Number: 30100, Endpoints: 2, IPv6Endpoints: 2}, mail: {Number: 30200, Endpoints: 0}}); len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, at := range []string{"192.0.2.1:", "[2001:db8::1]:"} {
		n.wantAnswer(t, at+"30100", 200, web, 2, true)
		n.wantAnswer(t, at+"30200", 503, mail, 0, true)
	}
	for _, method := range []string{"PUT", "POST", "OPTIONS"} {
		response, _, err := n.ask(method, "192.0.2.1:30100", "//any/../path?query")
		if err != nil || response.StatusCode != 200 {
			t.Errorf("%s: %v, %v", method, response, err)
		}
	}

	n.healthy.Store(false)
	n.wantAnswer(t, "192.0.2.1:30100", 503, web, 2, false)
	n.healthy.Store(true)

	n.set(t, wanted{web: {Number: 30100, Endpoints: 0}})
	n.wantAnswer(t, "192.0.2.1:30100", 503, web, 0, true)
	n.wantRefused(t, "192.0.2.1:30200")
	// To Cluster and back to Local: the same number again.
	n.set(t, nil)
	n.wantRefused(t, "192.0.2.1:30100")
	n.set(t, wanted{web: {Number: 30100, Endpoints: 1}})
	n.wantAnswer(t, "192.0.2.1:30100", 200, web, 1, true)
	// Another Service takes the port over; the number of another changes.
	n.set(t, wanted{mail: {Number: 30100, Endpoints: 7, IPv6Endpoints: 7}})
	n.wantAnswer(t, "[2001:db8::1]:30100", 200, mail, 7, true)
}

func TestPortsOnGivenAddresses(t *testing.T) {
	n := newNode(t)
	n.set(t, wanted{web: {Number: 30100, Endpoints: 1}}, "192.0.2.1", "2001:db8::1")
	n.wantAnswer(t, "192.0.2.1:30100", 200, web, 1, true)
	n.wantAnswer(t, "[2001:db8::1]:30100", 503, web, 0, true) // each family has its own endpoints
	n.wantRefused(t, "192.0.2.2:30100")
	n.set(t, wanted{web: {Number: 30100, Endpoints: 1}}, "192.0.2.2")
	n.wantAnswer(t, "192.0.2.2:30100", 200, web, 1, true)
	n.wantRefused(t, "192.0.2.1:30100")
	// An address that the node lacks works once it is added.
	if errs := n.set(t, wanted{web: {Number: 30100, Endpoints: 3, IPv6Endpoints: 3}}, "192.0.2.2", "192.0.2.9", "2001:db8::9"); len(errs) > 0 {
		t.Error(errs)
	}
	n.wantAnswer(t, "192.0.2.2:30100", 200, web, 3, true)
	n.Address(t, "lo", "192.0.2.9/32")
	n.Address(t, "lo", "2001:db8::9/128")
	waitUsable(t, n.Space, "[2001:db8::9]:0")
	n.wantAnswer(t, "192.0.2.9:30100", 200, web, 3, true)
	n.wantAnswer(t, "[2001:db8::9]:30100", 200, web, 3, true)
	// Without addresses nothing listens: in particular not everywhere.
	n.Must(t, func() error {
		if errs := n.ports.Set(wanted{web: {Number: 30100, Endpoints: 3}}); len(errs) > 0 {
			t.Error(errs)
		}
		return nil
	})
	for _, at := range []string{"192.0.2.1:30100", "192.0.2.2:30100", "127.0.0.1:30100", "[2001:db8::1]:30100"} {
		n.wantRefused(t, at)
	}
}

// A port in use by another program is an error only for its Service, and served as soon as it is free.
func TestPortInUse(t *testing.T) {
	n := newNode(t)
	var other net.Listener
	n.Must(t, func() (err error) {
		other, err = net.Listen("tcp", ":30100")
		return err
	})
	want := wanted{web: {Number: 30100, Endpoints: 1}, mail: {Number: 30200, Endpoints: 1}}
	for range 2 {
		errs := n.set(t, want)
		if len(errs) != 1 || !errors.Is(errs[web], syscall.EADDRINUSE) || !strings.Contains(errs[web].Error(), "shop/web") {
			t.Fatalf("errors %v, want EADDRINUSE of %v alone", errs, web)
		}
		n.wantAnswer(t, "192.0.2.1:30200", 200, mail, 1, true)
	}
	other.Close()
	if errs := n.set(t, want); len(errs) > 0 {
		t.Fatal(errs)
	}
	n.wantAnswer(t, "192.0.2.1:30100", 200, web, 1, true)

	errs := n.set(t, wanted{web: {Number: 30100, Endpoints: 1}, mail: {Number: 30100, Endpoints: 2}})
	if len(errs) != 1 || !errors.Is(errs[web], health.ErrPortTaken) {
		t.Errorf("two Services with one port: errors %v, want ErrPortTaken of %v alone", errs, web)
	}
	n.wantAnswer(t, "192.0.2.1:30100", 200, mail, 2, true)
}

// A change of the number of endpoints is visible on an open connection. So is the close of the port, as 503 or as a
// closed connection, never as 200.
func TestPortClosesWhileAsked(t *testing.T) {
	n := newNode(t)
	n.set(t, wanted{web: {Number: 30100, Endpoints: 1}})
	conn, err := n.Dial("tcp", "", "192.0.2.1:30100")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	for _, endpoints := range []int{1, 4} {
		n.set(t, wanted{web: {Number: 30100, Endpoints: endpoints}})
		response, _, err := askOn(conn, r, "GET", "/")
		if err != nil || response.StatusCode != 200 || response.Header.Get("X-Load-Balancing-Endpoint-Weight") != fmt.Sprint(endpoints) {
			t.Fatalf("%v, %v; want 200 with %d endpoints on the open connection", response, err, endpoints)
		}
	}
	// The server has read half of this request when the port is closed.
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	n.set(t, nil)
	if _, err := io.WriteString(conn, "Host: node\r\n\r\n"); err == nil {
		if response, err := http.ReadResponse(r, nil); err == nil && response.StatusCode != 503 {
			t.Errorf("after the port went: %v, want 503 or an end", response)
		}
	}
	if _, err := io.Copy(io.Discard, r); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection stays open: %v", err)
	}
	n.wantRefused(t, "192.0.2.1:30100")
}

// Continuous requests while the port opens and closes get 200 only while it is open.
func TestPortRace(t *testing.T) {
	n := newNode(t)
	var there, asked atomic.Int64
	stop := make(chan struct{})
	var done []chan error
	for range 4 {
		result := make(chan error, 1)
		done = append(done, result)
		go func() {
			for {
				select {
				case <-stop:
					result <- nil
					return
				default:
				}
				before := there.Load()
				response, body, err := n.ask("GET", "192.0.2.1:30100", "/")
				asked.Add(1)
				if err == nil && response.StatusCode == 200 && before%2 == 0 && there.Load() == before {
					result <- fmt.Errorf("200 %s while the port is gone", body)
					return
				}
			}
		}()
	}
	for i := range 200 {
		if i%2 == 0 {
			there.Add(1)
			n.set(t, wanted{web: {Number: 30100, Endpoints: 1}})
			continue
		}
		n.set(t, nil)
		there.Add(1)
	}
	close(stop)
	for _, result := range done {
		if err := <-result; err != nil {
			t.Error(err)
		}
	}
	if asked.Load() == 0 {
		t.Error("no probe arrived")
	}
}
