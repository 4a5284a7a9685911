package plan

// Choose returns the node that answers for an address: the first of the list that is alive and able. Every speaker that
// sees the same list and the same answers chooses the same node. Where there is none, the reason is that of the node
// that came nearest.
//
// live is the seam for a detector of dead nodes; able returns Owner, NoAdvertisement or NoLocalEndpoint.
func Choose(nodes []string, live func(node string) bool, able func(node string) Reason) (string, Reason) {
	why := NoEligibleNode
	for _, node := range nodes {
		reason := NodeNotReady
		if live(node) {
			reason = able(node)
		}
		if reason == Owner {
			return node, Owner
		}
		if nearness[reason] > nearness[why] {
			why = reason
		}
	}
	return "", why
}

// nearness orders the reasons against a node by how far it got.
var nearness = map[Reason]int{NoEligibleNode: 0, NodeNotReady: 1, NoAdvertisement: 2, NoLocalEndpoint: 3}

// Ready is the liveness of this issue: the Node's Ready condition as the API server knows it.
func (v *View) Ready(node string) bool { return v.Nodes[node].Ready }
