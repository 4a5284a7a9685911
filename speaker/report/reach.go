package report

// WritesReach reports whether the speaker of a node must write the Event that another node is unreachable.
func WritesReach(node, about string, status NodeStatus) bool {
	if state, known := status.Members[about]; known && state != MemberSilent {
		return true // others receive it
	}
	for name, state := range status.Members {
		_, unreachable := status.Reach.Unreachable[name]
		if name < node && state != MemberSilent && !unreachable {
			return false
		}
	}
	return true
}
