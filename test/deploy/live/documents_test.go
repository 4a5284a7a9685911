package live

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/ironlb/ironlb/test/eventually"
)

// documented runs the command of a document that begins with a prefix, with changed words, and returns its output.
func (f fixture) documented(document, prefix string, words ...string) string {
	f.Helper()
	text, err := os.ReadFile(filepath.Join(f.Root(), "docs/tasks", document))
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, prefix) {
			continue
		}
		kubectl := filepath.Dir(f.Program("kubectl"))
		out, err := f.Exec(f.ctx, "sh", "-c", "PATH="+kubectl+":$PATH; cd "+f.TempDir()+"; "+strings.NewReplacer(words...).Replace(line))
		if err != nil {
			f.Fatalf("%s: %s: %v\n%s", document, line, err, out)
		}
		return out
	}
	f.Fatalf("%s has no command %q", document, prefix)
	return ""
}

// followDocuments runs commands of the documents while Service plain is served.
func (f fixture) followDocuments() {
	f.Helper()
	if have := f.documented("troubleshoot.md", "kubectl get service NAME -o jsonpath", "NAME", "plain"); !strings.Contains(have, "ironlb.io/Allocated=True Allocated: ") {
		f.Errorf("the conditions of Service plain are %q", have)
	}
	// The objects of MetalLB have the same names of kinds.
	const list = " && kubectl apply --dry-run=server -o name -f metallb.yaml"
	want := f.kubectl("get", "ipaddresspools,l2advertisements,bgppeers", "-o", "name")
	if have := f.documented("migrate-from-metallb.md", "kubectl get ipaddresspools", ".metallb.io", ".ironlb.io", ">metallb.yaml", ">metallb.yaml"+list); strings.TrimSpace(have) != want {
		f.Errorf("the exported objects are %q, want %q", have, want)
	}
	f.kubectl("create", "clusterrolebinding", "reader", "--clusterrole=edit", "--user=reader")
	for _, kind := range []string{"ipaddresspools", "virtualips", "speakerstatuses"} {
		eventually.Nil(f, patience, "a user with the role edit reads "+kind, func(context.Context) error {
			_, err := f.Kubectl(f.ctx, "auth", "can-i", "list", kind+".ironlb.io", "--as=reader")
			return err
		})
	}
	if _, err := f.Kubectl(f.ctx, "auth", "can-i", "create", "ipaddresspools.ironlb.io", "--as=reader"); err == nil {
		f.Error("a user with the role edit creates pools")
	}
}
