package ownership

import (
	"slices"

	"github.com/ironlb/ironlb/speaker/incremental"
)

// handOver asks another node to take over if this one should not be the owner. This node continues to answer until the
// successor does (rule 5 of docs/design/failover.md).
func (d *election) handOver() {
	t := &d.ownership
	d.readRequest()
	targets := d.targets()
	if len(targets) == 0 {
		t.successor, t.tried = "", nil
		t.before = d.settled()
		return
	}
	if slices.Contains(targets, t.successor) {
		until := t.asked.Add(ClaimWait)
		if d.now.Before(until) {
			d.wake = incremental.Earlier(d.wake, until)
			return
		}
		t.tried = append(slices.Clone(t.tried), t.successor)
	}
	next := slices.IndexFunc(targets, func(n string) bool { return !slices.Contains(t.tried, n) })
	if next < 0 && d.releaseReason == noReason && !d.requested() { // no node took over: that is settled
		t.successor, t.tried = "", nil
		t.before = d.settled()
		return
	}
	if next < 0 {
		t.tried, next = nil, 0
	}
	t.successor, t.asked = targets[next], d.now
	d.wake = incremental.Earlier(d.wake, d.now.Add(ClaimWait))
}

// requested reports whether the status names this node. A list written after that takes the owner into account, so its
// leading nodes are asked to take over, now or as soon as they are available. Any other list may be older than the
// ownership.
func (d *election) requested() bool { return d.vip.ReportedOwner == d.self }

// readRequest opens a request: a list newer than the one in force when the status came to name this node.
func (d *election) readRequest() {
	switch t := &d.ownership; {
	case !d.requested():
	case t.named == 0:
		t.named = d.vip.Generation
	case d.vip.Generation > t.named:
		t.named, t.before = d.vip.Generation, nil
	}
}

// settled returns the nodes that rank before this one and are not to be asked to take over. An open request stays open.
func (d *election) settled() []string {
	nodes := before(d.vip.Nodes, d.self)
	if !d.requested() {
		return nodes
	}
	return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return !slices.Contains(d.ownership.before, n) })
}

// targets returns the nodes that may be asked to take over: all candidates if this node should release the VirtualIP.
// Otherwise it returns the candidates before this node, if the list has one there that was not at the time of
// acquisition.
func (d *election) targets() []string {
	var out []string
	newly := false
	for _, n := range d.candidates {
		if n == d.self && d.releaseReason == noReason {
			break
		}
		if n != d.self && !d.observes(n) {
			out = append(out, n)
			newly = newly || !slices.Contains(d.ownership.before, n)
		}
	}
	if d.releaseReason == noReason && !newly {
		return nil
	}
	return out
}
