package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/manifest"
	"github.com/ironlb/ironlb/test/lab/tools"
)

// newClients creates the administrator's clients of this process.
func (c *Cluster) newClients() (err error) {
	if c.Kube, err = kubernetes.NewForConfig(c.cp.RESTConfig()); err != nil {
		return err
	}
	kinds := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, v1alpha1.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(kinds); err != nil {
			return err
		}
	}
	c.Objects, err = client.New(c.cp.RESTConfig(), client.Options{Scheme: kinds})
	return err
}

// Kubeconfig returns the administrator's file, for programs on Management.
func (c *Cluster) Kubeconfig() string { return c.cp.Kubeconfig() }

// KubectlPath returns the lab's kubectl, built from the same sources as the API server.
func (c *Cluster) KubectlPath() string { return c.build.Path("kubectl") }

// Tools returns the Build of the lab's programs.
func (c *Cluster) Tools() *tools.Build { return c.build }

// Program returns the path of a program built by the lab: "ironlb-ccm", "kubectl".
func (c *Cluster) Program(name string) string { return c.build.Path(name) }

// Kubectl runs kubectl as an administrator and returns its standard output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.kubectl(ctx, nil, args...)
}

func (c *Cluster) kubectl(ctx context.Context, stdin []byte, args ...string) (string, error) {
	cmd := host.Cmd{Argv: c.Management.Argv(append([]string{c.KubectlPath()}, args...)...), Env: c.adminEnv(), Dir: c.Root}
	if stdin != nil {
		cmd.Stdin = bytes.NewReader(stdin)
	}
	out, err := host.Output(ctx, c.Management.host, cmd)
	return string(out), err
}

// Plugin runs kubectl ironlb as an administrator and returns its output, with problems of the cluster (exit status 1),
// too.
func (c *Cluster) Plugin(ctx context.Context, args ...string) (string, error) {
	if err := c.plugin(); err != nil {
		return "", err
	}
	cmd := host.Cmd{Argv: c.Management.Argv(append([]string{c.build.Path("kubectl-ironlb")}, args...)...), Env: c.adminEnv(), Dir: c.Root}
	out, err := host.Output(ctx, c.Management.host, cmd)
	if exit, is := errors.AsType[*host.ExitError](err); is && exit.Code == 1 {
		err = nil
	}
	return string(out), err
}

// AwaitExplained waits until "kubectl ironlb explain" of a Service in namespace default has this cause after its name and
// addresses, and a line of this step; both are regular expressions.
func (c *Cluster) AwaitExplained(t testing.TB, limit time.Duration, service, cause, step string) {
	t.Helper()
	first, want := regexp.MustCompile(`^Service default/`+service+` \(.*\): `+cause+`\n`), regexp.MustCompile(`(?m)^  `+step)
	c.Await(t, limit, "kubectl ironlb explain svc "+service, func(ctx context.Context) error {
		out, err := c.Plugin(ctx, "explain", "svc", service)
		if err != nil {
			return err
		}
		if !first.MatchString(out) || !want.MatchString(out) {
			return fmt.Errorf("want %s and %s, got:\n%s", first, want, out)
		}
		return nil
	})
}

// adminEnv is the environment of an administrator's kubectl and Helm. They keep nothing in the user's home: the kinds
// that kubectl has seen in another cluster at the same address are not this one's.
func (c *Cluster) adminEnv() []string {
	return []string{
		"KUBECONFIG=" + c.Kubeconfig(), "KUBECACHEDIR=" + filepath.Join(c.Dir, "kubectl"),
		"HELM_CACHE_HOME=" + c.Dir, "HELM_CONFIG_HOME=" + c.Dir, "HELM_DATA_HOME=" + c.Dir,
	}
}

// Apply applies manifests: files, or folders with files, by absolute path or relative to the checkout. Unknown fields
// are refused.
func (c *Cluster) Apply(ctx context.Context, files ...string) error {
	args := []string{"apply", "--server-side", "--validate=strict"}
	for _, f := range files {
		args = append(args, "-f", f)
	}
	if _, err := c.Kubectl(ctx, args...); err != nil {
		return fmt.Errorf("apply %v: %w", files, err)
	}
	return nil
}

// ApplyYAML applies manifests given as text.
func (c *Cluster) ApplyYAML(ctx context.Context, manifests string) error {
	_, err := c.kubectl(ctx, []byte(manifests), "apply", "--server-side", "--validate=strict", "-f", "-")
	if err != nil {
		return fmt.Errorf("apply manifests: %w", err)
	}
	return nil
}

// applyDeploy applies the prerequisites of the project's programs: their kinds, namespace, accounts and permissions.
// The lab starts the programs itself, so their Deployment and DaemonSet are left out.
func (c *Cluster) applyDeploy(ctx context.Context) error {
	c.printf("applying the CRDs and permissions of deploy/")
	all, err := manifest.Load(c.Root, manifest.File)
	if err != nil {
		return err
	}
	if err := c.ApplyYAML(ctx, all.Accounts().String()); err != nil {
		return err
	}
	_, err = c.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
	return err
}

// LogFiles lists the logs of all the lab's programs.
func (c *Cluster) LogFiles() []string {
	var logs []string
	for _, pattern := range []string{"*.log", filepath.Join("controlplane", "*.log")} {
		found, err := filepath.Glob(filepath.Join(c.Dir, pattern))
		if err != nil {
			panic(err) // the pattern is constant
		}
		logs = append(logs, found...)
	}
	return logs
}

// SaveLogs copies all logs into a folder, which it creates.
func (c *Cluster) SaveLogs(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("save the lab's logs: %w", err)
	}
	for _, log := range c.LogFiles() {
		data, err := os.ReadFile(log)
		if err != nil {
			return fmt.Errorf("save the lab's logs: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(log)), data, 0o644); err != nil {
			return fmt.Errorf("save the lab's logs: %w", err)
		}
	}
	return nil
}
