package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/diagnose"
	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/metallb"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// fieldOwner owns the fields that the program applies.
const fieldOwner = client.FieldOwner("kubectl-ironlb")

// migration is the content of a record.
type migration struct {
	Services []metallb.Service `json:"services"` // as they were before
	Objects  []appliedObject   `json:"objects"`  // that were applied, in order
}

type appliedObject struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

func fromUnstructured(o *unstructured.Unstructured, into any) error {
	return runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into)
}

func (i *importer) say(format string, args ...any) {
	fmt.Fprintln(i.progress, printable(fmt.Sprintf(format, args...)))
}

// applyAll moves the Services to IronLB. No address can be handed out twice, or moved, at any point where it may stop:
//   - With MetalLB's controller stopped nobody else allocates. ironlb-ccm withholds what the status of any Service shows,
//     and adopts the Services on a new pool before it assigns from it (Ledger.SetPools).
//   - Annotations precede the pools. The controller may still see them later: two Services on one address without the
//     key to share it would move apart. So the pools assign nothing until all Services are adopted as they are.
//   - MetalLB's speakers announce until then, since every node of IronLB forwards adopted addresses, announced or not.
//     Peers and advertisements wait for the end of these speakers: an address for which another host answers counts as
//     taken, and a router has one session with a node.
func (i *importer) applyAll(ctx context.Context, r *metallb.Result) error {
	if n := r.Refused(); n > 0 && !i.force {
		i.say("%d rows are refused, so nothing is applied: change what they name, or write --force to apply the rest", n)
		return errProblems
	}
	for _, o := range r.Objects {
		if err := i.applyObject(ctx, o, client.DryRunAll); err != nil {
			return err
		}
	}
	controller, err := i.running(ctx, "controller")
	if err != nil {
		return err
	}
	if len(controller.found) > 0 {
		return fmt.Errorf("MetalLB's controller runs (%s): it would assign addresses that IronLB assigns, too. Stop it, and repeat the command: "+
			"kubectl -n %s scale deployment %s --replicas=0", strings.Join(controller.found, ", "), i.namespace, controller.name)
	}
	m, err := i.begin(r)
	if err != nil {
		return err
	}
	for _, a := range r.Annotations {
		svc := &corev1.Service{}
		svc.Namespace, svc.Name = a.Namespace, a.Name
		for key, value := range a.Add {
			if err := i.annotate(ctx, svc, key, value); err != nil {
				return fmt.Errorf("annotating Service %s: %w", a.NamespacedName, err)
			}
		}
	}
	pooled, announced := split(r.Objects)
	for _, o := range pooled {
		held := o
		if o.GetKind() == "IPAddressPool" {
			held = o.DeepCopy()
			if err := unstructured.SetNestedField(held.Object, false, "spec", "autoAssign"); err != nil {
				return fmt.Errorf("IPAddressPool %s: %w", o.GetName(), err)
			}
		}
		if err := i.applyObject(ctx, held); err != nil {
			return err
		}
	}
	if err := i.awaitAdoption(ctx, m, r); err != nil {
		return err
	}
	if err := i.applyObjects(ctx, pooled); err != nil {
		return err
	}
	speakers, err := i.running(ctx, "speaker", "frr-k8s")
	if err == nil && len(speakers.found) > 0 {
		i.say("IronLB forwards all addresses. Stop MetalLB's speakers now, and IronLB announces: kubectl -n %s delete daemonset %s", i.namespace, speakers.name)
		err = every(ctx, pollEvery, i.wait, func(ctx context.Context) (bool, error) {
			left, err := i.running(ctx, "speaker", "frr-k8s")
			if err == nil {
				speakers = left
			}
			return err == nil && len(left.found) == 0, err
		})
	}
	if err != nil {
		return fmt.Errorf("waiting for the end of MetalLB's speakers (%s): %w: stop them, and repeat the command", strings.Join(speakers.found, ", "), err)
	}
	if err := i.applyObjects(ctx, announced); err != nil {
		return err
	}
	return i.compare(ctx, m)
}

