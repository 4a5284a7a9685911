package kube

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Reviews ask the API server about clients of this process. client-go limits each kind to five requests a second.
type Reviews struct{ clients kubernetes.Interface }

// MayGet returns the user that a bearer token authenticates, empty for none, and whether it may get a nonResourceURL.
func (r Reviews) MayGet(ctx context.Context, token, path string) (user string, may bool, err error) {
	review, err := r.clients.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return "", false, fmt.Errorf("review a token: %w", err)
	}
	if !review.Status.Authenticated {
		return "", false, nil
	}
	u := review.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(u.Extra))
	for key, values := range u.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	access, err := r.clients.AuthorizationV1().SubjectAccessReviews().Create(ctx,
		&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: u.Username, UID: u.UID, Groups: u.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
		}}, metav1.CreateOptions{})
	if err != nil {
		return "", false, fmt.Errorf("review the access of %s to %s: %w", u.Username, path, err)
	}
	return u.Username, access.Status.Allowed && !access.Status.Denied, nil
}
