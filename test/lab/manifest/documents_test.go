package manifest

import (
	"slices"
	"strings"
	"testing"
)

func TestSplit(t *testing.T) {
	docs, err := Split("---\n# first\nkind: Namespace\nmetadata: {name: a}\n---\n# nothing\n---\nkind: Role\nmetadata: {name: b, namespace: a}\nx: |\n  a ---\n")
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, d := range docs {
		have = append(have, d.Kind+" "+d.Namespace+"/"+d.Name)
	}
	if want := []string{"Namespace /a", "Role a/b"}; !slices.Equal(have, want) {
		t.Errorf("have %q, want %q", have, want)
	}
	if again, err := Split(docs.String()); err != nil || !slices.Equal(again, docs) {
		t.Errorf("written and read again: %v, %v", again, err)
	}
	if _, err := docs.Find("Role", "c"); err == nil || !strings.Contains(err.Error(), "Role c") {
		t.Errorf("find what is not there: %v", err)
	}
	if _, err := Split("kind: [\n"); err == nil || !strings.Contains(err.Error(), "document 1") {
		t.Errorf("split what is no YAML: %v", err)
	}
}
