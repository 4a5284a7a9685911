package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/ironlb/ironlb/cmd/internal/version"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

const (
	// logLines and logOctets limit one log.
	logLines, logOctets = 20000, 8 << 20
	// listLimit is the time limit for the objects of one kind, and for a log.
	listLimit = time.Minute
	// atOnce is how many parts are collected at the same time, and held in memory.
	atOnce = 8
	// redacted replaces what may be a secret.
	redacted = "REDACTED"
)

// sysdumpOptions are the flags of sysdump.
type sysdumpOptions struct {
	file      string
	since     time.Duration
	nodes     []string
	nodeLimit time.Duration
}

func (t *tool) sysdumpCommand() *cobra.Command {
	var o sysdumpOptions
	cmd := &cobra.Command{
		Use:   "sysdump",
		Short: "Collect the state of IronLB and its nodes in one archive, for a bug report",
		Long: `sysdump collects in one archive: the objects of IronLB, Services, EndpointSlices, Nodes, labels of Namespaces, Events about
them, the workloads of IronLB with the logs of their Pods, and of each node what its speaker and its kernel have.

It never reads Secrets. Values of environment variables, and annotations with a copy of the object, are removed. The archive
has the addresses and names of your cluster: read it before you publish it.

A part that cannot be collected is listed in ERRORS.txt of the archive, and the exit code is 2.`,
		Example: `  kubectl ironlb sysdump
  kubectl ironlb sysdump --since 1h --nodes node-1,node-2 -o incident.tar.gz`,
		Args: cobra.NoArgs,
		RunE: t.connected(func(ctx context.Context, _ []string) (err error) {
			if t.pods, err = connectPods(t.flags, t.system); err != nil {
				return err
			}
			return t.sysdump(ctx, o)
		}),
	}
	cmd.Flags().StringVarP(&o.file, "output", "o", "", "The archive to write (default ironlb-sysdump-TIME.tar.gz in this directory).")
	cmd.Flags().DurationVar(&o.since, "since", 0, "Collect only logs that are newer, as 1h. 0: the last lines, however old.")
	cmd.Flags().StringSliceVar(&o.nodes, "nodes", nil, "Collect logs and states of these nodes only.")
	cmd.Flags().DurationVar(&o.nodeLimit, "node-timeout", 30*time.Second, "How long to wait for the state of a node.")
	return cmd
}

// sysdump writes the archive. Its order depends on the objects only.
func (t *tool) sysdump(ctx context.Context, o sysdumpOptions) (err error) {
	name := "ironlb-sysdump-" + t.now().UTC().Format("20060102-150405")
	o.file = cmp.Or(o.file, name+".tar.gz")
	parts := t.objectParts()
	switch pods, err := t.ourPods(ctx, o.nodes); {
	case apierrors.IsForbidden(err):
		parts = append(parts, part{"logs and nodes", listLimit, func(context.Context) ([]byte, error) { return nil, err }})
	case err != nil:
		return err
	default:
		parts = append(parts, t.podParts(pods, o)...)
	}
	f, err := os.OpenFile(o.file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists already: remove it, or name another file with -o", o.file)
	}
	if err != nil {
		return fmt.Errorf("creating the archive (-o): %w", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil && !errors.Is(err, errUnread) {
			err = errors.Join(err, os.Remove(o.file))
		}
	}()
	a := newArchive(f, name, t.now())
	a.add("version.txt", fmt.Appendf(nil, "kubectl-ironlb %s\nat %s\nnodes %s\nsince %s\n", version.String(), t.now().UTC().Format(time.RFC3339),
		cmp.Or(strings.Join(o.nodes, ","), "all"), o.since))
	var failed bytes.Buffer
	err = collect(ctx, parts, func(p part, data []byte, err error) {
		if len(data) > 0 {
			a.add(p.path, data)
		}
		switch {
		case err != nil:
			fmt.Fprintf(&failed, "%s: %s\n", p.path, printable(err.Error()))
			fmt.Fprintf(t.out, "failed  %s: %s\n", p.path, printable(err.Error()))
		case len(data) > 0:
			fmt.Fprintf(t.out, "ok      %s\n", p.path)
		}
	})
	if failed.Len() > 0 {
		a.add("ERRORS.txt", failed.Bytes())
	}
	if err = errors.Join(err, a.close()); err != nil {
		return fmt.Errorf("writing %s: %w", o.file, err)
	}
	fmt.Fprintf(t.out, "\n%s has %d files.\n", o.file, a.files)
	if failed.Len() > 0 {
		fmt.Fprintln(t.out, "Some parts are missing: see ERRORS.txt in it.")
		return errUnread
	}
	return nil
}

// ourPods lists the Pods of IronLB, those of DaemonSets only on the named nodes; no names mean all nodes.
func (t *tool) ourPods(ctx context.Context, nodes []string) ([]corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	var pods corev1.PodList
	if err := t.client.List(ctx, &pods, client.InNamespace(t.system), ours); err != nil {
		return nil, fmt.Errorf("listing the Pods in namespace %s: %w", t.system, err)
	}
	if len(pods.Items) == 0 {
		return nil, fmt.Errorf("namespace %s has no Pod of IronLB: name the namespace of IronLB with --ironlb-namespace", t.system)
	}
	for _, node := range nodes {
		if !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName == node }) {
			return nil, fmt.Errorf("node %s has no Pod of IronLB: correct --nodes", node)
		}
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
		return len(nodes) > 0 && p.Labels[nameLabel] != v1alpha1.ControllerName && !slices.Contains(nodes, p.Spec.NodeName)
	}), nil
}

