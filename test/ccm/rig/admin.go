package rig

import (
	"context"
	"os"
	"path/filepath"

	"github.com/ironlb/ironlb/test/lab/host"
)

// Program returns the path of a program built by the rig.
func (r *Rig) Program(name string) string { return r.build.Path(name) }

// Pinned builds programs of test/tools.
func (r *Rig) Pinned(ctx context.Context, names ...string) error {
	return r.build.Pinned(ctx, names...)
}

// Root returns the folder of the checkout.
func (r *Rig) Root() string { return r.build.Root }

// Exec runs a command as an administrator, in the rig's namespace, and returns its standard output.
func (r *Rig) Exec(ctx context.Context, argv ...string) (string, error) {
	out, err := host.Output(ctx, host.Native{}, host.Cmd{
		Argv: r.argv(argv...), Dir: r.build.Root,
		Env: append(r.adminEnv(), "HOME="+r.Dir, "PATH="+os.Getenv("PATH")),
	})
	return string(out), err
}

// adminEnv is the environment of an administrator's kubectl, with what it caches of this cluster.
func (r *Rig) adminEnv() []string {
	return []string{"KUBECONFIG=" + r.cp.Kubeconfig(), "KUBECACHEDIR=" + filepath.Join(r.Dir, "kubectl")}
}

// Kubectl runs kubectl as an administrator and returns its standard output.
func (r *Rig) Kubectl(ctx context.Context, args ...string) (string, error) {
	return r.kubectl(ctx, nil, args...)
}

// AccountKubeconfig returns the path of a file with the credentials of a ServiceAccount.
func (r *Rig) AccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	return r.cp.ServiceAccountKubeconfig(ctx, namespace, name)
}