// split returns the objects without an effect on the network, and those that announce addresses.
func split(objects []*unstructured.Unstructured) (pooled, announced []*unstructured.Unstructured) {
	for _, o := range objects {
		if k := o.GetKind(); k == "BGPPeer" || strings.HasSuffix(k, "Advertisement") {
			announced = append(announced, o)
		} else {
			pooled = append(pooled, o)
		}
	}
	return pooled, announced
}

func (i *importer) applyObjects(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		if err := i.applyObject(ctx, o); err != nil {
			return err
		}
		i.say("%s/%s applied", strings.ToLower(o.GetKind()), o.GetName())
	}
	return nil
}

func (i *importer) applyObject(ctx context.Context, o *unstructured.Unstructured, more ...client.ApplyOption) error {
	err := i.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o.DeepCopy()), append(more, fieldOwner)...)
	switch {
	case meta.IsNoMatchError(err) || apierrors.IsNotFound(err) && o.GetNamespace() == "":
		return fmt.Errorf("IronLB is not installed: the cluster has no kind %s of %s", o.GetKind(), v1alpha1.GroupVersion)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("applying %s %s: %w: install IronLB with the chart value bgpd.enabled=true, or create the namespace", o.GetKind(), o.GetName(), err)
	case apierrors.IsConflict(err):
		return fmt.Errorf("applying %s %s: another one of this name exists: %w: delete it, or rename that of MetalLB", o.GetKind(), o.GetName(), err)
	case err != nil:
		return fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// component is what runs of a component of MetalLB.
type component struct {
	name  string   // of its Deployment, or its DaemonSets
	found []string // Pods, and a Deployment that would create some
}

// running finds components of MetalLB by the labels of its manifests and of its chart.
func (i *importer) running(ctx context.Context, names ...string) (component, error) {
	is := func(o client.Object) bool {
		labels := o.GetLabels()
		return slices.Contains(names, labels["component"]) || slices.Contains(names, labels["app.kubernetes.io/component"])
	}
	out, workloads := component{}, []string{}
	var pods corev1.PodList
	var deployments appsv1.DeploymentList
	var daemons appsv1.DaemonSetList
	for _, l := range []client.ObjectList{&pods, &deployments, &daemons} {
		if err := i.client.List(ctx, l, client.InNamespace(i.namespace)); err != nil {
			return out, fmt.Errorf("listing what runs of MetalLB in namespace %s: %w", i.namespace, err)
		}
	}
	for n := range daemons.Items {
		if is(&daemons.Items[n]) {
			workloads = append(workloads, daemons.Items[n].Name)
		}
	}
	for n := range deployments.Items {
		if d := &deployments.Items[n]; is(d) {
			workloads = append(workloads, d.Name)
			if ptr.Deref(d.Spec.Replicas, 1) > 0 {
				out.found = append(out.found, "Deployment "+d.Name)
			}
		}
	}
	for n := range pods.Items {
		if p := &pods.Items[n]; is(p) && p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded {
			out.found = append(out.found, "Pod "+p.Name)
		}
	}
	out.name = cmp.Or(strings.Join(workloads, " "), names[0])
	return out, nil
}

// begin returns the record. It is written only once: the addresses are those from before the first attempt.
func (i *importer) begin(r *metallb.Result) (*migration, error) {
	m, err := i.readRecord()
	if err == nil {
		i.say("%s exists: the addresses in it count", i.record)
		return m, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	m = &migration{Services: r.Services}
	for _, o := range r.Objects {
		m.Objects = append(m.Objects, appliedObject{o.GetKind(), o.GetNamespace(), o.GetName()})
	}
	data, err := yaml.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encoding the record: %w", err)
	}
	if err := os.WriteFile(i.record, data, 0o600); err != nil {
		return nil, fmt.Errorf("writing the record: %w", err)
	}
	i.say("the addresses of %d Services are in %s", len(m.Services), i.record)
	return m, nil
}

func (i *importer) readRecord() (*migration, error) {
	data, err := os.ReadFile(i.record)
	if err != nil {
		return nil, fmt.Errorf("reading the record: %w", err)
	}
	m := &migration{}
	if err := yaml.UnmarshalStrict(data, m); err != nil {
		return nil, fmt.Errorf("%s is not a record of import metallb --apply: %w", i.record, err)
	}
	return m, nil
}

// current returns the Services of the record, nil for those that do not exist any more.
func (i *importer) current(ctx context.Context, m *migration) ([]*corev1.Service, error) {
	var list corev1.ServiceList
	if err := i.list(ctx, &list); err != nil {
		return nil, err
	}
	by := map[types.NamespacedName]*corev1.Service{}
	for n := range list.Items {
		by[client.ObjectKeyFromObject(&list.Items[n])] = &list.Items[n]
	}
	out := make([]*corev1.Service, len(m.Services))
	for n, s := range m.Services {
		out[n] = by[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}]
	}
	return out, nil
}