// nameLabel names the program of a Pod. ours selects the objects of the installation.
const nameLabel = "app.kubernetes.io/name"

var ours = client.MatchingLabels{"app.kubernetes.io/part-of": "ironlb"}

// part is a file of the archive.
type part struct {
	path  string
	limit time.Duration
	// get returns the content, as far as there is any.
	get func(context.Context) ([]byte, error)
}

// collect passes on the results of the parts in their order. Some are collected at the same time. It fails if ctx ends.
func collect(ctx context.Context, parts []part, done func(p part, data []byte, err error)) error {
	type result struct {
		data []byte
		err  error
	}
	results, slots := make([]chan result, len(parts)), make(chan struct{}, atOnce)
	for i := range parts {
		results[i] = make(chan result, 1)
	}
	go func() {
		for i, p := range parts {
			slots <- struct{}{}
			go func() {
				ctx, cancel := context.WithTimeoutCause(ctx, p.limit, fmt.Errorf("no answer within %s", p.limit))
				defer cancel()
				data, err := p.get(ctx)
				if err != nil && ctx.Err() != nil {
					err = context.Cause(ctx)
				}
				results[i] <- result{data, err}
			}()
		}
	}()
	for i, p := range parts {
		r := <-results[i]
		<-slots
		if ctx.Err() == nil {
			done(p, r.data, r.err)
		}
	}
	return ctx.Err()
}

// objectParts are the objects, a file for each kind.
func (t *tool) objectParts() []part {
	system := []client.ListOption{client.InNamespace(t.system)}
	selection := map[string][]client.ListOption{ // all others in all namespaces
		"pods": append(system, ours), "deployments": append(system, ours), "daemonsets": append(system, ours), "configmaps": append(system, ours), "leases": system,
	}
	var parts []part
	for _, r := range resources {
		if r.resource == "secrets" || r.kind.Group == metallbVersion1.Group { // never; and of another product
			continue
		}
		parts = append(parts, part{"objects/" + r.resource + ".yaml", listLimit, func(ctx context.Context) ([]byte, error) {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(r.kind.GroupVersion().WithKind(r.kind.Kind + "List"))
			if err := t.client.List(ctx, list, selection[r.resource]...); err != nil {
				return nil, err
			}
			if r.resource == "events" {
				list.Items = slices.DeleteFunc(list.Items, func(e unstructured.Unstructured) bool { return !t.concerns(e) })
			}
			return marshal(list)
		}})
	}
	parts = append(parts, part{"objects/kube-proxy.yaml", listLimit, func(ctx context.Context) ([]byte, error) {
		list := &unstructured.UnstructuredList{Items: make([]unstructured.Unstructured, 1)}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
		list.Items[0].SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
		err := t.client.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: "kube-proxy"}, &list.Items[0])
		if apierrors.IsNotFound(err) {
			return nil, nil // another program is the service proxy, or has another configuration
		}
		if err != nil {
			return nil, err
		}
		// Installers name the key as they like, and may have a kubeconfig with credentials beside it.
		data, _, _ := unstructured.NestedStringMap(list.Items[0].Object, "data")
		config := map[string]any{}
		for key, text := range data {
			var kind metav1.TypeMeta
			if yaml.Unmarshal([]byte(text), &kind) == nil && kind.Kind == "KubeProxyConfiguration" {
				config[key] = text
			}
		}
		list.Items[0].Object["data"] = config
		return marshal(list)
	}})
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.path, b.path) })
	return parts
}

