package v1alpha1

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func expression(key string, op metav1.LabelSelectorOperator, values ...string) metav1.LabelSelector {
	return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: op, Values: values}}}
}

// TestSelectorOf: what we read selects what Kubernetes' own selector selects.
func TestSelectorOf(t *testing.T) {
	selectors := []metav1.LabelSelector{
		{},
		{MatchLabels: map[string]string{"app": "web"}},
		{MatchLabels: map[string]string{"app": "web", "env": "prod"}},
		{MatchLabels: map[string]string{"app": ""}},
		expression("app", metav1.LabelSelectorOpIn, "web", "db"),
		expression("app", metav1.LabelSelectorOpNotIn, "web"),
		expression("app", metav1.LabelSelectorOpExists),
		expression("app", metav1.LabelSelectorOpDoesNotExist),
	}
	both := expression("env", metav1.LabelSelectorOpNotIn, "test")
	both.MatchLabels = map[string]string{"app": "web"}
	selectors = append(selectors, both)
	for _, s := range selectors {
		got, err := SelectorOf(&s)
		if err != nil {
			t.Fatalf("%v: %v", s, err)
		}
		want, err := metav1.LabelSelectorAsSelector(&s)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range []map[string]string{
			nil, {"app": "web"}, {"app": "db"}, {"app": ""}, {"env": "prod"}, {"app": "web", "env": "prod"}, {"app": "web", "env": "test"},
		} {
			if got.Matches(l) != want.Matches(labels.Set(l)) {
				t.Errorf("%v: labels %v: matches %v", want, l, got.Matches(l))
			}
		}
	}
	// The same bytes each time, whatever the order of the map.
	many := metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := range 20 {
		many.MatchLabels[fmt.Sprintf("k%d", i)] = "v"
	}
	first, _ := SelectorOf(&many)
	for range 5 {
		if again, _ := SelectorOf(&many); fmt.Sprint(again) != fmt.Sprint(first) {
			t.Fatalf("%v, at first %v", again, first)
		}
	}
}

// TestSelectorThatCannotBeRead matches nothing, not even with an operator that would match much.
func TestSelectorThatCannotBeRead(t *testing.T) {
	for _, s := range []metav1.LabelSelector{
		expression("app", "Like", "web"),
		expression("app", metav1.LabelSelectorOpIn),
		expression("app", metav1.LabelSelectorOpNotIn),
		expression("app", metav1.LabelSelectorOpDoesNotExist, "web"),
		expression("-", metav1.LabelSelectorOpDoesNotExist),
		{MatchLabels: map[string]string{"app": "no spaces"}},
	} {
		got, err := SelectorOf(&s)
		if err == nil {
			t.Errorf("%v can be read", s)
		}
		for _, l := range []map[string]string{nil, {"app": "web"}} {
			if got.Matches(l) {
				t.Errorf("%v matches %v", s, l)
			}
		}
	}
}
