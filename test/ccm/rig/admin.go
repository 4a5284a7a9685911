package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/manifest"
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
	out, err := host.Output(ctx, host.Native{}, host.Cmd{Argv: r.argv(append([]string{r.build.Path("kubectl")}, args...)...), Env: r.adminEnv()})
	return string(out), err
}

// Plugin runs kubectl ironlb as an administrator and returns its output, with problems of the cluster (exit status 1),
// too. It is not safe for concurrent use.
func (r *Rig) Plugin(ctx context.Context, args ...string) (string, error) {
	if !r.plugin {
		if err := r.build.Own(ctx, "cmd/kubectl-ironlb"); err != nil {
			return "", err
		}
		r.plugin = true
	}
	out, err := host.Output(ctx, host.Native{}, host.Cmd{
		Argv: r.argv(append([]string{r.build.Path("kubectl"), "ironlb"}, args...)...),
		Env:  append(r.adminEnv(), "PATH="+filepath.Dir(r.build.Path("kubectl-ironlb"))+":"+os.Getenv("PATH")),
	})
	if exit, is := errors.AsType[*host.ExitError](err); is && exit.Code == 1 {
		err = nil
	}
	return string(out), err
}

// Apply applies manifests given as text, as kubectl apply --server-side --force-conflicts --validate=strict does.
func (r *Rig) Apply(ctx context.Context, manifests string) error {
	docs, err := manifest.Split(manifests)
	if err != nil {
		return err
	}
	for _, doc := range docs {
		if err := r.apply(ctx, doc); err != nil {
			return fmt.Errorf("apply %s %s: %w", doc.Kind, doc.Name, err)
		}
	}
	return nil
}

func (r *Rig) apply(ctx context.Context, doc manifest.Document) error {
	data, err := yaml.YAMLToJSON([]byte(doc.Text))
	if err != nil {
		return err
	}
	var kind metav1.TypeMeta
	if err := json.Unmarshal(data, &kind); err != nil {
		return err
	}
	gvk := kind.GroupVersionKind()
	mapping, err := r.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) { // the CRD may be new
		r.mapper.Reset()
		mapping, err = r.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	}
	if err != nil {
		return err
	}
	namespace := doc.Namespace
	if namespace == "" && mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		namespace = metav1.NamespaceDefault
	}
	_, err = r.dynamic.Resource(mapping.Resource).Namespace(namespace).Patch(ctx, doc.Name, types.ApplyPatchType, data,
		metav1.PatchOptions{FieldManager: "kubectl", Force: ptr.To(true), FieldValidation: metav1.FieldValidationStrict})
	return err
}

// AccountKubeconfig returns the path of a file with the credentials of a ServiceAccount.
func (r *Rig) AccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	return r.cp.ServiceAccountKubeconfig(ctx, namespace, name)
}
