package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/diagnose"
	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/metallb"
)

func (t *tool) importCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Convert the configuration of another load balancer",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(t.importMetalLBCommand())
	return cmd
}

// importer is one call of import metallb.
type importer struct {
	*tool
	files     []string
	namespace string
	record    string
	format    string // -o
	wait      time.Duration

	apply, force, check, undo bool

	stdin    io.Reader
	progress io.Writer // the table, and what happens
}

func (t *tool) importMetalLBCommand() *cobra.Command {
	i := &importer{tool: t}
	cmd := &cobra.Command{
		Use:   "metallb [-f FILE]...",
		Short: "Convert MetalLB's objects, and move its Services to IronLB with their addresses",
		Long: `metallb prints IronLB's objects for those of MetalLB, from the cluster or from files, as YAML on standard output, and a
table of every field on standard error: Kept, Changed (to what), or Refused (why, and what to do). It changes nothing.

--apply moves the Services of the cluster. MetalLB's controller must be stopped; its speakers announce the addresses
meanwhile. It
  1. writes all objects as a dry run, and the present addresses of the Services to the file of --record;
  2. applies the pools without automatic assignment, and waits until ironlb-ccm has adopted every Service;
  3. applies the pools as they are to be, and waits until you have stopped MetalLB's speakers;
  4. applies the peers and advertisements, and compares the addresses with the record.
It can be repeated at any point. --check compares the addresses again. --undo returns the Services to MetalLB.

Exit code 1 if something is refused or an address has changed.`,
		Example: `  kubectl ironlb import metallb >ironlb.yaml
  kubectl ironlb import metallb -f metallb.yaml -o table
  kubectl ironlb import metallb --apply --record migration.yaml
  kubectl ironlb import metallb --check --record migration.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			i.stdin, i.progress = cmd.InOrStdin(), cmd.ErrOrStderr()
			run := func(ctx context.Context, _ []string) error { return i.run(ctx) }
			if len(i.files) > 0 && !i.apply && !i.check && !i.undo {
				return run(cmd.Context(), args) // offline
			}
			return t.connected(run)(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&i.files, "filename", "f", nil,
		"A file with MetalLB's objects, and the Secrets of its peers, in YAML or JSON, or - for standard input. May be repeated.")
	flags.StringVarP(&i.format, "output", "o", "yaml", "Output format: yaml, or table for the table only, on standard output.")
	flags.StringVar(&i.namespace, "metallb-namespace", metallb.Namespace, "The namespace in which MetalLB is installed.")
	flags.BoolVar(&i.apply, "apply", false, "Apply the objects, and move the Services.")
	flags.BoolVar(&i.force, "force", false, "Apply although something is refused, without it.")
	flags.BoolVar(&i.check, "check", false, "Compare the addresses of the Services with the record.")
	flags.BoolVar(&i.undo, "undo", false, "Return the Services of the record to MetalLB, and delete the applied objects.")
	flags.StringVar(&i.record, "record", "", "The file with the addresses of the Services before. --apply writes it, unless it exists.")
	flags.DurationVar(&i.wait, "wait", 10*time.Minute, "Wait for each step of --apply and --undo at most this long.")
	cmd.MarkFlagsMutuallyExclusive("apply", "check", "undo")
	cmd.MarkFlagsMutuallyExclusive("filename", "check")
	cmd.MarkFlagsMutuallyExclusive("filename", "undo")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"yaml", "table"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

func (i *importer) run(ctx context.Context) error {
	switch {
	case i.format != "yaml" && i.format != "table":
		return fmt.Errorf("-o %s: write yaml or table", i.format)
	case i.record == "" && (i.apply || i.check || i.undo):
		return errors.New("--record is missing: name the file with the addresses before, like --record migration.yaml")
	case i.check:
		m, err := i.readRecord()
		if err != nil {
			return err
		}
		return i.compare(ctx, m)
	case i.undo:
		return i.undoAll(ctx)
	}
	r, err := i.convert(ctx)
	if err != nil {
		return err
	}
	if i.apply {
		i.table(i.progress, r)
		return i.applyAll(ctx, r)
	}
	if i.format == "table" {
		i.table(i.out, r)
	} else {
		i.table(i.progress, r)
		if err := i.print(r); err != nil {
			return err
		}
	}
	if r.Refused() > 0 {
		return errProblems
	}
	return nil
}

// convert reads MetalLB's objects, and converts them. What the API server would refuse is refused.
func (i *importer) convert(ctx context.Context) (*metallb.Result, error) {
	objects, services, err := i.input(ctx)
	if err != nil {
		return nil, err
	}
	c := diagnose.Cluster{Settings: diagnose.Settings{Scope: servicerecord.DefaultScope()}, Unread: map[string]string{}}
	if i.client != nil {
		i.controller(ctx, &c)
	}
	if why := c.Unread["Deployments"]; why != "" {
		return nil, fmt.Errorf("reading the class of IronLB: %s", why)
	}
	r, err := metallb.Convert(objects, services, c.Settings.Class)
	if err != nil {
		return nil, err
	}
	return r, refuseInvalid(ctx, r)
}

// refuseInvalid refuses the objects that the API server would.
func refuseInvalid(ctx context.Context, r *metallb.Result) error {
	v, err := newValidator()
	if err != nil {
		return err
	}
	for _, o := range slices.Clone(r.Objects) {
		v.problems = nil
		if err := v.object(ctx, "", o.Object); err != nil {
			return err
		}
		for _, p := range v.problems {
			r.Refuse(o.GetKind(), o.GetName(), strings.TrimPrefix(p, fmt.Sprintf(": %s %s: ", o.GetKind(), o.GetName())))
		}
	}
	return nil
}

// input returns MetalLB's objects, and the Services. Services of files count only if nothing is applied.
func (i *importer) input(ctx context.Context) (objects []*unstructured.Unstructured, services []corev1.Service, err error) {
	if len(i.files) == 0 {
		objects, err = i.installedObjects(ctx)
	} else {
		err = manifests(i.files, i.stdin, func(file string, o *unstructured.Unstructured) error {
			objects = append(objects, o)
			if o.GetAPIVersion() != "v1" || o.GetKind() != "Service" {
				return nil
			}
			services = append(services, corev1.Service{})
			if err := fromUnstructured(o, &services[len(services)-1]); err != nil {
				return fmt.Errorf("%s: Service %s/%s: %w", file, o.GetNamespace(), o.GetName(), err)
			}
			return nil
		})
	}
	if err != nil || i.client == nil {
		return objects, services, err
	}
	related, err := i.related(ctx, objects)
	if err != nil {
		return nil, nil, err
	}
	var list corev1.ServiceList
	err = i.list(ctx, &list)
	return append(objects, related...), list.Items, err
}

// installedObjects reads MetalLB's objects in its namespace.
func (i *importer) installedObjects(ctx context.Context) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	installed := false
	for _, kind := range metallb.Kinds() {
		list, err := i.listKind(ctx, kind)
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			continue // an older MetalLB
		}
		if err != nil {
			return nil, fmt.Errorf("listing %s of MetalLB: %w", kind, err)
		}
		installed = true
		for n := range list.Items {
			out = append(out, &list.Items[n])
		}
	}
	switch {
	case !installed:
		return nil, fmt.Errorf("the cluster has no kinds of %s: name files with MetalLB's objects with -f", metallb.Group)
	case len(out) == 0:
		return nil, fmt.Errorf("namespace %s has no objects of %s: name the namespace of MetalLB with --metallb-namespace", i.namespace, metallb.Group)
	}
	return out, nil
}

// related reads the Secrets that peers name, and MetalLB's own settings of FRR, unless they are given.
func (i *importer) related(ctx context.Context, objects []*unstructured.Unstructured) (out []*unstructured.Unstructured, err error) {
	wanted := map[client.ObjectKey]string{{Namespace: i.namespace, Name: "bgpextras"}: "ConfigMap"}
	for _, o := range objects {
		if name, _, _ := unstructured.NestedString(o.Object, "spec", "passwordSecret", "name"); name != "" {
			wanted[client.ObjectKey{Namespace: o.GetNamespace(), Name: name}] = "Secret"
		}
	}
	for _, o := range objects {
		if key := client.ObjectKeyFromObject(o); wanted[key] == o.GetKind() {
			delete(wanted, key)
		}
	}
	for key, kind := range wanted {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
		switch err := i.client.Get(ctx, key, o); {
		case err == nil:
			out = append(out, o)
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("reading %s %s: %w", kind, key, err)
		}
	}
	return out, nil
}

// listKind lists the objects of a kind of MetalLB in the preferred version that the cluster has.
func (i *importer) listKind(ctx context.Context, kind string) (list *unstructured.UnstructuredList, err error) {
	for _, version := range metallb.Versions(kind) {
		list = &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: metallb.Group, Version: version, Kind: kind + "List"})
		if err = i.client.List(ctx, list, client.InNamespace(i.namespace)); err == nil {
			return list, nil
		}
	}
	return nil, err
}

// table writes every row, and a summary.
func (i *importer) table(out io.Writer, r *metallb.Result) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "OUTCOME\tOBJECT\tFIELD\tDETAIL")
	count := map[metallb.Outcome]int{}
	for _, row := range r.Rows {
		count[row.Outcome]++
		name := row.Name
		if row.Namespace != "" {
			name = row.Namespace + "/" + name
		}
		fmt.Fprintf(w, "%s\t%s %s\t%s\t%s\n", row.Outcome, row.Kind, printable(name), orDash(printable(row.Field)), orDash(printable(row.Detail)))
	}
	w.Flush()
	fmt.Fprintf(out, "%d kept, %d changed, %d refused\n", count[metallb.Kept], count[metallb.Changed], count[metallb.Refused])
}

// print writes the objects, and the annotations of Services as comments: a manifest of a Service would be one of all its
// fields.
func (i *importer) print(r *metallb.Result) error {
	for _, a := range r.Annotations {
		for _, text := range sortedPairs(a.Add) {
			fmt.Fprintf(i.out, "# kubectl annotate service -n %s %s %q\n", a.Namespace, a.Name, text)
		}
	}
	for _, o := range r.Objects {
		data, err := yaml.Marshal(o.Object)
		if err != nil {
			return fmt.Errorf("encoding %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		fmt.Fprintf(i.out, "---\n%s", data)
	}
	return nil
}

func sortedPairs(m map[string]string) (out []string) {
	for key, value := range m {
		out = append(out, key+"="+value)
	}
	slices.Sort(out)
	return out
}
