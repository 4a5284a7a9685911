// Package chart renders the Helm chart in deploy/chart/ironlb with pinned versions of Helm.
package chart

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/test/lab/manifest"
	"github.com/ironlb/ironlb/test/lab/tools"
	"github.com/ironlb/ironlb/test/rare"
)

// Dir is the chart's folder, relative to the checkout.
const Dir = "deploy/chart/ironlb"

// Release and Namespace of the plain manifests.
const (
	Release   = "ironlb"
	Namespace = "ironlb-system"
)

// Versions are the pinned versions of Helm, as names of programs. `make test` runs the newest one alone.
var Versions = []string{"helm4", "helm3"}[:rare.Rounds(1, 2)]

// Chart is the chart of a checkout.
type Chart struct {
	Root  string // of the checkout
	build *tools.Build
}

// Open builds Helm, if it is missing, for the checkout that contains the working directory.
func Open(ctx context.Context, progress io.Writer, versions ...string) (*Chart, error) {
	build, err := tools.New(ctx, progress)
	if err != nil {
		return nil, err
	}
	if len(versions) == 0 {
		versions = Versions[:1]
	}
	if err := build.Pinned(ctx, versions...); err != nil {
		return nil, err
	}
	return &Chart{Root: build.Root, build: build}, nil
}

// Path of the chart.
func (c *Chart) Path() string { return filepath.Join(c.Root, Dir) }

// Program is the path of a version of Helm.
func (c *Chart) Program(version string) string { return c.build.Path(version) }

// Run runs one version of Helm without a cluster and returns its standard output. It ignores the user's environment.
func (c *Chart) Run(ctx context.Context, version string, args ...string) (string, error) {
	home, err := os.MkdirTemp("", "helm-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(home)
	cmd := exec.CommandContext(ctx, c.Program(version), args...)
	cmd.Env = []string{"HOME=" + home, "KUBECONFIG=" + os.DevNull, "PATH=" + os.Getenv("PATH")}
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", version, strings.Join(args, " "), err, bytes.TrimSpace(problems.Bytes()))
	}
	return out.String(), nil
}

// Template renders the chart as release name in a namespace, for the newest supported Kubernetes.
func (c *Chart) Template(ctx context.Context, version, release, namespace string, flags ...string) (manifest.Documents, error) {
	args := []string{"template", release, c.Path(), "--namespace", namespace, "--kube-version", Newest}
	out, err := c.Run(ctx, version, append(args, flags...)...)
	if err != nil {
		return nil, err
	}
	return manifest.Split(out)
}

// The oldest and the newest supported Kubernetes. Chart.yaml names the oldest.
const (
	Oldest = "1.32.0"
	Newest = "1.36.3"
)

// Generated returns the files that are generated from the chart, by their path in the checkout.
func (c *Chart) Generated(ctx context.Context) (map[string]string, error) {
	plain, err := c.plain(ctx)
	if err != nil {
		return nil, err
	}
	uninstall, err := c.uninstall(ctx)
	if err != nil {
		return nil, err
	}
	readme, err := c.readme()
	if err != nil {
		return nil, err
	}
	return map[string]string{
		manifest.File:                   installHeader + plain.String(),
		UninstallFile:                   uninstallHeader + uninstall.String(),
		filepath.Join(Dir, "README.md"): readme,
	}, nil
}

const installHeader = `# IronLB without Helm. Generated from deploy/chart/ironlb by "make generate": do not edit.
#
# The speakers share a key and do not start without it. Create it once:
#
#   kubectl apply --server-side -f deploy/ironlb.yaml
#   kubectl -n ironlb-system create secret generic ironlb-speaker-keys \
#     --from-literal=keys="$(head -c 32 /dev/urandom | base64)"
#
# The images are localhost/ironlb/...: import them into the nodes, or render the chart with the name of your registry.
---
`

// ownLabels are labels of objects managed by Helm.
var ownLabels = regexp.MustCompile(`(?m)^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*(\n|\z)`)

// plain returns the objects of the plain manifests in dependency order.
func (c *Chart) plain(ctx context.Context) (manifest.Documents, error) {
	docs, err := c.Template(ctx, Versions[0], Release, Namespace, "--include-crds", "--no-hooks", "--set", "namespace.create=true")
	if err != nil {
		return nil, err
	}
	for i := range docs {
		docs[i].Text = strip(docs[i].Text)
	}
	sortObjects(docs)
	return docs, nil
}

func strip(text string) string {
	text = regexp.MustCompile(`(?m)^# Source: .*\n`).ReplaceAllString(text, "")
	return strings.Trim(ownLabels.ReplaceAllString(text, ""), "\n")
}

// order is the order for kubectl apply: the first attempt succeeds.
var order = map[string]int{
	"Namespace": 1, "CustomResourceDefinition": 2, "ServiceAccount": 3, "ClusterRole": 4, "ClusterRoleBinding": 5, "Role": 6, "RoleBinding": 7,
	"ValidatingAdmissionPolicy": 8, "ValidatingAdmissionPolicyBinding": 9,
	"ConfigMap": 10, "NetworkPolicy": 11, "PodDisruptionBudget": 12, "DaemonSet": 13, "Deployment": 14, "Job": 15,
}

func rank(kind string) int {
	if n, ok := order[kind]; ok {
		return n
	}
	panic(fmt.Sprintf("the chart renders a %s, whose place in the manifests is not known; known are %q", kind, slices.Sorted(maps.Keys(order))))
}

// uninstallHeader begins deploy/uninstall.yaml.
const uninstallHeader = `# The end of an installation from deploy/ironlb.yaml. Generated from deploy/chart/ironlb by "make generate": do not edit.
#
# It releases the Services, deletes VirtualIPs and SpeakerStatuses, and removes what the speakers made on the nodes:
#
#   kubectl -n ironlb-system delete deployment,daemonset -l app.kubernetes.io/part-of=ironlb
#   kubectl apply --server-side -f deploy/uninstall.yaml
#   kubectl -n ironlb-system wait --for=condition=Complete --timeout=5m job/ironlb-uninstall
#   kubectl delete -f deploy/uninstall.yaml
#
# Pools, advertisements and their CRDs stay. This deletes them, and the namespaces with the speakers' key and the passwords of
# BGPPeers, too:
#
#   kubectl delete -f deploy/ironlb.yaml --ignore-not-found
---
`

// UninstallFile has the objects that an uninstall needs, relative to the checkout.
const UninstallFile = "deploy/uninstall.yaml"

var hookAnnotations = regexp.MustCompile(`(?m)^  annotations:\n(    helm\.sh/hook.*(\n|\z))+`)

// uninstall returns the objects that the chart creates after an uninstall.
func (c *Chart) uninstall(ctx context.Context) (manifest.Documents, error) {
	docs, err := c.Template(ctx, Versions[0], Release, Namespace)
	if err != nil {
		return nil, err
	}
	docs = slices.DeleteFunc(docs, func(d manifest.Document) bool { return !strings.Contains(d.Text, "helm.sh/hook: post-delete") })
	for i := range docs {
		docs[i].Text = strip(hookAnnotations.ReplaceAllString(docs[i].Text, ""))
	}
	sortObjects(docs)
	return docs, nil
}

func sortObjects(docs manifest.Documents) {
	slices.SortStableFunc(docs, func(a, b manifest.Document) int { return rank(a.Kind) - rank(b.Kind) })
}
