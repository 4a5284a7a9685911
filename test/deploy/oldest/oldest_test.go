package oldest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

const deploy = "../../../deploy"

// newScheme returns a scheme with Kubernetes' own APIs and CustomResourceDefinitions.
func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := scheme.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	install.Install(s)
	return s
}

// serializerOf returns a strict decoder.
func serializerOf(s *runtime.Scheme) runtime.Decoder {
	return serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDeserializer()
}

// documents returns the objects of a YAML file.
func documents(t *testing.T, file string) (all [][]byte) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data)))
	defer d.Close()
	buffer := make([]byte, len(data)+1)
	for {
		n, err := d.Read(buffer)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if bytes.Contains(buffer[:n], []byte("\nkind: ")) { // not only a comment
			all = append(all, bytes.Clone(buffer[:n]))
		}
	}
}

// TestOldest: every installed object has only fields of the oldest supported Kubernetes. The API server of that version
// accepts the CustomResourceDefinitions, with their CEL functions.
func TestOldest(t *testing.T) {
	s := newScheme(t)
	strict := serializerOf(s)
	kinds, rules := map[string]int{}, 0
	for _, file := range []string{"ironlb.yaml", "uninstall.yaml"} {
		for _, doc := range documents(t, filepath.Join(deploy, file)) {
			obj, kind, err := strict.Decode(doc, nil, nil)
			if err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			kinds[kind.Kind]++
			if kind.Kind != "CustomResourceDefinition" {
				continue
			}
			s.Default(obj)
			var crd apiextensions.CustomResourceDefinition
			if err := s.Convert(obj, &crd, nil); err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			for _, err := range validation.ValidateCustomResourceDefinition(t.Context(), &crd) {
				t.Errorf("%s: %v", file, err)
			}
			rules += strings.Count(string(doc), "rule:")
		}
	}
	if kinds["CustomResourceDefinition"] < 8 || kinds["DaemonSet"] < 2 || kinds["ClusterRole"] < 2 || rules == 0 {
		t.Errorf("objects by kind: %v, %d rules of CEL", kinds, rules)
	}
	t.Logf("objects by kind: %v, %d rules of CEL", kinds, rules)
}

// TestVersion: the version of the libraries is the one that the chart and the guide name.
func TestVersion(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`k8s.io/apiextensions-apiserver v0\.(\d+)\.`).FindSubmatch(mod)
	if found == nil {
		t.Fatalf("go.mod names no version:\n%s", mod)
	}
	minor := string(found[1])
	for file, text := range map[string]string{
		"chart/ironlb/Chart.yaml":  `kubeVersion: ">=1.` + minor + `.0-0"`,
		"chart/ironlb/README.md":   "Requires Kubernetes 1." + minor + " or newer",
		"../docs/tasks/install.md": "| Kubernetes | 1." + minor + " and later",
	} {
		data, err := os.ReadFile(filepath.Join(deploy, file))
		if err != nil || !strings.Contains(string(data), text) {
			t.Errorf("%s lacks %q: %v", file, text, err)
		}
	}
}
