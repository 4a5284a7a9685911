package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/probe"
)

// Names of the clients in the rows.
const (
	outsideTCP = "outside-tcp"
	outsideUDP = "outside-udp"
	podTCP     = "pod-clusterip-tcp"
	podUDP     = "pod-clusterip-udp"
	podLB      = "pod-lb-tcp"
)

var clientNames = []string{outsideTCP, outsideUDP, podTCP, podUDP, podLB}

const (
	askEvery = 5 * time.Millisecond // interval of new connections, and of datagrams
	// askEveryVirtual is the interval through virtual machines, whose CPU may be emulated.
	askEveryVirtual = 20 * time.Millisecond
	lineEvery       = 200 * time.Millisecond // interval on an established connection
	overdue         = 5 * time.Second        // time until an answer on an established connection is overdue
)

// clients send requests to one address.
type clients struct {
	r           *podRows
	asking      map[string]*lab.Prober
	established *lab.Prober
	all         map[string][]probe.Result // of ended clients, in the order sent
}

func (r *podRows) startClients(ctx context.Context, addr netip.Addr) (cs *clients, err error) {
	cs = &clients{r: r, asking: map[string]*lab.Prober{}, all: map[string][]probe.Result{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, cs.stop())
		}
	}()
	target := r.p.target(addr)
	outside := r.c.Client
	cs.established, err = outside.StartProbe(ctx, lab.Probe{
		Network: "streams", Target: target.TCP, Every: lineEvery, Timeout: overdue, Conns: r.o.established,
	})
	if err != nil {
		return cs, err
	}
	type client struct {
		from    *lab.Machine
		network string
		target  netip.AddrPort
	}
	all := map[string]client{
		outsideTCP: {outside, "line", target.TCP},
		outsideUDP: {outside, "udp", target.UDP},
		podLB:      {r.caller, "line", target.TCP},
	}
	if inside := r.p.clusterIP(addr); inside.IsValid() {
		all[podTCP] = client{r.caller, "line", netip.AddrPortFrom(inside, target.TCP.Port())}
		all[podUDP] = client{r.caller, "udp", netip.AddrPortFrom(inside, target.UDP.Port())}
	}
	// The limit is never reached, so no request waits. No port is reused within a round. At this rate the kernel reuses
	// ports after half a minute, and conntrack then sends a SYN to the destination of an unanswered one from the same
	// port.
	most := 4 * int(r.o.timeout/r.every)
	for name, c := range all {
		p, err := c.from.StartProbe(ctx, lab.Probe{
			Network: c.network, Target: c.target, Every: r.every, Timeout: r.o.timeout, Most: most, Walk: true,
		})
		if err != nil {
			return cs, err
		}
		cs.asking[name] = p
	}
	return cs, nil
}

// steady waits until all requests of the last second were answered, by every Pod, and on every established connection.
func (cs *clients) steady(ctx context.Context) error {
	return cs.r.c.Eventually(ctx, settleLimit, "clients without a failure", func(ctx context.Context) error {
		if err := wait(ctx, steadySpan); err != nil {
			return err
		}
		now := time.Now()
		for name, p := range cs.asking {
			s, err := p.Summary()
			if err != nil {
				return err
			}
			answered, by := 0, map[string]bool{}
			for _, r := range s.Results {
				switch {
				case r.End().Before(now.Add(-steadySpan)):
				case !r.OK():
					return fmt.Errorf("%s: request %d: %s", name, r.N, r.Error)
				default:
					answered, by[r.Pod] = answered+1, true
				}
			}
			if answered < int(steadySpan/cs.r.every)/2 || len(by) < len(cs.r.on) {
				return fmt.Errorf("%s: %d answers of %d Pods in the last %s", name, answered, len(by), steadySpan)
			}
		}
		s, err := cs.established.Summary()
		if err != nil {
			return err
		}
		conns := map[int]bool{}
		for _, r := range s.Results {
			if !r.OK() {
				return fmt.Errorf("established connection %d: %s", r.Conn, r.Error)
			}
			conns[r.Conn] = true
		}
		if len(conns) < cs.r.o.established {
			return fmt.Errorf("%d of %d established connections", len(conns), cs.r.o.established)
		}
		return nil
	})
}

// release ends the established connections and returns their results.
func (cs *clients) release() ([]probe.Result, error) {
	p := cs.established
	if p == nil {
		return nil, nil
	}
	cs.established = nil
	return cs.end(p)
}

// stop ends the clients; it may be called twice.
func (cs *clients) stop() error {
	_, err := cs.release()
	errs := []error{err}
	for name, p := range cs.asking {
		cs.all[name], err = cs.end(p)
		errs = append(errs, err)
	}
	clear(cs.asking)
	return errors.Join(errs...)
}

// end ends a client and returns its results. A round has megabytes of these: they are kept only with the logs.
func (cs *clients) end(p *lab.Prober) ([]probe.Result, error) {
	s, err := p.Stop()
	if cs.r.o.logs == "" {
		err = errors.Join(err, p.Drop())
	}
	return s.Results, err
}
