package forwarding

import "time"

// tunnel is whether packets can be sent to a node through a tunnel.
type tunnel uint8

const (
	noTunnel tunnel = iota
	hasTunnel
	// tunnelAwaited: the node's speaker was not received yet, and its endpoints get no slots.
	tunnelAwaited
)

// awaitTunnel is how long the speaker of a node may take to be received, from the first endpoint of a Service on it. A
// node that joins runs Pods before its speaker: if they made their Services fall back, connections would break twice.
const awaitTunnel = 30 * time.Second

// silence is since when a node with endpoints of a Service is not received. It is assumed to have tunnels if this node
// was an observer then: it has just started, and the other nodes send to it already.
type silence struct {
	since   time.Time
	assumed bool
}

// tunnelTo returns whether packets can be sent to an existing node; this node needs no tunnel.
func (w *planning) tunnelTo(node string) tunnel {
	peer, received := w.view.Members.Peers[node]
	switch {
	case node == w.name:
		return hasTunnel
	case !w.nodes.usable(node) || received && !peer.Direct:
		return noTunnel
	case received:
		return hasTunnel
	}
	s, known := w.silent[node]
	if !known {
		s = silence{since: w.now, assumed: w.view.Members.Observer}
	}
	w.out.silent[node] = s
	end := s.since.Add(awaitTunnel)
	if !w.now.Before(end) {
		return noTunnel
	}
	w.wake(end)
	if s.assumed {
		return hasTunnel
	}
	return tunnelAwaited
}
