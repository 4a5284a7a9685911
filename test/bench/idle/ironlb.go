package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/bench/services"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/process"
)

// ironlb is IronLB, as the only service proxy or alongside kube-proxy.
type ironlb struct {
	c         *lab.Cluster
	kubeProxy bool
	ccm       *process.Process
	proxies   []*process.Process
}

// ironlbObjects are a pool that all nodes announce on the LAN. The addresses are not of its subnet, so the interface is
// named.
const ironlbObjects = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: bench}
spec: {addresses: [%q]}
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: bench}
spec: {ipAddressPools: [bench], interfaces: [eth0]}
`

func (l *ironlb) install(ctx context.Context) error {
	return l.c.ApplyYAML(ctx, fmt.Sprintf(ironlbObjects, services.LoadBalancers))
}

func (l *ironlb) start(ctx context.Context) (subjects []subject, err error) {
	var flags []string
	if !l.kubeProxy {
		flags = append(flags, "--service-proxy")
	}
	if l.ccm, err = l.c.StartCCM(ctx, flags...); err != nil {
		return nil, err
	}
	subjects = append(subjects, subject{"ironlb-ccm", l.c.Management.Name, l.ccm})
	config := filepath.Join(l.c.Dir, "speaker.yaml")
	// The size of conntrack's table belongs to the initial network namespace.
	text := fmt.Sprintf("dataplane: nftables\nserviceProxy: %t\nstateDir: %s\nconntrack: {maxPerCore: 0, min: 0}\n",
		!l.kubeProxy, filepath.Join(l.c.Dir, "state"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("configure the speakers: %w", err)
	}
	for _, n := range l.c.Nodes {
		if err := n.StartSpeaker(ctx, "--config", config); err != nil {
			return nil, err
		}
		subjects = append(subjects, subject{speakerName, n.Name, n.Speaker()}, subject{"ironlb-bgpd", n.Name, n.BGP()})
	}
	if !l.kubeProxy {
		return subjects, nil
	}
	l.proxies, err = startKubeProxies(ctx, l.c)
	return append(subjects, proxySubjects(l.c, l.proxies)...), err
}

const speakerName = "ironlb-speaker"

func (l *ironlb) ready(ctx context.Context, want int) error {
	if err := assigned(ctx, l.c, want); err != nil {
		return err
	}
	for _, n := range l.c.Nodes {
		if _, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://127.0.0.1:7950/readyz"); err != nil {
			return err
		}
	}
	var vips v1alpha1.VirtualIPList
	if err := l.c.Objects.List(ctx, &vips, &client.ListOptions{}); err != nil {
		return err
	}
	owned := 0
	for _, v := range vips.Items {
		if v.Status.Node != "" {
			owned++
		}
	}
	if owned != want {
		return fmt.Errorf("%d of %d VirtualIPs have an owner", owned, want)
	}
	if l.kubeProxy {
		return kubeProxiesReady(ctx, l.c)
	}
	return nil
}

func (l *ironlb) stop() error {
	var errs []error
	for _, n := range l.c.Nodes {
		errs = append(errs, n.KillSpeaker(), n.KillBGP())
	}
	for _, p := range append(l.proxies, l.ccm) {
		if p != nil {
			errs = append(errs, p.Kill())
		}
	}
	l.proxies, l.ccm = nil, nil
	return errors.Join(errs...)
}
