package lab

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/ironlb/ironlb/test/lab/host"
)

// Release is the name of the chart's release.
const Release = "ironlb"

// chart is the folder of the project's chart.
const chart = "deploy/chart/ironlb"

// Helm runs Helm as an administrator and returns its standard output.
func (c *Cluster) Helm(ctx context.Context, args ...string) (string, error) {
	cmd := host.Cmd{
		Argv: c.Management.Argv(append([]string{c.build.Path(helm)}, args...)...),
		Env:  c.adminEnv(),
		Dir:  c.Root,
	}
	out, err := host.Output(ctx, c.Management.host, cmd)
	if err != nil {
		return string(out), fmt.Errorf("helm %s: %w", args[0], err)
	}
	return string(out), nil
}

// helm is the pinned program that installs the chart.
const helm = "helm4"

// Install installs or upgrades the chart, and waits until its Pods are Ready. Flags are additional flags of helm
// upgrade: --set, --values. Without kube-proxy, IronLB is the service proxy.
func (c *Cluster) Install(ctx context.Context, flags ...string) error {
	c.printf("installing the chart")
	args := []string{"upgrade", "--install", Release, filepath.Join(c.Root, chart), "--namespace", SystemNamespace, "--create-namespace",
		"--wait", "--timeout", c.limit(4 * time.Minute).String()}
	if c.cfg.Kubelets.KubeProxy == "" {
		args = append(args, "--set", fmt.Sprintf("serviceProxy=true,apiServer.host=%s,apiServer.port=6443", apiServer))
	}
	if _, err := c.Helm(ctx, slices.Concat(args, flags)...); err != nil {
		return fmt.Errorf("install the chart: %w", err)
	}
	return nil
}