// awaitAdoption waits until IronLB holds the addresses of all Services of the record that a pool has.
func (i *importer) awaitAdoption(ctx context.Context, m *migration, r *metallb.Result) error {
	var waiting []string
	last := ""
	i.hint(ctx, m)
	err := every(ctx, pollEvery, i.wait, func(ctx context.Context) (bool, error) {
		services, err := i.current(ctx, m)
		if err != nil {
			return false, err
		}
		waiting = nil
		for _, svc := range services {
			if why := unadopted(svc, r); why != "" {
				waiting = append(waiting, fmt.Sprintf("%s/%s (%s)", svc.Namespace, svc.Name, why))
			}
		}
		if now := fmt.Sprintf("%d of %d Services are adopted", len(services)-len(waiting), len(services)); now != last {
			i.say("%s", now)
			last = now
		}
		return len(waiting) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until ironlb-ccm adopts all Services: %w: MetalLB's speakers announce them still. Not adopted: %s",
			err, strings.Join(waiting[:min(len(waiting), manyObjects)], ", "))
	}
	return nil
}

// hint names the setting of ironlb-ccm that Services of the record need.
func (i *importer) hint(ctx context.Context, m *migration) {
	c := diagnose.Cluster{}
	i.controller(ctx, &c)
	needs := map[string]bool{}
	for _, s := range m.Services {
		switch {
		case s.Class == "" && c.Settings.OnlyClass:
			needs["onlyClass=false"] = true
		case s.Class != "" && s.Class != c.Settings.Class:
			needs["loadBalancerClass="+s.Class] = true
		}
	}
	for set := range needs {
		i.say("let IronLB serve these Services now: helm upgrade ironlb CHART -n %s --reset-then-reuse-values --set %s", i.system, set)
	}
}

// unadopted returns why IronLB does not hold the addresses of a Service yet, as its annotations require. Empty: it does,
// or it is not to.
func unadopted(svc *corev1.Service, r *metallb.Result) string {
	if svc == nil {
		return ""
	}
	shown := servicerecord.IngressOf(svc)
	if !slices.ContainsFunc(shown, func(a netip.Addr) bool { return metallb.PoolOf(r.Objects, a) != nil }) {
		return ""
	}
	c := meta.FindStatusCondition(svc.Status.Conditions, v1alpha1.ConditionAllocated)
	for _, a := range shown {
		if _, ok := servicerecord.RecordedFor(svc, a); !ok || c == nil {
			return "no record"
		}
	}
	annotated := slices.ContainsFunc(r.Annotations, func(a metallb.Annotations) bool { return a.NamespacedName == client.ObjectKeyFromObject(svc) })
	if annotated && c.Reason == string(pools.SharingRefused) {
		return c.Reason + ": " + c.Message
	}
	return ""
}

// compare compares the addresses of the Services with the record.
func (i *importer) compare(ctx context.Context, m *migration) error {
	services, err := i.current(ctx, m)
	if err != nil {
		return err
	}
	different := 0
	for n, before := range m.Services {
		now := "the Service does not exist any more"
		if svc := services[n]; svc != nil {
			var addresses []string
			for _, a := range servicerecord.IngressOf(svc) {
				addresses = append(addresses, a.String())
			}
			slices.Sort(addresses)
			if slices.Equal(addresses, slices.Sorted(slices.Values(before.Addresses))) {
				continue
			}
			now = "now " + orDash(strings.Join(addresses, ", "))
		}
		different++
		fmt.Fprintln(i.out, printable(fmt.Sprintf("Service %s/%s: %s before, %s", before.Namespace, before.Name, strings.Join(before.Addresses, ", "), now)))
	}
	fmt.Fprintf(i.out, "%d of %d Services have the addresses that they had before\n", len(services)-different, len(services))
	if different > 0 {
		return errProblems
	}
	return nil
}

