package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/bench/metallb"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/steady"
)

const (
	podsPerNode = 2
	caller      = "caller" // the Pod with a client, on the last node
)

// podRows is the lab of one peer in the rows "pods".
type podRows struct {
	*bench
	p      peer
	hosts  []*lab.Node // with Pods
	caller *lab.Machine
	on     map[string]string // Pod -> node
	every  time.Duration     // interval of new connections, and of datagrams
}

// runPods measures each peer in its own lab.
func runPods(ctx context.Context, o options) error {
	header()
	for _, family := range o.families {
		for _, name := range o.peers {
			if err := runPodsOf(ctx, o, name, family); err != nil {
				return fmt.Errorf("%s %s: %w", name, family, err)
			}
		}
	}
	return nil
}

func runPodsOf(ctx context.Context, o options, name, family string) (err error) {
	config := lab.Config{
		Nodes: candidates + 1, Kernel: lab.Native, NodeGrace: o.grace, Heartbeat: heartbeat, Progress: os.Stderr,
	}
	virtual := strings.HasPrefix(name, keepalivedName)
	switch {
	case name == metallbName:
		config.Bare, config.KubeProxy, config.Programs = true, true, metallb.Programs()
	case virtual:
		config.Bare, config.Nodes, config.VirtualMachines = true, 2*candidates+1, candidates
	}
	c, err := lab.New(ctx, config)
	if err != nil {
		return err
	}
	b := &bench{o: o, c: c, nodes: c.Nodes[:candidates], runs: c.Nodes}
	r := &podRows{bench: b, p: newPeer(b, name, family), hosts: c.Nodes, on: map[string]string{}, every: askEvery}
	if virtual {
		b.runs, r.hosts, r.every = b.nodes, c.Nodes[candidates:], askEveryVirtual
	}
	defer func() {
		if o.logs != "" {
			err = errors.Join(err, c.SaveLogs(strings.Join([]string{o.logs, name, family}, "-")))
		}
		err = errors.Join(err, c.Close())
	}()
	if err := r.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.w.Close()) }()
	for _, f := range podFaults {
		if !slices.Contains(o.faults, f.name) || !r.p.has(f.name) {
			continue
		}
		var all []podOutcome
		for i := range o.rounds {
			out, err := r.round(ctx, f, i)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", f.name, i+1, err)
			}
			all = append(all, out)
			fmt.Fprintf(os.Stderr, "%s %s %s %d/%d: %s\n", name, family, f.name, i+1, o.rounds, out)
		}
		podResults(os.Stdout, strings.Join([]string{f.name, name, family}, "/"), all)
	}
	return nil
}

// start creates the Pods, and starts the peer.
func (r *podRows) start(ctx context.Context) (err error) {
	for _, n := range r.hosts {
		for i := range podsPerNode {
			pod := fmt.Sprintf("%s-%c", n.Name, 'a'+i)
			labels := map[string]string{"app": appBench}
			if _, err := r.c.AddPod(ctx, lab.PodSpec{Name: pod, Node: n, Labels: labels}); err != nil {
				return err
			}
			r.on[pod] = n.Name
		}
	}
	if _, err := r.c.AddPod(ctx, lab.PodSpec{Name: caller, Node: r.hosts[len(r.hosts)-1]}); err != nil {
		return err
	}
	if r.caller, err = r.c.PodMachine(metav1.NamespaceDefault, caller); err != nil {
		return err
	}
	if err := r.p.start(ctx); err != nil {
		return err
	}
	if r.port, err = r.c.AddPort(ctx, "watch"); err != nil {
		return err
	}
	r.w, err = steady.Watch(ctx, steady.WatchConfig{
		Namespace: r.port.Namespace, Interface: r.port.Interface,
		From4: lab.AskFrom, From6: lab.AskFrom6, Addrs: r.p.addrs(),
	})
	return err
}

// settle waits until every node and every Pod is ready, in the EndpointSlices too, and each address has one owner.
func (r *podRows) settle(ctx context.Context) (map[netip.Addr]string, error) {
	for _, n := range r.c.Nodes {
		if err := n.WaitReady(ctx, settleLimit, corev1.ConditionTrue); err != nil {
			return nil, err
		}
	}
	for pod := range r.on {
		if _, err := r.c.WaitPod(ctx, metav1.NamespaceDefault, pod, true); err != nil {
			return nil, err
		}
	}
	err := r.c.Eventually(ctx, settleLimit, "every Pod is in every EndpointSlice", func(ctx context.Context) error {
		slices, err := r.c.Kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, s := range slices.Items {
			if have := serving(s); have < len(r.on) {
				return fmt.Errorf("%s has %d of %d", s.Labels[discoveryv1.LabelServiceName], have, len(r.on))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r.bench.settle(ctx, r.p)
}

func serving(s discoveryv1.EndpointSlice) (n int) {
	for _, e := range s.Endpoints {
		if e.Conditions.Ready != nil && *e.Conditions.Ready {
			n++
		}
	}
	return n
}

// span returns the observation time of the clients.
func (r *podRows) span(f podFault) time.Duration {
	span := f.span(r.o)
	if k, ok := r.p.(*lvs); ok && f.gone {
		span = max(span, k.checked()+afterwards)
	}
	return span
}

// round injects the fault once.
func (r *podRows) round(ctx context.Context, f podFault, i int) (out podOutcome, err error) {
	owners, err := r.settle(ctx)
	if err != nil {
		return out, err
	}
	addr := r.p.addrs()[i%len(r.p.addrs())]
	owner := r.byMAC(owners[addr])
	node := owner
	if f.other {
		node = r.nodes[(r.index(owner)+1)%candidates]
	}
	clients, err := r.startClients(ctx, addr)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, clients.stop()) }()
	if err := clients.steady(ctx); err != nil {
		return out, err
	}

	began := time.Now()
	if err := f.do(ctx, r.bench, r.p, node); err != nil {
		return out, err
	}
	if err := wait(ctx, time.Until(began.Add(r.span(f)))); err != nil {
		return out, err
	}
	healed := time.Now()
	established, err := clients.release()
	if err != nil {
		return out, err
	}
	moves := r.w.Seen(addr, began.Add(-steadySpan), healed).Moves()
	if f.heal != nil {
		if err := f.heal(ctx, r.bench, r.p, node); err != nil {
			return out, err
		}
	}
	if _, err := r.settle(ctx); err != nil {
		return out, err
	}
	if err := clients.stop(); err != nil {
		return out, err
	}

	gone := func(pod string) bool {
		return f.gone && slices.ContainsFunc(hit(r.p, node), func(n *lab.Node) bool { return n.Name == r.on[pod] })
	}
	out = podOutcome{node: node.Name, addr: addr, moves: moves, requests: map[string]requests{}}
	out.connections = connectionsOf(established, gone, began, healed)
	for name, results := range clients.all {
		out.requests[name] = requestsOf(results, r.every, began, healed)
	}
	outside := clients.all[outsideTCP]
	before := pods(outside, began.Add(-steadySpan), began)
	after := pods(outside, began.Add(2*r.o.timeout), began.Add(f.sure(r.o)))
	for pod := range before {
		if !gone(pod) && !after[pod] {
			out.lost++
		}
	}
	return out, r.c.Err()
}
