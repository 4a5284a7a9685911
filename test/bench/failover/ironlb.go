package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/ironlb/ironlb/test/lab"
)

// ironlb owns each address by a Service of its own, with the same Pods behind all.
type ironlb struct {
	services
	b       *bench
	profile string
	ending  map[*lab.Node]chan error // speakers that received SIGTERM
}

// objects of a cluster with IronLB: a pool of both families, announced on the candidates.
const objects = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: bench}
spec: {addresses: [%q, %q]}
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: bench}
spec:
  ipAddressPools: [bench]
  nodeSelectors:
  - matchExpressions:
    - {key: kubernetes.io/hostname, operator: In, values: [%s]}
`

// start creates the objects, starts ironlb-ccm if it is the first call, and a speaker on every candidate.
func (l *ironlb) start(ctx context.Context) error {
	l.ending = map[*lab.Node]chan error{}
	if err := l.b.control(ctx); err != nil {
		return err
	}
	for _, n := range l.b.runs {
		if err := l.startOn(ctx, n); err != nil {
			return err
		}
	}
	return l.make(ctx)
}

// control starts ironlb-ccm, once in a lab.
func (b *bench) control(ctx context.Context) error {
	if b.controlled {
		return nil
	}
	b.controlled = true
	// No election: a replica that loses the API server for some seconds would end, and this is the only one.
	flags := []string{"--leader-elect=false"}
	if b.withPods() {
		flags = append(flags, "--service-proxy")
	}
	if _, err := b.c.StartCCM(ctx, flags...); err != nil {
		return err
	}
	yaml := fmt.Sprintf(objects, lab.FreeRange, lab.FreeRange6, strings.Join(b.candidateNames(), ", "))
	if err := b.c.ApplyYAML(ctx, yaml); err != nil || b.withPods() {
		return err
	}
	_, err := b.c.AddPod(ctx, lab.PodSpec{Name: "bench", Node: b.c.Node(candidates), Labels: map[string]string{"app": "bench"}})
	return err
}

func (l *ironlb) startOn(ctx context.Context, n *lab.Node) error {
	if ending := l.ending[n]; ending != nil {
		delete(l.ending, n)
		if err := <-ending; err != nil {
			return err
		}
	}
	config := filepath.Join(l.b.c.Dir, "speaker-"+l.profile+".yaml")
	if err := os.WriteFile(config, []byte("dataplane: nftables\n"+l.settings()), 0o600); err != nil {
		return fmt.Errorf("configure the speaker: %w", err)
	}
	return n.StartSpeaker(ctx, "--config", config)
}

func (l *ironlb) settings() (text string) {
	if l.profile != "standard" { // the default
		text = fmt.Sprintf("failover: {profile: %s}\n", l.profile)
	}
	if l.b.withPods() {
		// The size of conntrack's table belongs to the initial network namespace.
		text += "serviceProxy: true\nconntrack: {maxPerCore: 0, min: 0}\n"
	}
	return text
}

func (l *ironlb) stop(context.Context) error {
	var errs []error
	for _, n := range l.b.runs {
		errs = append(errs, n.StopSpeaker())
	}
	return errors.Join(errs...)
}

func (l *ironlb) signal(n *lab.Node, s syscall.Signal) error {
	switch s {
	case syscall.SIGKILL:
		return n.KillSpeaker()
	case syscall.SIGTERM:
		ended := make(chan error, 1)
		l.ending[n] = ended
		go func() { ended <- n.StopSpeaker() }()
		return nil
	}
	return n.Speaker().Signal(s)
}

func (l *ironlb) ready(ctx context.Context, n *lab.Node) error {
	_, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://127.0.0.1:7950/readyz")
	return err
}

func (l *ironlb) has(string) bool { return true }
