// Package deps enforces the import rules of ARCHITECTURE.md.
package deps

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/ironlb/ironlb"

// pkg is a package as `go list -json` prints it.
type pkg struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
}

// rule limits what the packages at or below a path may import.
type rule struct {
	// of names a package of this module; "/..." includes all packages below it.
	of string
	// std limits direct and indirect imports to the standard library and this module.
	std bool
	// own are the packages of this module that may be imported directly; nil means any that the general rules allow.
	own []string
	// never are prefixes of packages of other modules that may not be imported directly.
	never []string
}

var kubernetes = []string{"k8s.io/", "sigs.k8s.io/controller-runtime"}

// goBGP is limited to speaker/bgp/gobgp, so that it can be replaced.
var goBGP = []string{"github.com/osrg/gobgp/"}

var rules = []rule{
	{of: "pools", std: true, own: []string{}},
	{of: "ipvs", std: true, own: []string{}},
	{of: "speaker/plan", std: true, own: []string{"speaker/forwarding", "speaker/incremental", "speaker/ownership", "speaker/routes", "speaker/view"}},
	{of: "speaker/forwarding", std: true, own: []string{"pools", "ipvs", "speaker/incremental", "speaker/view"}},
	{of: "speaker/ownership", std: true, own: []string{"pools", "speaker/incremental", "speaker/view"}},
	{of: "speaker/routes", std: true, own: []string{"pools", "speaker/incremental", "speaker/view"}},
	{of: "speaker/report", std: true, own: []string{"speaker/routes", "speaker/view"}},
	{of: "speaker/view", std: true, own: []string{"pools", "ipvs"}},
	{of: "speaker/incremental", std: true, own: []string{}},
	{of: "ccm/placement", std: true, own: []string{"pools"}},
	{of: "loglines", std: true, own: []string{}},

	// Drivers take and return values; they import neither the loop nor one another.
	{of: "ipvs/kernel", own: []string{"ipvs"}, never: kubernetes},
	{of: "ipvs/nft", own: []string{"ipvs", "ipvs/nftbatch", "ipvs/nftopen", "ipvs/nftwatch"}, never: kubernetes},
	{of: "ipvs/nftlb", own: []string{"ipvs", "ipvs/nftbatch", "ipvs/nftopen", "ipvs/nftwatch"}, never: kubernetes},
	{of: "ipvs/direct", own: []string{"ipvs", "ipvs/inetconf", "ipvs/nftbatch", "ipvs/nftopen", "ipvs/nftwatch", "ipvs/routewatch"}, never: kubernetes},
	{of: "ipvs/returnroute", own: []string{"ipvs", "ipvs/inetconf", "ipvs/nftopen", "ipvs/nftwatch", "ipvs/routewatch"}, never: kubernetes},
	{of: "ipvs/inetconf", own: []string{}, never: kubernetes},
	{of: "ipvs/nftopen", own: []string{}, never: kubernetes},
	{of: "ipvs/nftbatch", own: []string{"ipvs"}, never: kubernetes},
	{of: "ipvs/nftwatch", own: []string{}, never: kubernetes},
	{of: "ipvs/routewatch", own: []string{}, never: kubernetes},
	{of: "ipvs/conntrack", own: []string{"ipvs"}, never: kubernetes},
	{of: "ipvs/health", own: []string{"ipvs"}, never: kubernetes},
	{of: "speaker/link", own: []string{"speaker/link/dump"}, never: kubernetes},
	{of: "speaker/link/dump", own: []string{}, never: kubernetes},
	{of: "speaker/kubeproxy", own: []string{"speaker/link/dump"}, never: kubernetes},
	{of: "speaker/nodecheck", own: []string{"ipvs", "speaker/forwarding", "speaker/kubeproxy", "speaker/report", "speaker/view"}, never: kubernetes},
	{of: "speaker/member", own: []string{"speaker/view", "speaker/neighbor", "speaker/ppoll", "speaker/priority"}, never: kubernetes},
	{of: "speaker/reach", own: []string{"speaker/view", "speaker/neighbor", "speaker/ppoll"}, never: kubernetes},
	{of: "speaker/neighbor", own: []string{"speaker/link/dump"}, never: kubernetes},
	{of: "speaker/l2", own: []string{"loglines", "speaker/ownership", "speaker/view", "speaker/link/dump"}, never: kubernetes},
	{of: "speaker/unixsocket", own: []string{}, never: kubernetes},
	{of: "speaker/bgp", own: []string{"speaker/routes", "speaker/unixsocket", "speaker/view"}, never: slices.Concat(kubernetes, goBGP)},
	{of: "speaker/bgp/gobgp", own: []string{"speaker/routes", "speaker/view"}, never: kubernetes},
	{of: "speaker/bfd", own: []string{"speaker/routes", "speaker/view", "speaker/ppoll", "speaker/priority"}, never: kubernetes},
	{of: "speaker/priority", own: []string{}, never: kubernetes},
	{of: "speaker/ppoll", own: []string{}, never: kubernetes},

	// Drivers are passed to the loop.
	{of: "speaker", own: []string{"pools", "ipvs", "loglines", "speaker/view", "speaker/plan", "speaker/dataplane", "speaker/advertise", "speaker/status"}, never: kubernetes},
	{of: "speaker/advertise", own: []string{"speaker/ownership", "speaker/plan", "speaker/routes", "speaker/view"}, never: kubernetes},
	{of: "speaker/status", own: []string{"pools", "speaker/ownership", "speaker/plan", "speaker/report", "speaker/routes", "speaker/view"}, never: kubernetes},
	{of: "speaker/traffic", own: []string{"ipvs", "speaker/forwarding", "speaker/plan"}, never: kubernetes},
	{of: "speaker/scrape", std: true, own: []string{}},
	{of: "speaker/dataplane", std: true, own: []string{"pools", "ipvs", "speaker/forwarding", "speaker/plan", "speaker/view"}},
	{of: "speaker/kube", own: []string{"pools", "pools/v1alpha1", "ipvs", "speaker/report", "speaker/routes", "speaker/view"}},

	// The controllers and the speaker meet only in the Kubernetes API.
	{of: "ccm", own: []string{
		"pools/v1alpha1", "ccm/loop", "ccm/watch", "ccm/servicerecord", "ccm/allocation", "ccm/addresspool", "ccm/virtualip", "ccm/bgpstatus", "ccm/warnings",
	}},
	// The parts of ccm meet through interfaces that the user of a part declares: none imports the allocation.
	{of: "ccm/allocation", own: []string{"pools", "pools/v1alpha1", "ccm/servicerecord", "ccm/watch"}},
	{of: "ccm/addresspool", own: []string{"pools", "pools/v1alpha1", "ccm/advertisement", "ccm/condition", "ccm/loop", "ccm/watch"}},
	{of: "ccm/virtualip", own: []string{
		"pools", "pools/v1alpha1", "loglines", "ccm/advertisement", "ccm/condition", "ccm/loop", "ccm/placement", "ccm/servicerecord", "ccm/watch",
	}},
	{of: "ccm/bgpstatus", own: []string{"pools", "pools/v1alpha1", "ccm/advertisement", "ccm/condition", "ccm/loop", "ccm/watch"}},
	{of: "ccm/warnings", own: []string{"pools", "pools/v1alpha1", "ccm/advertisement", "ccm/condition", "ccm/servicerecord", "ccm/watch"}},
	{of: "ccm/install", own: []string{"pools/v1alpha1", "ccm/condition", "ccm/servicerecord"}},
	{of: "ccm/servicerecord", own: []string{"pools", "pools/v1alpha1"}},
	{of: "ccm/advertisement", own: []string{"pools", "pools/v1alpha1", "ccm/condition"}},
	{of: "ccm/watch", own: []string{"pools", "pools/v1alpha1", "ccm/servicerecord"}},
	{of: "ccm/condition", std: true, own: []string{}},
	{of: "ccm/loop", own: []string{}},
	{of: "ccm/ccmtest", own: []string{"pools", "pools/v1alpha1"}},
	{of: "pools/v1alpha1", own: []string{"pools"}},
	{of: "deploy", std: true, own: []string{}},
	{of: "docs/pictures", std: true, own: []string{}},
	{
		of:    "cmd/kubectl-ironlb/diagnose",
		own:   []string{"ccm/advertisement", "ccm/condition", "ccm/servicerecord", "ccm/watch", "pools", "pools/v1alpha1"},
		never: []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime"},
	},
	{
		of: "cmd/kubectl-ironlb/connectivity", own: []string{"cmd/internal/echo", "cmd/kubectl-ironlb/diagnose", "ccm/advertisement", "pools/v1alpha1"},
		never: []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime"},
	},
	{
		of: "cmd/kubectl-ironlb/metallb", own: []string{"pools", "pools/v1alpha1", "ccm/servicerecord"},
		never: []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime"},
	},

	// The simulation drives pure packages only.
	{of: "test/sim", own: []string{"pools", "ipvs", "speaker/view", "speaker/forwarding", "speaker/plan", "speaker/report", "speaker/member", "speaker/reach", "ccm/placement"}, never: kubernetes},
}