// undoAll returns the Services to MetalLB. ironlb-ccm must not run: it would restore what this removes. MetalLB's
// speakers announce what the Services show, with or without its controller. They must be ready before IronLB withdraws,
// except that a router has one session with a node: IronLB's sessions end once the speakers are created.
func (i *importer) undoAll(ctx context.Context) error {
	m, err := i.readRecord()
	if err != nil {
		return err
	}
	var d appsv1.Deployment
	err = i.client.Get(ctx, client.ObjectKey{Namespace: i.system, Name: v1alpha1.ControllerName}, &d)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading Deployment %s/%s: %w", i.system, v1alpha1.ControllerName, err)
	}
	if err == nil && (ptr.Deref(d.Spec.Replicas, 1) > 0 || d.Status.Replicas > 0) {
		return fmt.Errorf("ironlb-ccm runs: it would take the Services back. Stop it, and repeat the command: kubectl -n %s scale deployment %s --replicas=0",
			i.system, v1alpha1.ControllerName)
	}
	i.say("start MetalLB's speakers now, without its controller")
	for _, created := range []bool{true, false} {
		if err := every(ctx, pollEvery, i.wait, func(ctx context.Context) (bool, error) { return i.speakersAre(ctx, created) }); err != nil {
			return fmt.Errorf("waiting for MetalLB's speakers: %w", err)
		}
		if created {
			err = i.deleteObjects(ctx, m, func(kind string) bool { return strings.HasPrefix(kind, "BGP") })
		} else if err = i.release(ctx, m); err == nil {
			err = i.deleteObjects(ctx, m, func(string) bool { return true })
		}
		if err != nil {
			return err
		}
	}
	i.say("start MetalLB's controller now: kubectl -n %s scale deployment controller --replicas=1", i.namespace)
	return i.compare(ctx, m)
}

// speakersAre reports whether MetalLB's speakers are created, or all ready.
func (i *importer) speakersAre(ctx context.Context, created bool) (bool, error) {
	var pods corev1.PodList
	if err := i.client.List(ctx, &pods, client.InNamespace(i.namespace)); err != nil {
		return false, fmt.Errorf("listing the Pods of MetalLB in namespace %s: %w", i.namespace, err)
	}
	some, all := false, true
	for _, p := range pods.Items {
		if p.Labels["component"] == "speaker" || p.Labels["app.kubernetes.io/component"] == "speaker" {
			some = true
			all = all && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			})
		}
	}
	return some && (created || all), nil
}

// deleteObjects deletes the applied objects of some kinds, in reverse order. Secrets stay: others may use them.
func (i *importer) deleteObjects(ctx context.Context, m *migration, of func(kind string) bool) error {
	for _, o := range slices.Backward(m.Objects) {
		if !of(o.Kind) || o.Kind == "Secret" {
			continue
		}
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(o.Kind))
		u.SetName(o.Name)
		if err := i.client.Delete(ctx, u); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting %s %s: %w", o.Kind, o.Name, err)
		}
	}
	return nil
}

// release removes IronLB's record and finalizers from the Services of the record, and leaves their addresses to
// kube-proxy (ipMode VIP), as MetalLB does.
func (i *importer) release(ctx context.Context, m *migration) error {
	services, err := i.current(ctx, m)
	if err != nil {
		return err
	}
	for _, svc := range services {
		if svc == nil || !servicerecord.Recorded(svc) {
			continue
		}
		var left servicerecord.Outcome
		for _, in := range svc.Status.LoadBalancer.Ingress {
			left.Ingress = append(left.Ingress, corev1.LoadBalancerIngress{IP: in.IP, IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)})
		}
		patch, err := left.PatchOf(svc, servicerecord.OutcomeIn(svc), servicerecord.FinalizersOn(svc, true, true)...)
		if err == nil {
			err = i.client.Status().Patch(ctx, svc, client.RawPatch(types.StrategicMergePatchType, patch))
		}
		if err != nil {
			return fmt.Errorf("releasing Service %s/%s: %w", svc.Namespace, svc.Name, err)
		}
	}
	return nil
}
