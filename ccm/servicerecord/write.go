package servicerecord

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// conflictTries is the maximum number of decisions about a Service before the conflict is an error. Each needs another
// change of the Service in the few milliseconds between a read and a write.
const conflictTries = 5

// RetryOnConflict calls decide with the Service, and after a conflict with the current Service. exists is false if it
// no longer exists.
func RetryOnConflict(
	ctx context.Context, api corev1.ServicesGetter, svc *v1.Service, decide func(*v1.Service) error,
) (exists bool, err error) {
	for range conflictTries {
		if err = decide(svc); !apierrors.IsConflict(err) {
			return true, err
		}
		now, failed := Read(ctx, api, svc)
		if failed != nil || now == nil {
			return failed != nil, failed
		}
		svc = now
	}
	return true, err
}

// Read returns the Service from the API server, nil if it is deleted. It uses a list, for which the controllers
// have the permission anyway.
func Read(ctx context.Context, api corev1.ServicesGetter, svc *v1.Service) (*v1.Service, error) {
	opts := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, svc.Name).String()}
	list, err := api.Services(svc.Namespace).List(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("reading Service %s: %w", KeyOf(svc), err)
	}
	for i := range list.Items {
		if s := &list.Items[i]; s.Name == svc.Name && s.UID == svc.UID {
			v1alpha1.LimitService(s)
			return s, nil
		}
	}
	return nil, nil
}

// OlderVersion reports whether the first version of an object came before the second one.
func OlderVersion(version, than string) bool {
	c, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && c < 0
}

// Gone reports whether the Service does not exist any more, or is being deleted. If there is another one of the same
// name, the API server treats the UID in the patch as an attempt to change its UID. A Service in deletion accepts no
// new finalizer.
func Gone(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsInvalid(err) && slices.ContainsFunc(causes(err), func(c metav1.StatusCause) bool {
		return c.Field == "metadata.uid" || c.Field == "metadata.finalizers" && c.Type == metav1.CauseType(field.ErrorTypeForbidden)
	})
}

func causes(err error) []metav1.StatusCause {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	return status.Status().Details.Causes
}
