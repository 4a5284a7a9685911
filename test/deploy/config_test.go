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
