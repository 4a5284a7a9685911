package kube

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/view"
)

// TestInvalidPoolKeepsItsRanges: a pool with an invalid spec has the ranges of status.lastGood, as in ironlb-ccm, and
// until that is written those it had before.
func TestInvalidPoolKeepsItsRanges(t *testing.T) {
	const good, other = "192.0.2.0-192.0.2.9", "203.0.113.0-203.0.113.9"
	lastGood := `{"addresses":["` + good + `"],"autoAssign":false}`
	badSelector := &v1alpha1.ServiceAllocation{ServiceSelectors: []metav1.LabelSelector{
		{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "like"}}}}}
	reversed, overlapping := []string{"203.0.113.9-203.0.113.0"}, []string{"203.0.113.0/24", "203.0.113.7"}
	for _, tt := range []struct {
		name     string
		before   []string // none: this is the first version of the pool
		spec     v1alpha1.IPAddressPoolSpec
		lastGood string
		created  int64
		want     string
	}{
		{name: "valid", before: []string{good}, spec: v1alpha1.IPAddressPoolSpec{Addresses: []string{other}}, want: other},
		{name: "valid again, and the status is older", spec: v1alpha1.IPAddressPoolSpec{Addresses: []string{other}}, lastGood: lastGood, want: other},
		{name: "reversed", spec: v1alpha1.IPAddressPoolSpec{Addresses: reversed}, lastGood: lastGood, want: good},
		{name: "overlapping", spec: v1alpha1.IPAddressPoolSpec{Addresses: overlapping}, lastGood: lastGood, want: good},
		{name: "a selector", spec: v1alpha1.IPAddressPoolSpec{Addresses: []string{other}, ServiceAllocation: badSelector}, lastGood: lastGood, want: good},
		{name: "before the status is written", before: []string{good}, spec: v1alpha1.IPAddressPoolSpec{Addresses: reversed}, want: good},
		{name: "of another pool with the name", before: []string{good}, created: 1, spec: v1alpha1.IPAddressPoolSpec{Addresses: reversed}},
		{name: "never valid", spec: v1alpha1.IPAddressPoolSpec{Addresses: reversed}},
		{name: "an unreadable status", spec: v1alpha1.IPAddressPoolSpec{Addresses: reversed}, lastGood: `{"addresses":["x"]}`},
	} {
		v := view.New()
		set := func(created int64, spec v1alpha1.IPAddressPoolSpec, lastGood string) {
			t.Helper()
			pool := &v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "main", CreationTimestamp: metav1.NewTime(time.Unix(created, 0))}, Spec: spec}
			pool.Status.LastGood = lastGood
			for range 2 { // client-go may trim an object again
				if _, err := trim(pool); err != nil {
					t.Fatal(err)
				}
			}
			r, value := convertPool(pool)
			fold(v, &view.Touched{}, r, value)
		}
		if tt.before != nil {
			set(0, v1alpha1.IPAddressPoolSpec{Addresses: tt.before}, "")
		}
		set(tt.created, tt.spec, tt.lastGood)
		got := ""
		for _, r := range v.Pools["main"].Ranges {
			got += fmt.Sprint(r)
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
