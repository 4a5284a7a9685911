package tools

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// patched is an upstream package built with changes. Go does not replace files of its module cache. Therefore the
// package's folders are overlaid on empty folders of the building module.
type patched struct {
	module  string // "k8s.io/kubernetes"
	folders []folder
	edits   []edit
}

// folder maps a folder of an upstream module to the folder of its Go files in the building module.
type folder struct{ from, to string }

// edit replaces a text in one of the files.
type edit struct {
	file     string // in the module
	old, new string
	count    int // occurrences of old; any other number is an error
}

// patchedTests enables two tests for addresses with ipMode Proxy. Upstream skips them because the expected behaviour is
// undecided (https://issues.k8s.io/123714), and IronLB passes them.
var patchedTests = patched{
	module:  "k8s.io/kubernetes",
	folders: []folder{{"test/e2e", "e2e"}, {"test/e2e/network", "e2e/network"}},
	edits: []edit{
		{
			file:  "test/e2e/e2e_test.go",
			old:   `"k8s.io/kubernetes/test/e2e/network"`,
			new:   `"github.com/ironlb/ironlb/test/tools/kubernetes/e2e/network"`,
			count: 1,
		},
		{
			file:  "test/e2e/network/loadbalancer.go",
			old:   `ingress.IP == "" || (ingress.IPMode != nil && *ingress.IPMode == v1.LoadBalancerIPModeProxy)`,
			new:   `ingress.IP == ""`,
			count: 2,
		},
	},
}

// apply returns the edited text.
func (e edit) apply(text string) (string, error) {
	if n := strings.Count(text, e.old); n != e.count {
		return "", fmt.Errorf("edit %s: %q occurs %d times and not %d: adapt the edit to this version of the module", e.file, e.old, n, e.count)
	}
	return strings.ReplaceAll(text, e.old, e.new), nil
}

// overlay writes the edited files into dir, and the file for go's -overlay. It returns the path of the latter. module
// is the folder of the module that builds the package.
func (p *patched) overlay(module, dir string) (string, error) {
	upstream, err := download(module, p.module)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	edited := 0
	for _, f := range p.folders {
		files, err := filepath.Glob(filepath.Join(upstream, f.from, "*.go"))
		if err != nil {
			return "", err
		}
		for _, file := range files {
			name := filepath.Join(f.from, filepath.Base(file))
			i := slices.IndexFunc(p.edits, func(e edit) bool { return e.file == name })
			at := filepath.Join(module, f.to, filepath.Base(file))
			if replace[at] = file; i < 0 {
				continue
			}
			edited++
			replace[at] = filepath.Join(dir, fmt.Sprintf("%d-%s", i, filepath.Base(file)))
			if err := p.edits[i].write(file, replace[at]); err != nil {
				return "", err
			}
		}
	}
	if edited != len(p.edits) {
		return "", fmt.Errorf("edit module %s: %d of %d files found: adapt the edits to this version of the module", p.module, edited, len(p.edits))
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, data, 0o644)
}

// download returns the folder of an upstream module, at the version required by the module in a folder.
func download(in, upstream string) (string, error) {
	cmd := exec.Command("go", "mod", "download", "-json", upstream)
	cmd.Dir, cmd.Env = in, append(os.Environ(), "GOFLAGS=")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("download module %s: %w", upstream, stderrOf(err))
	}
	var found struct{ Dir string }
	if err := json.Unmarshal(out, &found); err != nil {
		return "", fmt.Errorf("download module %s: %w", upstream, err)
	}
	return found.Dir, nil
}

// write writes the edited text of a file to another.
func (e edit) write(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	edited, err := e.apply(string(text))
	if err != nil {
		return err
	}
	return os.WriteFile(to, []byte(edited), 0o644)
}
