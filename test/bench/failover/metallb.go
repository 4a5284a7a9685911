package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/test/bench/metallb"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
)

// metalLB is MetalLB in L2 mode, with kube-proxy (nftables).
type metalLB struct {
	services
	b       *bench
	m       *metallb.MetalLB
	proxies map[*lab.Node]*process.Process
	ending  map[*lab.Node]bool // speakers that received SIGTERM
}

const (
	metallbName    = "metallb"
	kubeProxyReady = "http://127.0.0.1:10256/healthz"
)

func (m *metalLB) start(ctx context.Context) error {
	m.proxies, m.ending = map[*lab.Node]*process.Process{}, map[*lab.Node]bool{}
	m.m = metallb.New(m.b.c, metallb.Config{
		Nodes: m.b.runs, Announcers: m.b.candidateNames(), Pool: []string{lab.FreeRange.String(), lab.FreeRange6.String()},
	})
	if err := m.m.Install(ctx); err != nil {
		return fmt.Errorf("install MetalLB: %w", err)
	}
	if err := m.m.StartController(ctx); err != nil {
		return err
	}
	for _, n := range m.b.runs {
		if err := m.startOn(ctx, n); err != nil {
			return err
		}
	}
	return m.make(ctx)
}

// startOn starts the programs that are not running on the node.
func (m *metalLB) startOn(ctx context.Context, n *lab.Node) (err error) {
	if m.ending[n] {
		delete(m.ending, n)
		if err := m.m.Speaker(n).Stop(10 * time.Second); err != nil {
			return err
		}
	}
	if p := m.proxies[n]; p == nil || !p.Running() {
		var ranges []string
		for _, r := range lab.PodRanges {
			ranges = append(ranges, r.String())
		}
		argv, err := n.KubeProxyArgv(ctx, "nftables", lab.KubeProxyConfig{"clusterCIDR": strings.Join(ranges, ",")})
		if err != nil {
			return err
		}
		if m.proxies[n], err = n.Start(ctx, "kube-proxy", host.Cmd{Argv: argv}); err != nil {
			return err
		}
	}
	if p := m.m.Speaker(n); p != nil && p.Running() {
		return nil
	}
	return m.m.StartSpeaker(ctx, n)
}

func (m *metalLB) stop(context.Context) error {
	var errs []error
	for _, n := range m.b.runs {
		for _, p := range []*process.Process{m.m.Speaker(n), m.proxies[n]} {
			if p != nil {
				errs = append(errs, p.Kill())
			}
		}
	}
	return errors.Join(errs...)
}

func (m *metalLB) signal(n *lab.Node, s syscall.Signal) error {
	switch s {
	case syscall.SIGKILL:
		return m.m.Speaker(n).Kill()
	case syscall.SIGTERM:
		m.ending[n] = true
	}
	return m.m.Speaker(n).Signal(s)
}

// ready: both programs are.
func (m *metalLB) ready(ctx context.Context, n *lab.Node) error {
	if _, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", kubeProxyReady); err != nil {
		return err
	}
	return m.m.Ready(ctx, n)
}

func (m *metalLB) has(string) bool { return true }
