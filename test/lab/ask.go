package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/probe"
	"github.com/ironlb/ironlb/test/lab/process"
)

// Lost is the Timeout of requests that must all succeed: after so long, and five SYNs, a request is lost, not late on a
// busy machine.
const Lost = 30 * time.Second

// Probe describes a client's requests. Target is a Pod's port or that of a Service for it; see package probe for the
// ports.
type Probe struct {
	// Network is "tcp" (HTTP, a connection for each request), "udp", "line" (a line over a TCP connection of its own),
	// "stream" (lines over one TCP connection), "streams" (over Conns of them, each until it breaks) or "download" (blocks
	// of probe.BlockSize over one TCP connection).
	Network string
	Target  netip.AddrPort
	Every   time.Duration // 0: 100ms
	Timeout time.Duration // of one request; 0: 1s
	Count   int           // requests; 0: until Stop
	Serial  bool          // a request waits for the previous answer; always for a stream or a download
	Port    uint16        // the client's own port, with Serial; 0: any
	Walk    bool          // each request uses the next port: none is reused for minutes
	Most    int           // concurrent requests; 0: 10
	Conns   int           // of "streams"
}

func (p Probe) argv(program string) []string {
	argv := []string{program, "probe", "-count", strconv.Itoa(p.Count)}
	if p.Every > 0 {
		argv = append(argv, "-every", p.Every.String())
	}
	if p.Timeout > 0 {
		argv = append(argv, "-timeout", p.Timeout.String())
	}
	if p.Port != 0 {
		argv = append(argv, "-port", strconv.Itoa(int(p.Port)))
	}
	if p.Serial {
		argv = append(argv, "-serial")
	}
	if p.Walk {
		argv = append(argv, "-walk")
	}
	if p.Most > 0 {
		argv = append(argv, "-most", strconv.Itoa(p.Most))
	}
	if p.Conns > 0 {
		argv = append(argv, "-conns", strconv.Itoa(p.Conns))
	}
	return append(argv, p.Network, p.Target.String())
}

// Prober is a client that sends requests continuously.
type Prober struct {
	p    *process.Process
	out  *lines
	c    *Cluster
	what string
}

// StartProbe starts a client on the machine.
func (m *Machine) StartProbe(ctx context.Context, probe Probe) (*Prober, error) {
	out := newLines()
	p, err := m.Start(ctx, "probe", host.Cmd{Argv: probe.argv(m.c.build.Path("labpod")), Stdout: out})
	if err != nil {
		return nil, err
	}
	return &Prober{p: p, out: out, c: m.c, what: fmt.Sprintf("%s to %s from %s", probe.Network, probe.Target, m.Name)}, nil
}

// Summary of the results so far.
func (p *Prober) Summary() (probe.Summary, error) {
	var results []probe.Result
	for _, line := range p.out.All() {
		var r probe.Result
		if err := json.Unmarshal(line, &r); err != nil {
			return probe.Summary{}, fmt.Errorf("probe %s: result %q: %w", p.what, line, err)
		}
		results = append(results, r)
	}
	return probe.Summarize(results), nil
}

// Wait waits until the summary satisfies check, and returns it.
func (p *Prober) Wait(ctx context.Context, limit time.Duration, what string, check func(probe.Summary) bool) (s probe.Summary, err error) {
	err = p.c.Eventually(ctx, limit, what+" ("+p.what+")", func(context.Context) (err error) {
		if s, err = p.Summary(); err != nil {
			return err
		}
		if !check(s) {
			return fmt.Errorf("so far: %s", s)
		}
		return nil
	})
	return s, err
}

// WaitAnswers waits until n more requests than now were answered.
func (p *Prober) WaitAnswers(ctx context.Context, limit time.Duration, n int) error {
	before, err := p.Summary()
	if err != nil {
		return err
	}
	want := before.Sent - before.Failed + n
	_, err = p.Wait(ctx, limit, fmt.Sprintf("%d more answers", n), func(s probe.Summary) bool { return s.Sent-s.Failed >= want })
	return err
}

// Broken returns nil while the prober runs, and otherwise why it ended early: a stream's prober ends when its
// connection breaks.
func (p *Prober) Broken() error {
	if p.p.Running() {
		return nil
	}
	return p.p.Wait()
}

// Stop ends the client after the outstanding answers, and returns the summary of all. A client that sent nothing is an
// error.
func (p *Prober) Stop() (probe.Summary, error) {
	broken := p.Broken()
	if broken == nil {
		broken = p.p.Stop(stopGrace)
	}
	s, err := p.Summary()
	if err == nil {
		err = broken
	}
	if asked := s.Asked(); err == nil && asked != nil {
		err = fmt.Errorf("%s: %w", p.what, asked)
	}
	return s, err
}

// Drop removes the results of an ended client, and their file.
func (p *Prober) Drop() error {
	p.out.Drop()
	return os.Remove(p.p.Log)
}

// Ask sends requests and returns when all were answered or have failed. A request without an answer is no error; a
// client that sent none is.
func (m *Machine) Ask(ctx context.Context, p Probe) (probe.Summary, error) {
	if p.Count == 0 {
		return probe.Summary{}, fmt.Errorf("ask %s from %s: Count is 0", p.Target, m.Name)
	}
	prober, err := m.StartProbe(ctx, p)
	if err != nil {
		return probe.Summary{}, err
	}
	select {
	case <-prober.p.Done():
	case <-ctx.Done():
		prober.p.Kill()
		return probe.Summary{}, ctx.Err()
	}
	s, err := prober.Summary()
	if asked := s.Asked(); err == nil && asked != nil {
		err = errors.Join(fmt.Errorf("ask %s from %s: %w", p.Target, m.Name, asked), prober.p.Wait())
	}
	return s, err
}
