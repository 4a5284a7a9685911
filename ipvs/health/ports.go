package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Service names a Service.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (s Service) String() string { return s.Namespace + "/" + s.Name }

func (s Service) compare(t Service) int {
	return cmp.Or(cmp.Compare(s.Namespace, t.Namespace), cmp.Compare(s.Name, t.Name))
}

// Port is the healthCheckNodePort of a Service.
type Port struct {
	Number uint16
	// Endpoints is the number of distinct IPv4 addresses of the Service's ready endpoints on this node, which requests to
	// IPv4 addresses get; IPv6Endpoints is that of IPv6.
	Endpoints, IPv6Endpoints int
	// Addrs are the listen addresses of the node. An address that the node does not have (yet) works as soon as
	// it is added.
	Addrs []netip.Addr
}

// Ports serves the healthCheckNodePorts. Set and Close are for one goroutine; nothing runs before the first Set.
type Ports struct {
	log     *slog.Logger
	healthy func() bool
	open    map[netip.AddrPort]*listener
	all     *connLimiter // the connections of all ports together
}

// The connection limits of one port, and of all together. Load balancers keep one each, or few. Above a limit the
// oldest connection is closed.
const (
	mostOfPort = 64
	mostOfAll  = 2048
)

// NewPorts returns Ports that serve nothing yet. healthy reports whether the node's data plane works; while it does
// not, every port responds with 503.
func NewPorts(log *slog.Logger, healthy func() bool) *Ports {
	return &Ports{log: log, healthy: healthy, open: map[netip.AddrPort]*listener{}, all: newConnLimiter(mostOfAll)}
}

// ErrPortTaken is wrapped by the error of a Service whose port another Service of the same Set has.
var ErrPortTaken = errors.New("another Service has the health check port")

// Set makes the node serve exactly these Services. It returns an error for each Service that is not served on every
// address; calling Set again retries. A change of the number of endpoints does not affect the socket.
func (p *Ports) Set(want map[Service]Port) map[Service]error {
	wanted, errs := assign(want)
	for at, l := range p.open {
		if _, ok := wanted[at]; !ok || l.dead.Load() {
			p.log.Info("close the health check port", "address", at, "service", l.answer.Load().Service)
			l.close()
			delete(p.open, at)
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(wanted), netip.AddrPort.Compare) {
		a := wanted[at]
		if l, ok := p.open[at]; ok {
			l.answer.Store(&a)
			continue
		}
		l, err := p.listen(at, a)
		if err != nil {
			err = fmt.Errorf("listen for health checks of Service %v on %v (end what else uses the port): %w", a.Service, at, err)
			errs[a.Service] = errors.Join(errs[a.Service], err)
			continue
		}
		p.open[at] = l
		p.log.Info("open the health check port", "address", at, "service", a.Service, "endpoints", a.Endpoints)
	}
	return errs
}

// Close ends all listeners.
func (p *Ports) Close() {
	for at, l := range p.open {
		l.close()
		delete(p.open, at)
	}
}

// assign gives each port to one Service, the first by name. The API server allocates no port twice, but a View may
// contain the successor of a Service before the deletion of its predecessor.
func assign(want map[Service]Port) (map[netip.AddrPort]current, map[Service]error) {
	wanted, errs := map[netip.AddrPort]current{}, map[Service]error{}
	owners := map[uint16]Service{}
	for _, service := range slices.SortedFunc(maps.Keys(want), Service.compare) {
		port := want[service]
		if owner, taken := owners[port.Number]; taken {
			errs[service] = fmt.Errorf("%w: %d belongs to %v", ErrPortTaken, port.Number, owner)
			continue
		}
		owners[port.Number] = service
		for _, addr := range port.Addrs {
			endpoints := port.Endpoints
			if addr.Is6() {
				endpoints = port.IPv6Endpoints
			}
			wanted[netip.AddrPortFrom(addr, port.Number)] = current{Service: service, Endpoints: endpoints}
		}
	}
	return wanted, errs
}

// current is the current response of a listener.
type current struct {
	Service   Service
	Endpoints int
	// gone is set when the Service is no longer served: an open connection may still send a request.
	gone bool
}

// listener is one socket with its server.
type listener struct {
	server *http.Server
	socket net.Listener
	answer atomic.Pointer[current]
	// dead is set when the server ended by itself.
	dead    atomic.Bool
	healthy func() bool
}

func (p *Ports) listen(at netip.AddrPort, a current) (*listener, error) {
	config := net.ListenConfig{Control: freebind}
	socket, err := config.Listen(context.Background(), "tcp", at.String())
	if err != nil {
		return nil, err
	}
	socket = bound(socket, newConnLimiter(mostOfPort), p.all)
	l := &listener{socket: socket, healthy: p.healthy}
	l.answer.Store(&a)
	l.server = NewServer(l)
	go func() {
		_ = l.server.Serve(socket)
		l.dead.Store(true)
	}()
	return l, nil
}

// freebind allows a socket to bind an address that the node lacks: one that is added later, or whose duplicate address
// detection is still running (ip(7), IP_FREEBIND; it works for IPv6, too, net/ipv6/af_inet6.c).
func freebind(_, _ string, raw syscall.RawConn) error {
	var err error
	if failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) }); failed != nil {
		return failed
	}
	return os.NewSyscallError("setsockopt IP_FREEBIND", err)
}

// lastAnswers is the time limit for a request that races with the close of its port.
const lastAnswers = time.Second

// close returns when the port is free again. Requests under way get a 503, then their connections are closed.
func (l *listener) close() {
	gone := *l.answer.Load()
	gone.gone = true
	l.answer.Store(&gone)
	_ = l.socket.Close()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), lastAnswers)
		defer cancel()
		if l.server.Shutdown(ctx) != nil {
			_ = l.server.Close()
		}
	}()
}

// ServeHTTP responds to any method and any path.
func (l *listener) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	a := *l.answer.Load()
	if a.gone {
		a.Endpoints = 0
		w.Header().Set("Connection", "close")
	}
	body := struct {
		Service             Service `json:"service"`
		LocalEndpoints      int     `json:"localEndpoints"`
		ServiceProxyHealthy bool    `json:"serviceProxyHealthy"`
	}{a.Service, a.Endpoints, l.healthy()}
	w.Header().Set(weightHeader, strconv.Itoa(a.Endpoints))
	answer(w, a.Endpoints > 0 && body.ServiceProxyHealthy, body)
}
