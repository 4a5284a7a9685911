package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/cmd/internal/version"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// annotate requests something of ironlb-ccm by an annotation.
func (t *tool) annotate(ctx context.Context, o client.Object, annotation, value string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{annotation: value}}})
	if err != nil {
		return fmt.Errorf("encoding the request: %w", err)
	}
	return t.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch))
}

// every calls done at the interval until it returns true or an error, at most for the time.
func every(ctx context.Context, interval, wait time.Duration, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if ok, err := done(ctx); ok || err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (t *tool) reallocateCommand() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "reallocate svc NAME",
		Short: "Give a Service another address in place of one that no pool accepts any more",
		Long: `reallocate requests another address for a Service that keeps one which no pool accepts it to any more (reason Draining).
Its clients must use the new address afterwards. A Service whose address a pool accepts keeps it.

The request is the annotation ` + servicerecord.AnnotationReallocate + ` on the Service.`,
		Example: "  kubectl ironlb reallocate svc web --wait 30s",
		RunE:    t.connected(func(ctx context.Context, args []string) error { return t.reallocate(ctx, args, wait) }),
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "Wait for the new address, at most this long. 0: do not wait.")
	return cmd
}

func (t *tool) reallocate(ctx context.Context, args []string, wait time.Duration) error {
	name, err := serviceName(args)
	if err != nil {
		return err
	}
	if name == "" {
		return errors.New("reallocate needs the name of a Service: write svc NAME")
	}
	namespace, err := t.namespace()
	if err != nil {
		return err
	}
	svc := &corev1.Service{}
	if err := t.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, svc); err != nil {
		return fmt.Errorf("reading Service %s/%s: %w", namespace, name, err)
	}
	if records, _ := v1alpha1.RecordsOf(svc); len(records) == 0 {
		return fmt.Errorf("no address of IronLB on Service %s/%s: see kubectl ironlb explain svc %s -n %s", namespace, name, name, namespace)
	}
	before, value := servicerecord.IPs(svc.Status.LoadBalancer.Ingress), t.now().UTC().Format(time.RFC3339Nano)
	if err := t.annotate(ctx, svc, servicerecord.AnnotationReallocate, value); err != nil {
		return fmt.Errorf("annotating Service %s/%s: %w", namespace, name, err)
	}
	fmt.Fprintf(t.out, "svc/%s: reallocation of %s requested\n", name, strings.Join(before, ", "))
	if wait <= 0 {
		return nil
	}
	err = every(ctx, pollEvery, wait, func(ctx context.Context) (bool, error) {
		err := t.client.Get(ctx, client.ObjectKeyFromObject(svc), svc)
		return err == nil && servicerecord.OutcomeIn(svc).Reallocated == value, err
	})
	if err != nil {
		why := err.Error()
		if c := meta.FindStatusCondition(svc.Status.Conditions, v1alpha1.ConditionAllocated); c != nil && errors.Is(err, context.DeadlineExceeded) {
			why = c.Reason + ": " + c.Message
		}
		return fmt.Errorf("svc/%s is not done: %s", name, why)
	}
	fmt.Fprintf(t.out, "svc/%s: %s\n", name, strings.Join(servicerecord.IPs(svc.Status.LoadBalancer.Ingress), ", "))
	return nil
}

func (t *tool) drainCommand() *cobra.Command {
	var wait time.Duration
	var undo bool
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Move all addresses away from a node, and withdraw its BGP routes",
		Long: `drain excludes a node from all addresses, and waits until it holds none: it owns no VirtualIP and announces no prefix. The
node continues to forward what other nodes send to its endpoints; kubectl drain moves its Pods. Established connections
through the node break when their address moves, unless they are forwarded directly.

It sets the label ` + corev1.LabelNodeExcludeBalancers + `; --undo removes it. No address moves back by itself:
kubectl ironlb rebalance requests that.`,
		Example: `  kubectl ironlb drain node-1
  kubectl ironlb drain node-1 --undo`,
		Args: cobra.ExactArgs(1),
		RunE: t.connected(func(ctx context.Context, args []string) error { return t.drain(ctx, args[0], undo, wait) }),
	}
	cmd.Flags().DurationVar(&wait, "wait", 5*time.Minute, "Wait until the node holds nothing, at most this long. 0: do not wait.")
	cmd.Flags().BoolVar(&undo, "undo", false, "Let the node have addresses again.")
	return cmd
}

