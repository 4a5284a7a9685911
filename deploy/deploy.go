// Package deploy holds the CustomResourceDefinitions of the chart, for ironlb-ccm, which applies them before an
// upgrade.
package deploy

import (
	"embed"
	"fmt"
	"path"
	"strings"
)

//go:embed chart/ironlb/crds/*.yaml
var crds embed.FS

// CRDs returns the CustomResourceDefinitions in YAML, by name.
func CRDs() (map[string][]byte, error) {
	const dir = "chart/ironlb/crds"
	files, err := crds.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	all := map[string][]byte{}
	for _, f := range files {
		// controller-gen names the file group_plural, the API names the object plural.group.
		group, plural, ok := strings.Cut(strings.TrimSuffix(f.Name(), ".yaml"), "_")
		if !ok {
			return nil, fmt.Errorf("%s is no CustomResourceDefinition: its name must be group_plural.yaml", f.Name())
		}
		if all[plural+"."+group], err = crds.ReadFile(path.Join(dir, f.Name())); err != nil {
			return nil, err
		}
	}
	return all, nil
}
