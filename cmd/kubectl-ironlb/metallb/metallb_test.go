package metallb

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/ironlb/ironlb/test/lab/tools"
)

// TestEveryField: there is a rule for every field of MetalLB's kinds, and none for others. Every kind is converted or
// is a report.
func TestEveryField(t *testing.T) {
	build, err := tools.New(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	root, err := build.MetalLB()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "config", "crd", "bases", "*.yaml"))
	if err != nil || len(files) < 9 {
		t.Fatalf("%d CustomResourceDefinitions in %s: %v", len(files), root, err)
	}
	has := map[string]map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatal(err)
		}
		kind := crd.Spec.Names.Kind
		if slices.Contains(reports, kind) {
			continue
		}
		has[kind] = map[string]bool{}
		for _, v := range crd.Spec.Versions {
			if !slices.Contains(Versions(kind), v.Name) {
				t.Errorf("%s has version %s: the importer does not know it", kind, v.Name)
			}
			for name := range v.Schema.OpenAPIV3Schema.Properties {
				if !slices.Contains([]string{"apiVersion", "kind", "metadata", "spec", "status"}, name) {
					t.Errorf("%s has a field %s", kind, name)
				}
			}
			fields(v.Schema.OpenAPIV3Schema.Properties["spec"], "", has[kind])
		}
	}
	if got := slices.Sorted(maps.Keys(has)); !slices.Equal(got, Kinds()) {
		t.Errorf("MetalLB has the kinds %v, rules have %v", got, Kinds())
	}
	for kind, of := range has {
		if got, want := slices.Sorted(maps.Keys(rules[kind])), slices.Sorted(maps.Keys(of)); !slices.Equal(got, want) {
			t.Errorf("the rules of %s are for\n%v, its fields are\n%v", kind, got, want)
		}
	}
}

// fields collects the paths of all fields. A label selector is one field.
func fields(p apiextensionsv1.JSONSchemaProps, prefix string, to map[string]bool) {
	for name, q := range p.Properties {
		path := strings.TrimPrefix(prefix+"."+name, ".")
		to[path] = true
		inside := path
		if q.Items != nil {
			inside, q = path+"[]", *q.Items.Schema
		}
		if _, selector := q.Properties["matchLabels"]; !selector {
			fields(q, inside, to)
		}
	}
}

// TestOtherTypes: a value of another type than MetalLB's is kept or refused, and never lost.
func TestOtherTypes(t *testing.T) {
	values := []any{"text", int64(-1), 1.5, true, []any{"a", int64(1)}, []any{map[string]any{"name": int64(1)}}, map[string]any{"name": int64(1)}}
	for kind, of := range rules {
		for path := range of {
			for _, value := range values {
				first, rest, nested := strings.Cut(strings.ReplaceAll(path, "[]", ""), ".")
				spec := map[string]any{first: value}
				if nested {
					spec[first] = map[string]any{rest: value}
				}
				if strings.Contains(path, "[]") {
					spec[first] = []any{spec[first]}
				}
				o := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": Group + "/v1beta1", "kind": kind, "metadata": map[string]any{"name": "x"}, "spec": spec,
				}}
				if r, err := Convert([]*unstructured.Unstructured{o}, nil, ""); err != nil || len(r.Rows) == 0 {
					t.Errorf("%s %s: %v: rows %v, %v", kind, path, value, r, err)
				}
			}
		}
	}
}
