package manifest

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestRights checks that every right is listed once, and that docs/reference/privileges.md has exactly these rights.
func TestRights(t *testing.T) {
	const root, doc = "../../..", "docs/reference/privileges.md"
	all, err := Rights(root)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(root + "/" + doc)
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) == 6 && strings.Contains(cells[3], "`") {
			documented[strings.TrimSpace(cells[1])+" "+strings.TrimSpace(cells[2])+" "+strings.Trim(cells[3], " `")] = strings.TrimSpace(cells[4]) != ""
		}
	}
	seen := map[string]bool{}
	for _, r := range all {
		id := fmt.Sprintf("%s %s %v", r.Container, r.GrantedBy(), r)
		if seen[id] {
			t.Errorf("the manifests grant twice: %s", id)
		}
		seen[id] = true
		if !documented[id] {
			t.Errorf("%s has no row for %q: run make test-privileges, and take its table", doc, id)
		}
	}
	for id := range documented {
		if !seen[id] {
			t.Errorf("%s has a row for %q, which the manifests do not grant: remove it", doc, id)
		}
	}
}
