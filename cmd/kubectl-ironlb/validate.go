package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/ironlb/ironlb/ccm/advertisement"
	"github.com/ironlb/ironlb/deploy"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

func (t *tool) validateCommand() *cobra.Command {
	var files []string
	cmd := &cobra.Command{
		Use:   "validate -f FILE...",
		Short: "Check manifests of IronLB by the rules of the API server and of ironlb-ccm, offline",
		Long: `validate checks each object of the group ironlb.io in the files: unknown fields, and the rules of the
CustomResourceDefinitions of this version. Then what ironlb-ccm would report: overlapping pools, invalid selectors, and
pools, peers and profiles that are named and not among the objects of the files. Other kinds are counted and ignored.

It needs no cluster. Exit code 1 if an object is invalid.`,
		Example: `  kubectl ironlb validate -f pools.yaml -f advertisements.yaml
  helm template my-config | kubectl ironlb validate -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return t.validate(cmd.Context(), files, cmd.InOrStdin()) },
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "A file with manifests in YAML or JSON, or - for standard input. May be repeated.")
	_ = cmd.MarkFlagRequired("filename")
	return cmd
}

func (t *tool) validate(ctx context.Context, files []string, stdin io.Reader) error {
	v, err := newValidator()
	if err != nil {
		return err
	}
	if err := manifests(files, stdin, func(name string, o *unstructured.Unstructured) error { return v.object(ctx, name, o.Object) }); err != nil {
		return err
	}
	if err := v.together(); err != nil {
		return err
	}
	for _, p := range v.problems {
		fmt.Fprintln(t.out, printable(p))
	}
	fmt.Fprintf(t.out, "%d objects of IronLB, %d others ignored: %d problems\n", v.ours, v.others, len(v.problems))
	if len(v.problems) > 0 {
		return errProblems
	}
	return nil
}

// validator checks objects against the CustomResourceDefinitions, and against one another.
type validator struct {
	kinds    map[string]*schemaOf
	problems []string

	ours, others int
	pools        []v1alpha1.IPAddressPool
	l2           []v1alpha1.L2Advertisement
	bgp          []v1alpha1.BGPAdvertisement
	peers        []v1alpha1.BGPPeer
	profiles     []string
}

// schemaOf is what the API server makes of a version of a CustomResourceDefinition.
type schemaOf struct {
	structural *structuralschema.Structural
	openapi    validation.SchemaValidator
	rules      *cel.Validator
}

func newValidator() (*validator, error) {
	crds, err := deploy.CRDs()
	if err != nil {
		return nil, err
	}
	v := &validator{kinds: map[string]*schemaOf{}}
	for name, data := range crds {
		if err := v.addKind(data); err != nil {
			return nil, fmt.Errorf("CustomResourceDefinition %s: %w", name, err)
		}
	}
	return v, nil
}

func (v *validator) addKind(data []byte) error {
	var external apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(data, &external); err != nil {
		return err
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&external)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&external.Spec)
	var crd apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&external, &crd, nil); err != nil {
		return err
	}
	schema, err := apiextensions.GetSchemaForVersion(&crd, v1alpha1.GroupVersion.Version)
	if err != nil {
		return err
	}
	s := &schemaOf{}
	if s.structural, err = structuralschema.NewStructural(schema.OpenAPIV3Schema); err != nil {
		return err
	}
	if s.openapi, _, err = validation.NewSchemaValidator(schema.OpenAPIV3Schema); err != nil {
		return err
	}
	s.rules = cel.NewValidator(s.structural, true, celconfig.PerCallLimit)
	v.kinds[crd.Spec.Names.Kind] = s
	return nil
}

func (v *validator) problem(object, format string, args ...any) {
	v.problems = append(v.problems, object+": "+fmt.Sprintf(format, args...))
}

func (v *validator) object(ctx context.Context, file string, o map[string]any) error {
	u := &unstructured.Unstructured{Object: o}
	group, version, _ := strings.Cut(u.GetAPIVersion(), "/")
	if group != v1alpha1.GroupVersion.Group {
		v.others++
		return nil
	}
	v.ours++
	name := fmt.Sprintf("%s: %s %s", file, u.GetKind(), u.GetName())
	s := v.kinds[u.GetKind()]
	switch {
	case version != v1alpha1.GroupVersion.Version:
		v.problem(name, "apiVersion is %s: write %s", u.GetAPIVersion(), v1alpha1.GroupVersion)
		return nil
	case s == nil:
		v.problem(name, "IronLB has no such kind")
		return nil
	case u.GetName() == "":
		v.problem(name, "metadata.name is missing")
	case u.GetNamespace() != "":
		v.problem(name, "metadata.namespace: the kind has no namespace: remove the field")
	}
	known := runtime.DeepCopyJSON(o)
	for _, path := range pruning.PruneWithOptions(known, s.structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}) {
		v.problem(name, "%s is no field of the kind", path)
	}
	defaulting.Default(known, s.structural)
	errs := validation.ValidateCustomResource(nil, known, s.openapi)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, known)...)
	if len(errs) == 0 { // as the API server: rules may depend on the types
		errs, _ = s.rules.Validate(ctx, nil, s.structural, known, nil, celconfig.RuntimeCELCostBudget)
	}
	for _, err := range errs {
		v.problem(name, "%v", err)
	}
	if len(errs) > 0 {
		return nil
	}
	return v.keep(known)
}

// keep keeps an object for the checks of all together.
func (v *validator) keep(o map[string]any) (err error) {
	from := runtime.DefaultUnstructuredConverter.FromUnstructured
	switch o["kind"] {
	case "IPAddressPool":
		v.pools = append(v.pools, v1alpha1.IPAddressPool{})
		err = from(o, &v.pools[len(v.pools)-1])
	case "L2Advertisement":
		v.l2 = append(v.l2, v1alpha1.L2Advertisement{})
		err = from(o, &v.l2[len(v.l2)-1])
	case "BGPAdvertisement":
		v.bgp = append(v.bgp, v1alpha1.BGPAdvertisement{})
		err = from(o, &v.bgp[len(v.bgp)-1])
	case "BGPPeer":
		v.peers = append(v.peers, v1alpha1.BGPPeer{})
		err = from(o, &v.peers[len(v.peers)-1])
	case "BFDProfile":
		v.profiles = append(v.profiles, (&unstructured.Unstructured{Object: o}).GetName())
	}
	return err
}

// together checks the objects against one another, as ironlb-ccm does.
func (v *validator) together() error {
	alloc, all, labels := pools.New(), []pools.Pool{}, map[string]map[string]string{}
	for i := range v.pools {
		p, err := v1alpha1.ParsePool(&v.pools[i])
		if err != nil {
			v.problem("IPAddressPool "+v.pools[i].Name, "%v", err)
			continue
		}
		labels[p.Name] = v.pools[i].Labels
		if labels[p.Name] == nil {
			labels[p.Name] = map[string]string{}
		}
		all = append(all, p)
	}
	alloc.SetPools(all)
	for _, p := range all {
		if s, _ := alloc.PoolStatus(p.Name); s.State != pools.PoolReady {
			v.problem("IPAddressPool "+p.Name, "%s %s: list every address once", strings.ToLower(string(s.State)), s.Overlaps)
		}
	}
	for i := range v.l2 {
		s, err := advertisement.OfL2(&v.l2[i])
		v.selection("L2Advertisement "+v.l2[i].Name, s, err, s.Missing(v.l2[i].Spec.IPAddressPoolSelectors, labels))
	}
	var peers []string
	for i := range v.peers {
		p := &v.peers[i]
		peers = append(peers, p.Name)
		if profile := p.Spec.BFDProfile; profile != "" && !slices.Contains(v.profiles, profile) {
			v.problem("BGPPeer "+p.Name, "spec.bfdProfile: the files have no BFDProfile %s", profile)
		}
	}
	for i := range v.bgp {
		s, err := advertisement.OfBGP(&v.bgp[i])
		v.selection("BGPAdvertisement "+v.bgp[i].Name, s, err, s.Missing(v.bgp[i].Spec.IPAddressPoolSelectors, labels))
		for _, name := range v.bgp[i].Spec.Peers {
			if !slices.Contains(peers, name) {
				v.problem("BGPAdvertisement "+v.bgp[i].Name, "spec.peers: the files have no BGPPeer %s", name)
			}
		}
	}
	return nil
}

func (v *validator) selection(object string, s advertisement.Selection, err error, missing string) {
	if err != nil {
		v.problem(object, "%v", err)
	}
	if missing != "" {
		v.problem(object, "%s", missing)
	}
	for _, repeated := range s.Repeated {
		v.problem(object, "%s", repeated)
	}
}