// mobyIPVS is limited to the driver, which has what the library lacks (docs/design/ipvs-driver.md).
const mobyIPVS = "github.com/moby/ipvs"

// TestOneUserOfMobyIPVS also keeps its Flush, which deletes the virtual servers of every program, out of reach:
// ipvs/kernel has no call of it.
func TestOneUserOfMobyIPVS(t *testing.T) {
	for _, p := range list(t) {
		from, ours := strings.CutPrefix(p.ImportPath, module+"/")
		if ours && from != "ipvs/kernel" && !strings.HasPrefix(from, "test/") && slices.Contains(p.Imports, mobyIPVS) {
			t.Errorf("%s may not import %s", p.ImportPath, mobyIPVS)
		}
	}
}

func TestImports(t *testing.T) {
	pkgs := list(t)
	for _, r := range rules {
		p, ok := pkgs[module+"/"+r.of]
		if !ok {
			t.Errorf("rule for %s: there is no such package", r.of)
			continue
		}
		for _, problem := range r.check(p, pkgs) {
			t.Error(problem)
		}
	}
}

// TestNoPackageImportsTestOrCmd holds for every package of the product.
func TestNoPackageImportsTestOrCmd(t *testing.T) {
	for _, p := range list(t) {
		from, ours := strings.CutPrefix(p.ImportPath, module+"/")
		if !ours || strings.HasPrefix(from, "test/") || strings.HasPrefix(from, "cmd/") {
			continue
		}
		for _, i := range p.Imports {
			if strings.HasPrefix(i, module+"/test/") || strings.HasPrefix(i, module+"/cmd/") {
				t.Errorf("%s imports %s", p.ImportPath, i)
			}
		}
	}
}

