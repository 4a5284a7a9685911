package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/lab"
)

const (
	hosts    = 3
	pods     = 6
	patience = time.Minute
)

// ports of the Services on their common address.
var ports = map[string]uint16{pod: 80, direct: 81}

const objects = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: lan}
spec: {addresses: [%q]}
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: lan}
spec: {ipAddressPools: [lan]}
`

const serviceObject = `
apiVersion: v1
kind: Service
metadata: {name: %s, annotations: {ironlb.io/forwarding: %q, ironlb.io/sharing-key: bench}}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{name: http, port: %d, targetPort: http}]
`

// start starts everything in the lab, and waits until each Service is served.
func (b *bench) start(ctx context.Context) error {
	c := b.cluster
	config := filepath.Join(c.Dir, "speaker.yaml")
	if err := os.WriteFile(config, []byte("dataplane: nftables\n"), 0o600); err != nil {
		return err
	}
	if _, err := c.StartCCM(ctx, "--leader-elect=false"); err != nil {
		return err
	}
	if err := c.StartSpeakers(ctx, "--config", config); err != nil {
		return err
	}
	for i := range pods {
		spec := lab.PodSpec{Name: podName(i), Node: c.Node(i % hosts), Labels: map[string]string{"app": "web"}}
		if _, err := c.AddPod(ctx, spec); err != nil {
			return err
		}
	}
	if err := b.findProcesses(ctx); err != nil {
		return err
	}
	if err := c.ApplyYAML(ctx, fmt.Sprintf(objects, lab.FreeRange)); err != nil {
		return err
	}
	for _, mode := range b.modes {
		if err := b.serve(ctx, mode); err != nil {
			return err
		}
	}
	return nil
}

// findProcesses finds the Pods' servers and the threads for softirqs.
func (b *bench) findProcesses(ctx context.Context) (err error) {
	if b.pids, err = softirqThreads(); err != nil {
		return err
	}
	for i := range pods {
		m, err := b.cluster.PodMachine(metav1.NamespaceDefault, podName(i))
		if err != nil {
			return err
		}
		servers, err := processes(ctx, m)
		if err != nil {
			return err
		}
		b.pids = append(b.pids, servers...)
	}
	return nil
}

func podName(i int) string { return fmt.Sprintf("p%d", i+1) }

// serve creates the Service of a way of forwarding, and waits until all Pods answer, and see the address that they must
// see.
func (b *bench) serve(ctx context.Context, mode string) error {
	c := b.cluster
	if err := c.ApplyYAML(ctx, fmt.Sprintf(serviceObject, mode, mode, ports[mode])); err != nil {
		return err
	}
	if err := c.Eventually(ctx, patience, "Service "+mode+" has the address", func(ctx context.Context) error {
		svc, err := c.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, mode, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(svc.Status.LoadBalancer.Ingress) != 1 {
			return fmt.Errorf("it has %v", svc.Status.LoadBalancer.Ingress)
		}
		addr, err := netip.ParseAddr(svc.Status.LoadBalancer.Ingress[0].IP)
		if err == nil && b.addr.IsValid() && addr != b.addr {
			err = fmt.Errorf("it has %v, the other one %v", addr, b.addr)
		}
		b.addr = addr
		return err
	}); err != nil {
		return err
	}
	return c.Eventually(ctx, patience, "Service "+mode+" is served", func(ctx context.Context) error {
		l, err := b.load(ctx, mode, group{size: b.sizes[0], connections: "new"}, 500*time.Millisecond)
		if err != nil {
			return err
		}
		if len(l.Pods) != pods || l.Failed > 0 {
			return fmt.Errorf("answers of Pods %v, failures %v", l.Pods, l.Errors)
		}
		return b.forwarded(mode, l)
	})
}
