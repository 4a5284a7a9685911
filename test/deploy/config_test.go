package deploy

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// ownValues are the fields of the speaker's configuration file that are values of the chart themselves.
var ownValues = []string{"dataplane", "forwarding", "externalIPCIDRs", "ignoreExcludeLB", "ipv6Forwarding", "serviceProxy", "stateDir"}

// TestSpeakerConfig: the schema of the chart accepts each documented field of the speaker's configuration file.
func TestSpeakerConfig(t *testing.T) {
	root := filepath.Join("..", "..")
	doc, err := os.ReadFile(filepath.Join(root, "docs", "reference", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z][a-zA-Z0-9.]*)` \\|").FindAllStringSubmatch(string(doc), -1) {
		want[m[1]] = true
	}
	for _, name := range ownValues {
		if !want[name] {
			t.Errorf("configuration.md does not describe %s", name)
		}
		delete(want, name)
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy", "chart", "ironlb", "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema schemaProperty
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	schema.Properties["speaker"].Properties["config"].fields("", have)
	if !maps.Equal(have, want) {
		t.Errorf("the schema has the fields\n%q\nconfiguration.md describes\n%q",
			slices.Sorted(maps.Keys(have)), slices.Sorted(maps.Keys(want)))
	}
}

// TestForwarding: one value is the default of forwarding of the speakers and of ironlb-ccm.
func TestForwarding(t *testing.T) {
	c := open(t)
	for flag, want := range map[string]string{"": "pod", "forwarding=direct": "direct"} {
		docs := template(t, c, "ironlb", "ironlb-system", "--set", flag)
		for _, one := range []struct{ kind, name, text string }{
			{"ConfigMap", "ironlb-speaker", "forwarding: " + want}, {"Deployment", "ironlb-ccm", "- --forwarding=" + want},
		} {
			doc, err := docs.Find(one.kind, one.name)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(doc.Text, one.text+"\n") {
				t.Errorf("with %q %s %s has no line %q", flag, one.kind, one.name, one.text)
			}
		}
	}
}

// TestSpecs: the schema of the chart accepts the fields of each kind's spec, and no others.
func TestSpecs(t *testing.T) {
	folder := filepath.Join("..", "..", "deploy", "chart", "ironlb")
	text, err := os.ReadFile(filepath.Join(folder, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties map[string]struct {
			AdditionalProperties any
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	for value, plural := range map[string]string{
		"pools": "ipaddresspools", "l2Advertisements": "l2advertisements", "bgpPeers": "bgppeers",
		"bgpAdvertisements": "bgpadvertisements", "bfdProfiles": "bfdprofiles", "communities": "communities",
	} {
		text, err := os.ReadFile(filepath.Join(folder, "crds", "ironlb.io_"+plural+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatal(err)
		}
		spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
		have, _ := json.Marshal(schema.Properties[value].AdditionalProperties)
		var names struct{ PropertyNames struct{ Enum []string } }
		if err := json.Unmarshal(have, &names); err != nil {
			t.Fatal(err)
		}
		if want := slices.Sorted(maps.Keys(spec)); !slices.Equal(names.PropertyNames.Enum, want) {
			t.Errorf("%s has the fields %q, its kind has %q", value, names.PropertyNames.Enum, want)
		}
	}
}

// schemaProperty is a part of a JSON schema.
type schemaProperty struct {
	Properties map[string]schemaProperty
}

// fields adds the names of all leaves.
func (p schemaProperty) fields(prefix string, to map[string]bool) {
	for name, q := range p.Properties {
		if len(q.Properties) == 0 {
			to[prefix+name] = true
		}
		q.fields(prefix+name+".", to)
	}
}
