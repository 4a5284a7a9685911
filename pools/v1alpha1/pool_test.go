package v1alpha1_test

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// fullPool has every field of the spec, none with its zero value.
func fullPool() *v1alpha1.IPAddressPool {
	sel := []metav1.LabelSelector{{
		MatchLabels: map[string]string{"b": "2", "a": "1"},
		MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "c", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"x", "y"}}, {Key: "d", Operator: metav1.LabelSelectorOpExists},
		},
	}}
	obj := &v1alpha1.IPAddressPool{Spec: v1alpha1.IPAddressPoolSpec{
		Addresses: []string{"203.0.113.4/31"}, AutoAssign: ptr.To(false), AvoidBuggyIPs: true,
		ServiceAllocation: &v1alpha1.ServiceAllocation{Priority: 7, Namespaces: []string{"n"}, NamespaceSelectors: sel, ServiceSelectors: []metav1.LabelSelector{{}}},
		Sharing:           &v1alpha1.Sharing{Namespaces: []string{"n", "m"}},
		ReuseAfter:        &metav1.Duration{Duration: time.Minute},
		NamespaceQuota:    ptr.To[int64](3),
		ReturnRoutes:      []v1alpha1.ReturnRoute{{Gateway: "203.0.113.1", Interface: "eth1"}},              // for speakers
		Rebalance:         v1alpha1.RebalanceGradual, PreemptDelay: &metav1.Duration{Duration: time.Minute}, // for placement
	}}
	obj.Name, obj.CreationTimestamp = "p", metav1.NewTime(time.Unix(1, 0))
	return obj
}

func TestPoolOf(t *testing.T) {
	obj := fullPool()
	for v, i := reflect.ValueOf(obj.Spec), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("this test does not know the field %s", v.Type().Field(i).Name)
		}
	}
	got, err := v1alpha1.ParsePool(obj)
	if err != nil {
		t.Fatal(err)
	}
	want := pools.Pool{
		Name: "p", Created: time.Unix(1, 0),
		Ranges:        []pools.Range{{First: netip.MustParseAddr("203.0.113.4"), Last: netip.MustParseAddr("203.0.113.5")}},
		AvoidBuggyIPs: true,
		Allocation: pools.Allocation{
			Set: true, Priority: 7, Namespaces: []string{"n"},
			NamespaceSelectors: []pools.Selector{{
				{Key: "a", Operator: pools.In, Values: []string{"1"}}, {Key: "b", Operator: pools.In, Values: []string{"2"}},
				{Key: "c", Operator: pools.NotIn, Values: []string{"x", "y"}}, {Key: "d", Operator: pools.Exists},
			}},
			ServiceSelectors: []pools.Selector{{}},
		},
		SharingNamespaces: []string{"n", "m"},
		ReuseAfter:        time.Minute,
		NamespaceQuota:    pools.Limit{Set: true, Max: 3},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
	// An empty serviceAllocation is not an absent one: it puts the pool before the open ones.
	obj.Spec.ServiceAllocation = &v1alpha1.ServiceAllocation{}
	if got, err = v1alpha1.ParsePool(obj); err != nil || !got.Allocation.Set {
		t.Errorf("got %+v, %v", got.Allocation, err)
	}
}

// TestPoolOfBad: specs that the CRD's schema accepts and that are still invalid.
func TestPoolOfBad(t *testing.T) {
	obj := fullPool()
	obj.Spec.ServiceAllocation.ServiceSelectors = []metav1.LabelSelector{{}, {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "c", Operator: "Like"}}}}
	if _, err := v1alpha1.ParsePool(obj); err == nil || !strings.HasPrefix(err.Error(), "spec.serviceAllocation.serviceSelectors[1]: ") {
		t.Errorf("got %v", err)
	}
}