// limited are modules with the only package of the product that may import them.
var limited = map[string]string{
	"github.com/mdlayher/arp":      "speaker/l2",
	"github.com/mdlayher/ethernet": "speaker/l2",
	"github.com/mdlayher/ndp":      "speaker/l2",
	"github.com/mdlayher/packet":   "speaker/l2",
}

func TestLimitedModules(t *testing.T) {
	used := map[string]bool{}
	for _, p := range list(t) {
		from, ours := strings.CutPrefix(p.ImportPath, module+"/")
		if !ours || strings.HasPrefix(from, "test/") {
			continue
		}
		for _, i := range p.Imports {
			only, is := limited[i]
			if used[i] = true; is && from != only {
				t.Errorf("%s may not import %s", p.ImportPath, i)
			}
		}
	}
	for i := range limited {
		if !used[i] {
			t.Errorf("no package imports %s", i)
		}
	}
}

// TestProductIsRuled finds new packages without a rule.
func TestProductIsRuled(t *testing.T) {
	for path := range list(t) {
		from, ours := strings.CutPrefix(path, module+"/")
		if !ours || strings.HasPrefix(from, "test/") || strings.HasPrefix(from, "cmd/") || strings.HasPrefix(from, "ipvs/ipvstest") {
			continue
		}
		if !slices.ContainsFunc(rules, func(r rule) bool { return r.of == from }) {
			t.Errorf("%s has no rule in test/deps: add its permitted imports", from)
		}
	}
}

// TestRulesBite shows that a forbidden import is found.
func TestRulesBite(t *testing.T) {
	pkgs := map[string]pkg{
		"k8s.io/api/core/v1":      {ImportPath: "k8s.io/api/core/v1"},
		"fmt":                     {ImportPath: "fmt", Standard: true},
		module + "/speaker/link":  {ImportPath: module + "/speaker/link"},
		module + "/speaker/plain": {ImportPath: module + "/speaker/plain"},
	}
	bad := pkg{
		ImportPath: module + "/speaker/plan",
		Imports:    []string{"fmt", "k8s.io/api/core/v1", module + "/speaker/link"},
		Deps:       []string{"fmt", "k8s.io/api/core/v1", module + "/speaker/link"},
	}
	r := rule{of: "speaker/plan", std: true, own: []string{"ipvs"}, never: kubernetes}
	if got := len(r.check(bad, pkgs)); got != 3 {
		t.Errorf("found %d problems, want 3: outside the standard library, a driver, Kubernetes", got)
	}
	good := pkg{ImportPath: module + "/speaker/plan", Imports: []string{"fmt"}, Deps: []string{"fmt"}}
	if got := r.check(good, pkgs); len(got) != 0 {
		t.Errorf("found %v in a package without fault", got)
	}
}

func (r rule) check(p pkg, all map[string]pkg) (problems []string) {
	if r.std {
		for _, d := range p.Deps {
			if !all[d].Standard && !strings.HasPrefix(d, module+"/") {
				problems = append(problems, p.ImportPath+" reaches "+d+", which is outside the standard library")
			}
		}
	}
	for _, i := range p.Imports {
		if own, ours := strings.CutPrefix(i, module+"/"); ours && r.own != nil && !slices.Contains(r.own, own) {
			problems = append(problems, p.ImportPath+" may not import "+i)
		}
		if slices.ContainsFunc(r.never, func(prefix string) bool { return strings.HasPrefix(i, prefix) }) {
			problems = append(problems, p.ImportPath+" may not import "+i)
		}
	}
	return problems
}

// list returns every package of the module and all its dependencies, by import path.
func list(t *testing.T) map[string]pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,Imports,Deps", module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	pkgs := map[string]pkg{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return pkgs
		}
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		pkgs[p.ImportPath] = p
	}
}
