package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
)

// sandbox is a Pod's namespace and the server in it.
type sandbox struct {
	pod  types.NamespacedName
	node *Node
	ns   string
	addr netip.Addr
	proc *process.Process
}

// port is the Pod's port on the node's bridge.
func (b *sandbox) port() string { return fmt.Sprintf("pod%d", b.addr.As4()[3]) }

func (p *pods) make(ctx context.Context, pod *corev1.Pod, node *Node) (*sandbox, error) {
	b := &sandbox{
		pod:  types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
		node: node,
		ns:   p.c.ns("pod-" + pod.Namespace + "." + pod.Name),
	}
	if node.vm != nil {
		return nil, fmt.Errorf("%s: %w", node.Name, errIsVM)
	}
	var err error
	if b.addr, err = p.freeAddr(node); err != nil {
		return nil, err
	}
	var s script
	s.line("ip netns add %s", b.ns)
	s.batch(node.Namespace,
		"link add "+b.port()+" type veth peer name eth0 address "+mac(b.addr)+" netns "+b.ns,
		// Hairpin as CNI's bridge plugin sets it: with br_netfilter, the packets of a Pod that connects to itself
		// through a Service leave by their ingress port.
		"link set "+b.port()+" master "+podBridge+" up", "link set "+b.port()+" type bridge_slave hairpin on")
	s.batch(b.ns, "link set lo up",
		"addr add "+in(node.PodCIDR, b.addr)+" dev eth0",
		"addr add "+netip.PrefixFrom(six(b.addr), node.PodCIDR6.Bits()).String()+" dev eth0 nodad", "link set eth0 up",
		"route add default via "+node.gateway().String(), "route add default via "+six(node.gateway()).String())
	err = s.run(ctx, p.c.kernel)
	if err == nil {
		err = b.serve(ctx, p.c)
	}
	if err != nil {
		var undo script
		b.unmake(&undo)
		return nil, errors.Join(err, undo.run(context.WithoutCancel(ctx), p.c.kernel))
	}
	return b, nil
}

// unmake adds the removal of the sandbox to a script. A missing part is no error.
func (b *sandbox) unmake(s *script) {
	s.line("ip -n %s link del %s 2>/dev/null || true", b.node.Namespace, b.port())
	s.line("[ ! -e %s/%s ] || ip netns del %s", netnsDir, b.ns, b.ns)
}

func (b *sandbox) machine(c *Cluster) *Machine {
	return &Machine{Name: b.pod.Name, Namespace: b.ns, Addr: b.addr, Addr6: six(b.addr), c: c, host: c.kernel}
}

// addresses returns the addresses for the node's agent.
func (b *sandbox) addresses() string { return b.addr.String() + "," + six(b.addr).String() }

// serve starts the Pod's server and waits until it serves.
func (b *sandbox) serve(ctx context.Context, c *Cluster) error {
	m := b.machine(c)
	serving := newLines()
	p, err := m.Start(ctx, "labpod", host.Cmd{Argv: []string{c.build.Path("labpod"), "serve", b.pod.Name}, Stdout: serving})
	if err != nil {
		return err
	}
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	select {
	case <-serving.first:
		b.proc = p
		c.watch(p)
		return nil
	case <-p.Done():
		return p.Err()
	case <-ctx.Done():
		return errors.Join(ctx.Err(), p.Kill())
	case <-limit.C:
		return errors.Join(errors.New("its server is not up after 30s"), p.Kill())
	}
}

// freeAddr returns the lowest unused address of the node's range.
func (p *pods) freeAddr(node *Node) (netip.Addr, error) {
	used := map[netip.Addr]bool{}
	for _, b := range p.sandboxes {
		used[b.addr] = true
	}
	for n := 2; n < 15; n++ {
		if a := nth(node.PodCIDR, n); !used[a] {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%s has no free address in %s: at most 13 Pods on a node", node.Name, node.PodCIDR)
}

func (p *pods) remove(ctx context.Context, uid types.UID) error {
	b := p.sandboxes[uid]
	if b == nil {
		return nil
	}
	if err := b.proc.Kill(); err != nil {
		return err
	}
	var s script
	b.unmake(&s)
	if err := s.run(ctx, p.c.kernel); err != nil {
		return fmt.Errorf("remove Pod %s: %w", b.pod, err)
	}
	delete(p.sandboxes, uid)
	return nil
}

// killOn kills the servers on a node that loses its power.
func (p *pods) killOn(n *Node) error {
	var errs []error
	for _, b := range p.sandboxes {
		if b.node == n {
			errs = append(errs, b.proc.Kill())
		}
	}
	return errors.Join(errs...)
}

// reset removes the sandboxes of a node that is rebuilt.
func (p *pods) reset(n *Node, s *script) {
	for uid, b := range p.sandboxes {
		if b.node == n {
			b.unmake(s)
			delete(p.sandboxes, uid)
		}
	}
}
