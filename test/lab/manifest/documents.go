package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// File is the rendered file, relative to the checkout.
const File = "deploy/ironlb.yaml"

// Document is the text of one object.
type Document struct {
	Kind, Namespace, Name string
	Text                  string // YAML, comments included
}

// Documents are objects in the order of the file.
type Documents []Document

// Load returns the objects of a file of the checkout in root.
func Load(root, file string) (Documents, error) {
	data, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return nil, fmt.Errorf("read the manifests: %w", err)
	}
	docs, err := Split(string(data))
	if err != nil {
		return nil, fmt.Errorf("read the manifests: %s: %w", file, err)
	}
	return docs, nil
}

// Split returns the objects of a text, without documents that hold only comments.
func Split(text string) (Documents, error) {
	var docs Documents
	for i, part := range strings.Split("\n"+text, "\n---\n") {
		var meta struct {
			Kind     string `json:"kind"`
			Metadata struct {
				Namespace string `json:"namespace"`
				Name      string `json:"name"`
			} `json:"metadata"`
		}
		if err := yaml.Unmarshal([]byte(part), &meta); err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		if meta.Kind == "" {
			continue
		}
		docs = append(docs, Document{meta.Kind, meta.Metadata.Namespace, meta.Metadata.Name, strings.TrimPrefix(part, "\n")})
	}
	return docs, nil
}

// Only returns the objects of these kinds.
func (d Documents) Only(kinds ...string) Documents {
	return slices.DeleteFunc(slices.Clone(d), func(doc Document) bool { return !slices.Contains(kinds, doc.Kind) })
}

// Accounts returns the objects for programs outside of Pods: CRDs, namespace, ServiceAccounts, their rights and the
// limits of these.
func (d Documents) Accounts() Documents {
	return d.Only("Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
		"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
}

// Find returns the object, or an error that names it.
func (d Documents) Find(kind, name string) (Document, error) {
	i := slices.IndexFunc(d, func(doc Document) bool { return doc.Kind == kind && doc.Name == name })
	if i < 0 {
		return Document{}, fmt.Errorf("find %s %s in the manifests: there is none", kind, name)
	}
	return d[i], nil
}

// String returns the text of a file with these objects.
func (d Documents) String() string {
	var texts []string
	for _, doc := range d {
		texts = append(texts, strings.TrimRight(doc.Text, "\n")+"\n")
	}
	return strings.Join(texts, "---\n")
}
