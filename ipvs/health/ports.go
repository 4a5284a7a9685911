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
	"slices"
	"strconv"
	"sync/atomic"
	"time"
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
	// Endpoints is the number of distinct addresses of the Service's ready endpoints on this node (ipvs.md 5.1.6).
	Endpoints int
}

// Ports answers on the healthCheckNodePorts. Set and Close are for one goroutine; nothing runs before the first Set.
type Ports struct {
	log     *slog.Logger
	healthy func() bool
	open    map[netip.AddrPort]*listener
}

// NewPorts returns Ports that serve nothing yet. The function healthy tells whether the data plane of the node works; while
// it does not, every port answers 503.
func NewPorts(log *slog.Logger, healthy func() bool) *Ports {
	return &Ports{log: log, healthy: healthy, open: map[netip.AddrPort]*listener{}}
}

// ErrPortTaken is wrapped by the error of a Service whose port another Service of the same Set has.
var ErrPortTaken = errors.New("another Service has the health check port")

// Set makes the node answer for exactly these Services, on the given addresses of the node or, if there are none, on all of
// both families. It returns an error for each Service that is not answered for on every address; calling Set again tries
// again. A change of the number of endpoints does not touch the socket.
func (p *Ports) Set(addrs []netip.Addr, want map[Service]Port) map[Service]error {
	if len(addrs) == 0 {
		addrs = []netip.Addr{netip.IPv6Unspecified()} // of both families: see listen
	}
	wanted, errs := assign(addrs, want)
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
		l, err := listen(at, a, p.healthy)
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

// assign gives each port to one Service, the first by name. The API server lets no two have one port, but a View may hold
// the successor of a Service before the end of its predecessor.
func assign(addrs []netip.Addr, want map[Service]Port) (map[netip.AddrPort]current, map[Service]error) {
	wanted, errs := map[netip.AddrPort]current{}, map[Service]error{}
	owners := map[uint16]Service{}
	for _, service := range slices.SortedFunc(maps.Keys(want), Service.compare) {
		port := want[service]
		if owner, taken := owners[port.Number]; taken {
			errs[service] = fmt.Errorf("%w: %d belongs to %v", ErrPortTaken, port.Number, owner)
			continue
		}
		owners[port.Number] = service
		for _, addr := range addrs {
			wanted[netip.AddrPortFrom(addr, port.Number)] = current{Service: service, Endpoints: port.Endpoints}
		}
	}
	return wanted, errs
}

// current is what a listener answers.
type current struct {
	Service   Service
	Endpoints int
	// gone is set when the Service is no longer answered for: an open connection may still ask (ipvs.md 5.1.8).
	gone bool
}

// listener is one socket with its server.
type listener struct {
	server *http.Server
	socket net.Listener
	answer atomic.Pointer[current]
	// dead is set when the server ended without being asked to.
	dead    atomic.Bool
	healthy func() bool
}

func listen(at netip.AddrPort, a current, healthy func() bool) (*listener, error) {
	// The name without an address makes Go listen for both families, or for the one that the kernel has.
	name := at.String()
	if at.Addr().IsUnspecified() {
		name = fmt.Sprintf(":%d", at.Port())
	}
	socket, err := net.Listen("tcp", name)
	if err != nil {
		return nil, err
	}
	l := &listener{socket: socket, healthy: healthy}
	l.answer.Store(&a)
	l.server = newServer(l)
	go func() {
		_ = l.server.Serve(socket)
		l.dead.Store(true)
	}()
	return l, nil
}

// lastAnswers is how long a request that races with the end of its port may take.
const lastAnswers = time.Second

// close returns when the port is free again. Requests under way are answered 503, then their connections are closed.
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

// ServeHTTP answers any method and any path (ipvs.md 5.1.2 to 5.1.5).
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
