package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/test/lab/kubelet"
)

// pods creates a sandbox for each Pod object bound to a node, and removes it with the Pod. One goroutine reconciles;
// events only trigger it.
type pods struct {
	c       *Cluster
	trigger chan struct{}

	waiting bool // a Pod is in its grace period; only for run

	mu        sync.Mutex // held over each pass, and by PowerOff and PowerOn of a node
	store     cache.Store
	sandboxes map[types.UID]*sandbox
}

// runPods starts the loop; it ends with the lab.
func (c *Cluster) runPods() {
	p := &pods{c: c, trigger: make(chan struct{}, 1), sandboxes: map[types.UID]*sandbox{}}
	trigger := func(any) { p.Trigger() }
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(c.Kube.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, fields.Everything()),
		ObjectType:    &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: trigger, DeleteFunc: trigger,
			UpdateFunc: func(_, now any) { trigger(now) },
		},
	})
	p.store, c.pods = store, p
	var ended sync.WaitGroup
	ctx, cancel := context.WithCancel(c.life)
	ended.Go(func() { informer.RunWithContext(ctx) })
	ended.Go(func() { p.run(ctx) })
	c.onClose(func() error { cancel(); ended.Wait(); return nil })
}

// Trigger triggers a resync.
func (p *pods) Trigger() {
	select {
	case p.trigger <- struct{}{}:
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
		case <-p.trigger:
		case <-retry.C:
			if !failed && !p.waiting {
				continue
			}
		}
		err := p.sync(ctx)
		if failed = err != nil; failed && ctx.Err() == nil {
			p.c.log.Warn("run the Pods", "error", err)
		}
	}
}

// sync creates missing sandboxes and removes surplus ones.
func (p *pods) sync(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = false
	var errs []error
	wanted := map[types.UID]bool{}
	for _, o := range p.store.List() {
		pod := o.(*corev1.Pod)
		node := p.c.NodeByName(pod.Spec.NodeName)
		if node == nil || node.off {
			wanted[pod.UID] = true // keep as it is
			continue
		}
		if pod.DeletionTimestamp == nil {
			wanted[pod.UID] = true
			errs = append(errs, p.ensure(ctx, pod, node))
			continue
		}
		if pod.Annotations[kubelet.AnnotationGrace] != "" && time.Now().Before(pod.DeletionTimestamp.Time) {
			p.waiting, wanted[pod.UID] = true, true
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

// ensure creates the Pod's sandbox, and writes its address to the Pod once it serves.
func (p *pods) ensure(ctx context.Context, pod *corev1.Pod, node *Node) error {
	b := p.sandboxes[pod.UID]
	if b == nil {
		var err error
		if b, err = p.make(ctx, pod, node); err != nil {
			return fmt.Errorf("run Pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		p.sandboxes[pod.UID] = b
	}
	if pod.Annotations[kubelet.AnnotationIPs] == b.addresses() {
		return nil
	}
	return p.c.annotate(ctx, b.pod, kubelet.AnnotationIPs, b.addresses())
}

// finishPod deletes a Pod object without grace, as the kubelet does at the end.
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
