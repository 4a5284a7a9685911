// Package install is what the subcommands of ironlb-ccm do to an installation: CRDs applies the
// CustomResourceDefinitions, and Release removes IronLB's fields from all Services and deletes the derived objects.
package install

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Release removes an installation: it removes IronLB's fields from the Services, and deletes the derived objects.
type Release struct {
	Log *slog.Logger
	// LeaseNamespace and LeaseName are those of the leader's Lease. Release is one more candidate: it writes once no
	// ironlb-ccm leads any more.
	LeaseNamespace, LeaseName string
	// DaemonSet is the name of the DaemonSet, in LeaseNamespace, that removes the speakers' state from the nodes.
	// Empty: Release waits for none.
	DaemonSet string
}

// errStillLed is the cause if the Lease was never free.
var errStillLed = errors.New("the Lease stayed with another holder")

// Run returns when the Services are released and the DaemonSet has run on all nodes, or with an error when ctx ends
// first.
func (r Release) Run(ctx context.Context, config *rest.Config) error {
	config = rest.AddUserAgent(config, v1alpha1.ControllerName)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("preparing the client: %w", err)
	}
	kinds, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("preparing the client of the kinds of %s: %w", v1alpha1.GroupVersion, err)
	}
	if err := r.lead(ctx, kube, func(ctx context.Context) error {
		return errors.Join(r.services(ctx, kube), r.derived(ctx, kinds))
	}); err != nil {
		return err
	}
	return r.nodes(ctx, kube)
}

// lead calls f while this process holds the Lease, and then deletes the Lease.
func (r Release) lead(ctx context.Context, kube kubernetes.Interface, f func(context.Context) error) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("reading the name of this host: %w", err)
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: r.LeaseNamespace, Name: r.LeaseName}, Client: kube.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: fmt.Sprintf("%s_release_%d", host, os.Getpid())},
	}
	inner, stop := context.WithCancel(ctx)
	defer stop()
	result := fmt.Errorf("waiting for Lease %s/%s: %w: delete the Deployment of ironlb-ccm first", r.LeaseNamespace, r.LeaseName, errStillLed)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {},
			OnStoppedLeading: func() {},
			OnNewLeader:      func(holder string) { r.Log.Info("Lease observed", "holder", holder) },
		},
	})
	if err != nil {
		return fmt.Errorf("preparing the election: %w", err)
	}
	// The work is here because the elector runs its callback in a goroutine without a way to wait for it.
	elected := make(chan struct{})
	go func() {
		defer close(elected)
		defer stop() // without the Lease it must not write
		elector.Run(inner)
	}()
	if err := until(inner, time.Second/10, elected, elector.IsLeader); err == nil {
		result = f(inner)
	}
	stop()
	<-elected
	if result != nil {
		return result
	}
	if err := kube.CoordinationV1().Leases(r.LeaseNamespace).Delete(ctx, r.LeaseName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting Lease %s/%s: %w", r.LeaseNamespace, r.LeaseName, err)
	}
	return nil
}

// until polls. It returns an error when ctx ends or the channel is closed first.
func until(ctx context.Context, interval time.Duration, ended <-chan struct{}, done func() bool) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return errStillLed
		case <-ticker.C:
		}
	}
	return nil
}

// services removes record, addresses and finalizers from all Services that have them.
func (r Release) services(ctx context.Context, kube kubernetes.Interface) error {
	list, err := kube.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing Services: %w", err)
	}
	var errs []error
	for i := range list.Items {
		svc := &list.Items[i]
		api := kube.CoreV1()
		_, err := servicerecord.RetryOnConflict(ctx, api, svc, func(now *v1.Service) error { return r.Service(ctx, api, now) })
		errs = append(errs, err, r.removeWarnings(ctx, kube, svc))
	}
	return errors.Join(errs...)
}

