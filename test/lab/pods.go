package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/kubelet"
	"github.com/ironlb/ironlb/test/lab/process"
)

// pods makes a sandbox for each Pod object that is bound to a node, and
// removes it with the Pod. One goroutine works; events only kick it.
type pods struct {
	c    *Cluster
	kick chan struct{}

	mu        sync.Mutex // held over each pass, and by what turns nodes off and on
	store     cache.Store
	sandboxes map[types.UID]*sandbox
}

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

// runPods starts the loop; it ends with the lab.
func (c *Cluster) runPods() {
	p := &pods{c: c, kick: make(chan struct{}, 1), sandboxes: map[types.UID]*sandbox{}}
	kick := func(any) { p.Kick() }
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(c.Kube.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, fields.Everything()),
		ObjectType:    &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: kick, DeleteFunc: kick,
			UpdateFunc: func(_, now any) { kick(now) },
		},
	})
	p.store, c.pods = store, p
	var ended sync.WaitGroup
	ctx, cancel := context.WithCancel(c.life)
	ended.Go(func() { informer.RunWithContext(ctx) })
	ended.Go(func() { p.run(ctx) })
	c.onClose(func() error { cancel(); ended.Wait(); return nil })
}

// Kick has the loop look again.
func (p *pods) Kick() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

func (p *pods) run(ctx context.Context) {
	retry := time.NewTicker(time.Second)
	defer retry.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.kick:
		case <-retry.C:
			if !failed {
				continue
			}
		}
		err := p.sync(ctx)
		if failed = err != nil; failed && ctx.Err() == nil {
			p.c.log.Warn("run the Pods", "error", err)
		}
	}
}

// sync makes what is missing and removes what is too much.
func (p *pods) sync(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	wanted := map[types.UID]bool{}
	for _, o := range p.store.List() {
		pod := o.(*corev1.Pod)
		node := p.c.NodeByName(pod.Spec.NodeName)
		if node == nil || node.off {
			wanted[pod.UID] = true // as it is
			continue
		}
		if pod.DeletionTimestamp == nil {
			wanted[pod.UID] = true
			errs = append(errs, p.ensure(ctx, pod, node))
			continue
		}
		errs = append(errs, p.remove(ctx, pod.UID), p.c.finishPod(ctx, pod))
	}
	for uid := range p.sandboxes {
		if !wanted[uid] {
			errs = append(errs, p.remove(ctx, uid))
		}
	}
	return errors.Join(errs...)
}

// ensure makes the Pod's sandbox, and writes its address on the Pod once it
// serves.
func (p *pods) ensure(ctx context.Context, pod *corev1.Pod, node *Node) error {
	b := p.sandboxes[pod.UID]
	if b == nil {
		var err error
		if b, err = p.make(ctx, pod, node); err != nil {
			return fmt.Errorf("run Pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		p.sandboxes[pod.UID] = b
	}
	if pod.Annotations[kubelet.AnnotationIP] == b.addr.String() {
		return nil
	}
	return p.c.annotate(ctx, b.pod, kubelet.AnnotationIP, b.addr.String())
}

func (p *pods) make(ctx context.Context, pod *corev1.Pod, node *Node) (*sandbox, error) {
	b := &sandbox{
		pod:  types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
		node: node,
		ns:   p.c.ns("pod-" + pod.Namespace + "." + pod.Name),
	}
	var err error
	if b.addr, err = p.freeAddr(node); err != nil {
		return nil, err
	}
	var s script
	s.line("ip netns add %s", b.ns)
	s.batch(node.Namespace,
		"link add "+b.port()+" type veth peer name eth0 address "+mac(b.addr)+" netns "+b.ns,
		"link set "+b.port()+" master "+podBridge+" up")
	s.batch(b.ns, "link set lo up",
		"addr add "+in(node.PodCIDR, b.addr)+" dev eth0", "link set eth0 up",
		"route add default via "+node.gateway().String())
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

// unmake adds the removal of the sandbox to a script. What is missing is no
// error.
func (b *sandbox) unmake(s *script) {
	s.line("ip -n %s link del %s 2>/dev/null || true", b.node.Namespace, b.port())
	s.line("[ ! -e %s/%s ] || ip netns del %s", netnsDir, b.ns, b.ns)
}

// serve starts the Pod's server and waits until it serves.
func (b *sandbox) serve(ctx context.Context, c *Cluster) error {
	m := &Machine{Name: b.pod.Name, Namespace: b.ns, Addr: b.addr, c: c, host: c.kernel}
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

// freeAddr is the lowest address of the node's range that no sandbox has.
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

// forget removes the sandboxes of a node that is made anew.
func (p *pods) forget(n *Node, s *script) {
	for uid, b := range p.sandboxes {
		if b.node == n {
			b.unmake(s)
			delete(p.sandboxes, uid)
		}
	}
}

// finishPod removes a Pod object for good, as the kubelet does at the end.
func (c *Cluster) finishPod(ctx context.Context, pod *corev1.Pod) error {
	err := c.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func (c *Cluster) annotate(ctx context.Context, pod types.NamespacedName, key, value string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: value}}})
	if err != nil {
		return err
	}
	_, err = c.Kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
