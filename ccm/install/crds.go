package install

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// CRDs applies CustomResourceDefinitions, and returns when the API server serves them.
func CRDs(ctx context.Context, config *rest.Config, log *slog.Logger, crds map[string][]byte) error {
	client, err := dynamic.NewForConfig(rest.AddUserAgent(config, v1alpha1.ControllerName))
	if err != nil {
		return fmt.Errorf("preparing the client: %w", err)
	}
	api := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	force := true
	for _, name := range slices.Sorted(maps.Keys(crds)) {
		if _, err := api.Patch(ctx, name, types.ApplyPatchType, crds[name], metav1.PatchOptions{FieldManager: v1alpha1.ControllerName, Force: &force}); err != nil {
			return fmt.Errorf("applying CustomResourceDefinition %s: %w", name, err)
		}
		log.Info("CustomResourceDefinition applied", "name", name)
	}
	for name := range crds {
		var wrong error
		err := until(ctx, time.Second/5, nil, func() bool {
			o, err := api.Get(ctx, name, metav1.GetOptions{})
			if wrong = err; err != nil {
				return apierrors.IsForbidden(err)
			}
			conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			return slices.ContainsFunc(conditions, func(c any) bool {
				condition, ok := c.(map[string]any)
				return ok && condition["type"] == "Established" && condition["status"] == "True"
			})
		})
		if err := errors.Join(err, wrong); err != nil {
			return fmt.Errorf("waiting until CustomResourceDefinition %s is served: %w", name, err)
		}
	}
	return nil
}