func (t *tool) drain(ctx context.Context, node string, undo bool, wait time.Duration) error {
	label, done := any("true"), "excluded from all addresses"
	if undo {
		label, done = nil, "may have addresses again"
	}
	c, err := t.read(ctx)
	if err != nil {
		return err
	}
	if c.Settings.IgnoreExclude {
		return fmt.Errorf("IronLB is installed with ignoreExcludeLB, so the label %s has no effect: use kubectl drain", corev1.LabelNodeExcludeBalancers)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{corev1.LabelNodeExcludeBalancers: label}}})
	if err != nil {
		return fmt.Errorf("encoding the label: %w", err)
	}
	n := &corev1.Node{}
	n.Name = node
	if err := t.client.Patch(ctx, n, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("labelling Node %s: %w", node, err)
	}
	fmt.Fprintf(t.out, "%s: %s\n", node, done)
	if undo || wait <= 0 {
		return nil
	}
	last := ""
	err = every(ctx, pollEvery, wait, func(ctx context.Context) (bool, error) {
		holds, err := t.holds(ctx, node)
		if err == nil && holds != last {
			fmt.Fprintf(t.out, "%s: %s\n", node, holds)
			last = holds
		}
		return err == nil && holds == holdsNothing, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s still %s after %v: see kubectl ironlb status %s", node, last, wait, node)
	}
	return err
}

const holdsNothing = "holds nothing"

// holds describes what a node still has.
func (t *tool) holds(ctx context.Context, node string) (string, error) {
	var vips v1alpha1.VirtualIPList
	if err := t.list(ctx, &vips); err != nil {
		return "", err
	}
	var owned []string
	for i := range vips.Items {
		if v := &vips.Items[i]; v.Status.Node == node {
			owned = append(owned, strings.Join(v.Spec.Addresses, ","))
		}
	}
	prefixes := 0
	speaker := &v1alpha1.SpeakerStatus{}
	switch err := t.client.Get(ctx, client.ObjectKey{Name: node}, speaker); {
	case err != nil && !apierrors.IsNotFound(err):
		return "", fmt.Errorf("reading SpeakerStatus %s: %w", node, err)
	case err == nil && speaker.Status.BGP != nil && speaker.Status.Stopped == nil:
		for _, s := range speaker.Status.BGP.Sessions {
			prefixes += int(s.Prefixes)
		}
	}
	if len(owned) == 0 && prefixes == 0 {
		return holdsNothing, nil
	}
	text := fmt.Sprintf("owns %d VirtualIPs", len(owned))
	if 0 < len(owned) && len(owned) <= manyObjects {
		text += " (" + strings.Join(owned, " ") + ")"
	}
	return fmt.Sprintf("%s and announces %d prefixes", text, prefixes), nil
}

// has reports whether the text is one of the VirtualIP's addresses, in any notation.
func has(v *v1alpha1.VirtualIP, text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && slices.Contains(v.Spec.Addresses, addr.Unmap().String())
}

// versionCommand prints the versions of both sides; that of the cluster only if it answers.
func (t *tool) versionCommand() *cobra.Command {
	local := false
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program and of IronLB in the cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintf(t.out, "%s version %s\n", cmd.Root().DisplayName(), version.String())
			if local {
				return nil
			}
			return t.connected(func(ctx context.Context, _ []string) error { return t.installed(ctx) })(cmd, nil)
		},
	}
	cmd.Flags().BoolVar(&local, "client", false, "Print the version of this program only.")
	return cmd
}

// installed prints the images of the programs in the cluster.
func (t *tool) installed(ctx context.Context) error {
	images := map[string]string{}
	var deployments appsv1.DeploymentList
	var daemons appsv1.DaemonSetList
	for _, l := range []client.ObjectList{&deployments, &daemons} {
		if err := t.client.List(ctx, l, client.InNamespace(t.system)); err != nil {
			return fmt.Errorf("listing the programs in namespace %s: %w", t.system, err)
		}
	}
	for _, d := range deployments.Items {
		images[d.Name] = imageOf(&d.Spec.Template.Spec)
	}
	for _, d := range daemons.Items {
		images[d.Name] = imageOf(&d.Spec.Template.Spec)
	}
	found := false
	for _, name := range []string{v1alpha1.ControllerName, "ironlb-speaker", "ironlb-bgpd"} {
		if image := images[name]; image != "" {
			found = true
			fmt.Fprintf(t.out, "%s image %s\n", name, printable(image))
		}
	}
	if !found {
		return fmt.Errorf("namespace %s has no Deployment %s: name the namespace of IronLB with --ironlb-namespace", t.system, v1alpha1.ControllerName)
	}
	return nil
}

func imageOf(pod *corev1.PodSpec) string {
	if len(pod.Containers) == 0 {
		return ""
	}
	return pod.Containers[0].Image
}
