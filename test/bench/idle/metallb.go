package main

import (
	"context"
	"errors"

	"github.com/ironlb/ironlb/test/bench/metallb"
	"github.com/ironlb/ironlb/test/bench/services"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/process"
)

// metalLB is MetalLB with kube-proxy.
type metalLB struct {
	c       *lab.Cluster
	m       *metallb.MetalLB
	proxies []*process.Process
}

var metallbPrograms = metallb.Programs()

func newMetalLB(c *lab.Cluster) peer {
	config := metallb.Config{Nodes: c.Nodes, Pool: []string{services.LoadBalancers.String()}}
	for _, n := range c.Nodes {
		config.Announcers = append(config.Announcers, n.Name)
	}
	return &metalLB{c: c, m: metallb.New(c, config)}
}

func (m *metalLB) install(ctx context.Context) error { return m.m.Install(ctx) }

func (m *metalLB) start(ctx context.Context) (subjects []subject, err error) {
	if err := m.m.StartController(ctx); err != nil {
		return nil, err
	}
	subjects = append(subjects, subject{metallb.Controller, m.c.Management.Name, m.m.Controller()})
	for _, n := range m.c.Nodes {
		if err := m.m.StartSpeaker(ctx, n); err != nil {
			return nil, err
		}
		subjects = append(subjects, subject{metallb.Speaker, n.Name, m.m.Speaker(n)})
	}
	m.proxies, err = startKubeProxies(ctx, m.c)
	return append(subjects, proxySubjects(m.c, m.proxies)...), err
}

func (m *metalLB) ready(ctx context.Context, want int) error {
	if err := assigned(ctx, m.c, want); err != nil {
		return err
	}
	for _, n := range m.c.Nodes {
		if err := m.m.Ready(ctx, n); err != nil {
			return err
		}
	}
	return kubeProxiesReady(ctx, m.c)
}

func (m *metalLB) stop() error {
	errs := []error{m.m.Kill()}
	for _, p := range m.proxies {
		errs = append(errs, p.Kill())
	}
	m.proxies = nil
	return errors.Join(errs...)
}
