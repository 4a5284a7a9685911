package live

import (
	"os"
	"path/filepath"
	"strings"
)

// documented runs the command of a document that begins with a prefix, with changed words, and returns its output.
func (w world) documented(document, prefix string, words ...string) string {
	w.Helper()
	text, err := os.ReadFile(filepath.Join(w.Root(), "docs/tasks", document))
	if err != nil {
		w.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, prefix) {
			continue
		}
		kubectl := filepath.Dir(w.Program("kubectl"))
		out, err := w.Exec(w.ctx, "sh", "-c", "PATH="+kubectl+":$PATH; cd "+w.TempDir()+"; "+strings.NewReplacer(words...).Replace(line))
		if err != nil {
			w.Fatalf("%s: %s: %v\n%s", document, line, err, out)
		}
		return out
	}
	w.Fatalf("%s has no command %q", document, prefix)
	return ""
}

// followDocuments runs commands of the documents while Service plain is served.
func (w world) followDocuments() {
	w.Helper()
	if have := w.documented("troubleshoot.md", "kubectl get service NAME -o jsonpath", "NAME", "plain"); !strings.Contains(have, "ironlb.io/Allocated=True Allocated: ") {
		w.Errorf("the conditions of Service plain are %q", have)
	}
	// The objects of MetalLB have the same names of kinds.
	const list = " && kubectl apply --dry-run=server -o name -f metallb.yaml"
	want := w.kubectl("get", "ipaddresspools,l2advertisements,bgppeers", "-o", "name")
	if have := w.documented("migrate-from-metallb.md", "kubectl get ipaddresspools", ".metallb.io", ".ironlb.io", ">metallb.yaml", ">metallb.yaml"+list); strings.TrimSpace(have) != want {
		w.Errorf("the exported objects are %q, want %q", have, want)
	}
	recorded := func(name string) string {
		return strings.Join(strings.Fields(w.documented("migrate-from-metallb.md", "kubectl get services", ">before.txt", "| grep "+name)), " ")
	}
	if have, want := recorded("plain"), "default plain "+w.kubectl("get", "service", "plain", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}"); have != want {
		w.Errorf("the record of Service plain is %q, want %q", have, want)
	}
	w.kubectl("create", "clusterrolebinding", "reader", "--clusterrole=edit", "--user=reader")
	for _, kind := range []string{"ipaddresspools", "virtualips", "speakerstatuses"} {
		w.until("a user with the role edit reads "+kind, func() bool {
			_, err := w.Kubectl(w.ctx, "auth", "can-i", "list", kind+".ironlb.io", "--as=reader")
			return err == nil
		})
	}
	if _, err := w.Kubectl(w.ctx, "auth", "can-i", "create", "ipaddresspools.ironlb.io", "--as=reader"); err == nil {
		w.Error("a user with the role edit creates pools")
	}
}