// concerns reports whether an Event is of IronLB, or about an object that sysdump collects.
func (t *tool) concerns(event unstructured.Unstructured) bool {
	text := func(fields ...string) string {
		value, _, _ := unstructured.NestedString(event.Object, fields...)
		return value
	}
	return event.GetNamespace() == t.system || slices.Contains([]string{"Service", "Node"}, text("involvedObject", "kind")) ||
		strings.HasPrefix(text("involvedObject", "apiVersion"), v1alpha1.GroupVersion.Group+"/") ||
		strings.HasPrefix(cmp.Or(text("reportingComponent"), text("source", "component")), "ironlb")
}

// marshal returns the objects without what may be a secret, sorted.
func marshal(list *unstructured.UnstructuredList) ([]byte, error) {
	slices.SortFunc(list.Items, func(a, b unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	items := []any{}
	for _, o := range list.Items {
		unstructured.RemoveNestedField(o.Object, "metadata", "managedFields")
		annotations := o.GetAnnotations()
		maps.DeleteFunc(annotations, func(key, value string) bool { // copies of the object, which tools keep under many names
			return strings.Contains(key, "last-applied") || strings.HasSuffix(key, "/applied") || strings.HasSuffix(key, "/original") || len(value) > 1024
		})
		if o.GetKind() == "Namespace" {
			annotations = nil // only the labels are needed
		}
		o.SetAnnotations(annotations)
		redactEnv(o.Object)
		items = append(items, o.Object)
	}
	return yaml.Marshal(map[string]any{"apiVersion": list.GetAPIVersion(), "kind": list.GetKind(), "items": items})
}

// redactEnv removes the values of environment variables, wherever containers are.
func redactEnv(value any) {
	switch v := value.(type) {
	case map[string]any:
		env, _ := v["env"].([]any)
		for _, e := range env {
			if variable, is := e.(map[string]any); is && variable["value"] != nil {
				variable["value"] = redacted
			}
		}
		for _, inner := range v {
			redactEnv(inner)
		}
	case []any:
		for _, inner := range v {
			redactEnv(inner)
		}
	}
}

// podParts are the logs of the Pods, and the states of the nodes of speakers.
func (t *tool) podParts(pods []corev1.Pod, o sysdumpOptions) (parts []part) {
	for _, pod := range pods {
		for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			if c.ContainerID != "" {
				parts = append(parts, t.logPart(pod.Name, c.Name, false, o.since))
			}
			if c.LastTerminationState.Terminated != nil {
				parts = append(parts, t.logPart(pod.Name, c.Name, true, o.since))
			}
		}
	}
	for _, pod := range pods {
		if pod.Labels[nameLabel] != "ironlb-speaker" || pod.Spec.NodeName == "" {
			continue
		}
		parts = append(parts, part{"nodes/" + pod.Spec.NodeName + "/" + pod.Name + ".json", o.nodeLimit, func(ctx context.Context) ([]byte, error) {
			out, err := t.pods.Exec(ctx, pod.Name, "ironlb-speaker", "ironlb-speaker", "dump", "--node")
			if err != nil {
				err = fmt.Errorf("ironlb-speaker dump in Pod %s (%s): %w", pod.Name, pod.Status.Phase, err)
			}
			return out, err
		}})
	}
	return parts
}

func (t *tool) logPart(pod, container string, previous bool, since time.Duration) part {
	path := "logs/" + pod + "/" + container + ".log"
	if previous {
		path = "logs/" + pod + "/" + container + ".previous.log"
	}
	return part{path, listLimit, func(ctx context.Context) ([]byte, error) {
		log := &corev1.PodLogOptions{Container: container, Previous: previous, Timestamps: true, TailLines: ptr.To[int64](logLines)}
		if since > 0 {
			log.SinceSeconds = ptr.To(int64(since.Seconds()))
		}
		return t.pods.Logs(ctx, pod, log)
	}}
}

// archive is a compressed tar file with one folder.
type archive struct {
	gzip  *gzip.Writer
	tar   *tar.Writer
	dir   string
	now   time.Time
	files int
	err   error // of the first failed write
}

func newArchive(w io.Writer, dir string, now time.Time) *archive {
	z := gzip.NewWriter(w)
	return &archive{gzip: z, tar: tar.NewWriter(z), dir: dir, now: now.Truncate(time.Second)}
}

func (a *archive) add(path string, data []byte) {
	a.files++
	err := a.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: a.dir + "/" + path, Mode: 0o600, Size: int64(len(data)), ModTime: a.now})
	if err == nil {
		_, err = a.tar.Write(data)
	}
	a.err = cmp.Or(a.err, err)
}

func (a *archive) close() error { return errors.Join(a.err, a.tar.Close(), a.gzip.Close()) }
