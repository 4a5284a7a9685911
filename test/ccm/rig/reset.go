package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/test/eventually"
)

// key identifies an object of the cluster.
type key struct {
	resource        schema.GroupVersionResource
	namespace, name string
}

func (k key) String() string {
	return strings.TrimPrefix(fmt.Sprintf("%s %s/%s", k.resource.Resource, k.namespace, k.name), "/")
}

// objects are those of the cluster that can be deleted.
type objects map[key]*unstructured.Unstructured

// kept are objects that the control plane creates by itself, at any time after its start.
var kept = []string{
	"configmaps kube-root-ca.crt", "configmaps kube-apiserver-legacy-service-account-token-tracking", "serviceaccounts default",
	"services kubernetes", "servicecidrs kubernetes",
}

// derived are resources whose objects follow others: APIServices follow the CRDs, IPAddresses the Services, and
// the group events.k8s.io serves the Events of the core group again.
var derived = []string{"apiservices.apiregistration.k8s.io", "ipaddresses.networking.k8s.io", "events.events.k8s.io"}

// begin records the state that Reset restores.
func (r *Rig) begin(ctx context.Context) (err error) {
	return eventually.Poll(ctx, 50*time.Millisecond, time.Minute, "the resources of IronLB", func(ctx context.Context) error {
		r.first, err = r.survey(ctx)
		// The control plane needs none of them: they may end by themselves.
		maps.DeleteFunc(r.first, func(k key, _ *unstructured.Unstructured) bool {
			return k.resource.Resource == "events" || k.resource.Resource == "leases"
		})
		return err
	})
}

// Reset ends the processes that were started in the rig, deletes what was created in the cluster, and restores what was
// applied from deploy/. It returns an error that names what is left.
func (r *Rig) Reset(ctx context.Context) error {
	if err := r.endProcesses(); err != nil {
		return err
	}
	if err := eventually.Poll(ctx, 20*time.Millisecond, 10*time.Minute, "the state at the start of the rig", r.restore); err != nil {
		return err
	}
	return r.skipAudited()
}

// endProcesses also removes their logs.
func (r *Rig) endProcesses() error {
	r.mu.Lock()
	processes := r.processes
	r.processes = nil
	r.mu.Unlock()
	var errs []error
	for _, p := range slices.Backward(processes) {
		if p.Running() {
			errs = append(errs, p.Kill())
		}
		errs = append(errs, os.Remove(p.Log))
	}
	return errors.Join(errs...)
}

// restore makes one attempt. It returns nil if nothing had to be done.
func (r *Rig) restore(ctx context.Context) error {
	is, err := r.survey(ctx)
	if err != nil && !errors.Is(err, errNotServed) {
		return err
	}
	for k, was := range r.first {
		now := is[k]
		if now != nil && now.GetDeletionTimestamp() != nil {
			return fmt.Errorf("%s is being deleted", k)
		}
		if now == nil || r.applied[now.GetKind()+" "+k.name] && content(now) != content(was) {
			return errors.Join(fmt.Errorf("%s is missing or changed", k), r.Apply(ctx, r.manifests))
		}
	}
	if err != nil {
		return err
	}
	maps.DeleteFunc(is, func(k key, o *unstructured.Unstructured) bool {
		_, first := r.first[k]
		inFirst := k.namespace == "" || r.hadNamespace(k.namespace)
		return first || inFirst && slices.Contains(kept, k.resource.Resource+" "+k.name)
	})
	if len(is) == 0 {
		return nil
	}
	left := slices.Collect(maps.Keys(is))
	names := make([]string, len(left))
	inside := map[string]bool{} // namespaces that are not empty
	for i, k := range left {
		names[i] = k.String()
		inside[k.namespace] = true
	}
	slices.Sort(names)
	err = Each(ctx, len(left), func(ctx context.Context, i int) error {
		return r.remove(ctx, left[i], is[left[i]], !inside[left[i].name])
	})
	return errors.Join(fmt.Errorf("%d objects are left: %s", len(names), strings.Join(names[:min(20, len(names))], ", ")), err)
}

func (r *Rig) hadNamespace(name string) bool {
	_, had := r.first[key{schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "", name}]
	return had
}

// remove deletes an object without its finalizers. A namespace ends here once it is empty: the namespace controller
// waits for five seconds.
func (r *Rig) remove(ctx context.Context, k key, o *unstructured.Unstructured, empty bool) (err error) {
	objects := r.dynamic.Resource(k.resource).Namespace(k.namespace)
	ends := o.GetDeletionTimestamp() != nil
	switch {
	case k.resource.Resource == "namespaces" && ends && empty:
		ns, err := r.Kube.CoreV1().Namespaces().Get(ctx, k.name, metav1.GetOptions{})
		if err == nil {
			ns.Spec.Finalizers = nil
			_, err = r.Kube.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{})
		}
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // the namespace controller was faster
			return nil
		}
		return err
	case len(o.GetFinalizers()) > 0:
		_, err = objects.Patch(ctx, k.name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	}
	if err == nil && !ends {
		err = objects.Delete(ctx, k.name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// content returns what an administrator writes of an object.
func content(o *unstructured.Unstructured) string {
	own := maps.Clone(o.Object)
	delete(own, "status")
	own["metadata"] = map[string]any{"labels": o.GetLabels(), "annotations": o.GetAnnotations()}
	data, err := json.Marshal(own)
	if err != nil {
		panic(err) // it came as JSON
	}
	return string(data)
}

// errNotServed is the error about a kind of IronLB whose CRD is missing or not yet in use.
var errNotServed = errors.New("not served")

// survey lists the objects.
func (r *Rig) survey(ctx context.Context) (objects, error) {
	lists, err := r.Kube.Discovery().ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("list the resources: %w", err)
	}
	var resources []schema.GroupVersionResource
	missing := maps.Clone(r.kinds)
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, res := range list.APIResources {
			gvr := gv.WithResource(res.Name)
			delete(missing, gvr.GroupResource().String())
			if !slices.Contains(derived, gvr.GroupResource().String()) {
				resources = append(resources, gvr)
			}
		}
	}
	found := make([]*unstructured.UnstructuredList, len(resources))
	if err := Each(ctx, len(resources), func(ctx context.Context, i int) (err error) {
		found[i], err = r.dynamic.Resource(resources[i]).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}); err != nil {
		return nil, fmt.Errorf("list the objects: %w", err)
	}
	all := objects{}
	for i, list := range found {
		if list == nil {
			missing[resources[i].GroupResource().String()] = true
			continue
		}
		for j := range list.Items {
			o := &list.Items[j]
			all[key{resources[i], o.GetNamespace(), o.GetName()}] = o
		}
	}
	if len(missing) > 0 {
		return all, fmt.Errorf("%v: %w", slices.Sorted(maps.Keys(missing)), errNotServed)
	}
	return all, nil
}
