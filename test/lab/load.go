package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// Load describes requests of a client that is as fast as the answers.
type Load struct {
	Target        netip.AddrPort // a Pod's PortHTTP, or the port of a Service for it
	Size          int            // bytes of each answer
	Concurrency   int            // connections at once, each with one request under way
	PerConnection int            // requests over one connection
	Duration      time.Duration  // time after which no request is sent
}

// Load runs a client on the machine and returns when its last request has ended. A failed request is no error.
func (m *Machine) Load(ctx context.Context, l Load) (r probe.Load, err error) {
	out, err := m.Exec(ctx, m.c.build.Path("labpod"), "load", "-size", strconv.Itoa(l.Size), "-concurrency", strconv.Itoa(l.Concurrency),
		"-per-connection", strconv.Itoa(l.PerConnection), "-duration", l.Duration.String(), l.Target.String())
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return r, fmt.Errorf("load %s from %s: result %q: %w", l.Target, m.Name, out, err)
	}
	return r, nil
}
