package watch_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/watch"
)

func TestExclusionReason(t *testing.T) {
	label := func(v string) func(*v1.Node) {
		return func(n *v1.Node) { n.Labels[v1.LabelNodeExcludeBalancers] = v }
	}
	for name, c := range map[string]struct {
		node *v1.Node
		want bool
	}{
		"plain":     {ccmtest.Node("n"), true},
		"not ready": {ccmtest.Node("n", func(n *v1.Node) { n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: "False"}} }), true},
		"network unavailable": {ccmtest.Node("n", func(n *v1.Node) {
			n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeNetworkUnavailable, Status: "True"}}
		}), false},
		"network unknown": {ccmtest.Node("n", func(n *v1.Node) {
			n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeNetworkUnavailable, Status: "Unknown"}}
		}), true},
		"cordoned":         {ccmtest.Node("n", func(n *v1.Node) { n.Spec.Unschedulable = true }), true},
		"excluded":         {ccmtest.Node("n", label("")), false},
		"excluded true":    {ccmtest.Node("n", label("true")), false},
		"excluded false":   {ccmtest.Node("n", label("false")), true},
		"excluded nothing": {ccmtest.Node("n", label("perhaps")), false},
		"being deleted":    {ccmtest.Node("n", func(n *v1.Node) { n.DeletionTimestamp = &metav1.Time{} }), false},
		"to be removed": {ccmtest.Node("n", func(n *v1.Node) {
			n.Spec.Taints = []v1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: v1.TaintEffectNoSchedule}}
		}), false},
	} {
		if why := watch.ExclusionReason(c.node, false); (why == "") != c.want {
			t.Errorf("%s: %q", name, why)
		}
		_, labelled := c.node.Labels[v1.LabelNodeExcludeBalancers]
		if why := watch.ExclusionReason(c.node, true); (why == "") != (c.want || labelled) {
			t.Errorf("%s, with excluded nodes: %q", name, why)
		}
	}
}
