package watch

import (
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
)

// TaintToBeDeleted is set by the cluster autoscaler on a node that it is about to remove.
const TaintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// ExclusionReason returns why the node may have no addresses at all, empty if it may. A cordoned or not ready node may.
// The value of the exclude label counts as in k8s.io/cloud-provider since 1.34: only false keeps the node.
func ExclusionReason(n *v1.Node, ignoreExclude bool) string {
	if v, ok := n.Labels[v1.LabelNodeExcludeBalancers]; ok && !ignoreExclude {
		if excluded, err := strconv.ParseBool(v); err != nil || excluded {
			return "labelled " + v1.LabelNodeExcludeBalancers
		}
	}
	switch {
	case n.DeletionTimestamp != nil:
		return "being deleted"
	case slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == TaintToBeDeleted }):
		return "tainted " + TaintToBeDeleted
	case HasCondition(n, v1.NodeNetworkUnavailable):
		return "its network is unavailable"
	}
	return ""
}

// HasCondition reports whether the condition is True. Unknown is inconclusive: after an outage of the API server all
// conditions may be Unknown.
func HasCondition(n *v1.Node, kind v1.NodeConditionType) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == kind && c.Status == v1.ConditionTrue
	})
}
