package install

import (
	"log/slog"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/condition"
)

// TestReleaseRemovesWarnings: an uninstall removes all warnings, also from a Service that was only served as by a
// proxy.
func TestReleaseRemovesWarnings(t *testing.T) {
	client := fake.NewClientset(ccmtest.WarnedService("proxied", func(s *v1.Service) {
		s.Spec.Type = v1.ServiceTypeClusterIP
		s.Status.Conditions = []metav1.Condition{{Type: condition.Warnings, Status: metav1.ConditionTrue}, {Type: "example.com/Theirs", Status: metav1.ConditionTrue}}
	}), ccmtest.WarnedService("plain", nil))
	if err := (Release{Log: slog.New(slog.DiscardHandler)}).services(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	svc, err := client.CoreV1().Services("default").Get(t.Context(), "proxied", metav1.GetOptions{})
	if err != nil || len(svc.Status.Conditions) != 1 || svc.Status.Conditions[0].Type != "example.com/Theirs" {
		t.Errorf("left: %+v, %v", svc.Status.Conditions, err)
	}
	writes := 0
	for _, action := range client.Actions() {
		if action.Matches("patch", "services") {
			writes++
		}
	}
	if writes != 1 {
		t.Errorf("%d writes, want 1", writes)
	}
}
