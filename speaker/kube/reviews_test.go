package kube

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestMayGet: the API server authenticates the token, and authorizes the user with all that it knows of it.
func TestMayGet(t *testing.T) {
	clients := fake.NewClientset()
	var fails string
	clients.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		if fails == "tokenreviews" {
			return true, nil, errors.New("away")
		}
		if token := review.Spec.Token; token != "unknown" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
				Username: token, UID: "7", Groups: []string{"a", "b"}, Extra: map[string]authenticationv1.ExtraValue{"node": {"n"}},
			}}
		}
		return true, review, nil
	})
	clients.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		if fails == "subjectaccessreviews" {
			return true, nil, errors.New("away")
		}
		user := review.Spec.User
		if want := (authorizationv1.SubjectAccessReviewSpec{
			User: user, UID: "7", Groups: []string{"a", "b"}, Extra: map[string]authorizationv1.ExtraValue{"node": {"n"}},
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
		}); !reflect.DeepEqual(review.Spec, want) {
			t.Errorf("the review is of %+v, want %+v", review.Spec, want)
		}
		review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: user == "scraper" || user == "denied", Denied: user == "denied"}
		return true, review, nil
	})
	reviews := Reviews{clients}
	for _, c := range []struct {
		token, fails, user string
		may                bool
	}{
		{token: "scraper", user: "scraper", may: true},
		{token: "tenant", user: "tenant"},
		{token: "denied", user: "denied"},
		{token: "unknown"},
		{token: "scraper", fails: "tokenreviews"},
		{token: "scraper", fails: "subjectaccessreviews"},
	} {
		fails = c.fails
		user, may, err := reviews.MayGet(t.Context(), c.token, "/metrics")
		if user != c.user || may != c.may || (err != nil) != (c.fails != "") {
			t.Errorf("%+v: %q, %v, %v", c, user, may, err)
		}
		if err != nil && !strings.HasSuffix(err.Error(), "away") {
			t.Errorf("%+v: the cause is missing in %v", c, err)
		}
	}
}