// Service releases one Service. If it shows another controller's address, that address and the service controller's
// finalizer stay.
func (r Release) Service(ctx context.Context, api corev1.ServicesGetter, svc *v1.Service) error {
	if !servicerecord.Recorded(svc) && !servicerecord.HasFinalizer(svc, servicerecord.Finalizer) {
		return nil
	}
	have := servicerecord.OutcomeIn(svc)
	given := func(a netip.Addr) bool { _, named := servicerecord.RecordedFor(svc, a); return named }
	left, shared := servicerecord.Outcome{}, true
	if len(svc.Status.LoadBalancer.Ingress) > 0 && !slices.ContainsFunc(servicerecord.IngressOf(svc), given) {
		left, shared = servicerecord.Outcome{Others: true}, svc.Spec.LoadBalancerClass != nil
	}
	// The service controller no longer runs, as with OnlyClass.
	const onlyClass = true
	patch, err := left.PatchOf(svc, have, servicerecord.FinalizersOn(svc, onlyClass, shared)...)
	if err != nil {
		return err
	}
	_, err = api.Services(svc.Namespace).Patch(
		ctx, svc.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !servicerecord.Gone(err) {
		return fmt.Errorf("releasing Service %s: %w", servicerecord.KeyOf(svc), err)
	}
	r.Log.Info("Service released", "service", servicerecord.KeyOf(svc), "held", servicerecord.IPs(svc.Status.LoadBalancer.Ingress), "others", left.Others)
	return nil
}

// removeWarnings removes IronLB's warnings from a Service. A foreign Service may have them, too.
func (r Release) removeWarnings(ctx context.Context, kube kubernetes.Interface, svc *v1.Service) error {
	if meta.FindStatusCondition(svc.Status.Conditions, condition.Warnings) == nil {
		return nil
	}
	patch := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"conditions":[{"$patch":"delete","type":%q}]}}`, svc.UID, condition.Warnings)
	_, err := kube.CoreV1().Services(svc.Namespace).Patch(ctx, svc.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if err != nil && !servicerecord.Gone(err) {
		return fmt.Errorf("removing the warnings from Service %s: %w", servicerecord.KeyOf(svc), err)
	}
	return nil
}

// derived deletes the objects that IronLB created. Pools and advertisements belong to the users and stay.
func (r Release) derived(ctx context.Context, kinds dynamic.Interface) error {
	var errs []error
	for _, resource := range []string{"virtualips", "speakerstatuses"} {
		api := kinds.Resource(v1alpha1.GroupVersion.WithResource(resource))
		list, err := api.List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue // without the CRD
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("listing %s: %w", resource, err))
			continue
		}
		for _, o := range list.Items {
			if err := api.Delete(ctx, o.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("deleting %s %s: %w", resource, o.GetName(), err))
			}
		}
		r.Log.Info("objects deleted", "resource", resource, "count", len(list.Items))
	}
	return errors.Join(errs...)
}

// nodes waits until the DaemonSet has run on every node.
func (r Release) nodes(ctx context.Context, kube kubernetes.Interface) error {
	if r.DaemonSet == "" {
		return nil
	}
	var last string
	var wrong error
	err := until(ctx, time.Second, nil, func() bool {
		set, err := kube.AppsV1().DaemonSets(r.LeaseNamespace).Get(ctx, r.DaemonSet, metav1.GetOptions{})
		if err != nil {
			wrong = err
			return apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
		}
		wrong = nil
		seen, s := set.Status.ObservedGeneration >= set.Generation, set.Status
		if now := fmt.Sprintf("%d of %d nodes", s.NumberReady, s.DesiredNumberScheduled); seen && now != last {
			last = now
			r.Log.Info("cleanup of the nodes", "done", now)
		}
		return seen && s.NumberReady == s.DesiredNumberScheduled
	})
	if wrong != nil {
		return fmt.Errorf("reading DaemonSet %s/%s: %w", r.LeaseNamespace, r.DaemonSet, wrong)
	}
	if err != nil {
		return fmt.Errorf("cleaning the nodes with DaemonSet %s/%s: %s are clean: %w: run \"ironlb-speaker cleanup\" on the others, or reboot them",
			r.LeaseNamespace, r.DaemonSet, last, err)
	}
	return nil
}

// CRDs applies CustomResourceDefinitions, and returns when the API server serves them.
func CRDs(ctx context.Context, config *rest.Config, log *slog.Logger, crds map[string][]byte) error {
	client, err := dynamic.NewForConfig(rest.AddUserAgent(config, v1alpha1.ControllerName))
	if err != nil {
		return fmt.Errorf("preparing the client: %w", err)
	}
	api := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	force := true
	for _, name := range slices.Sorted(maps.Keys(crds)) {
		if _, err := api.Patch(ctx, name, types.ApplyPatchType, crds[name], metav1.PatchOptions{FieldManager: v1alpha1.ControllerName, Force: &force}); err != nil {
			return fmt.Errorf("applying CustomResourceDefinition %s: %w", name, err)
		}
		log.Info("CustomResourceDefinition applied", "name", name)
	}
	for name := range crds {
		var wrong error
		err := until(ctx, time.Second/5, nil, func() bool {
			o, err := api.Get(ctx, name, metav1.GetOptions{})
			if wrong = err; err != nil {
				return apierrors.IsForbidden(err)
			}
			conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			return slices.ContainsFunc(conditions, func(c any) bool {
				condition, ok := c.(map[string]any)
				return ok && condition["type"] == "Established" && condition["status"] == "True"
			})
		})
		if err := errors.Join(err, wrong); err != nil {
			return fmt.Errorf("waiting until CustomResourceDefinition %s is served: %w", name, err)
		}
	}
	return nil
}
