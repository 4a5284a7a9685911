package plan

import "slices"

// What a node does about another one that does not hear it, or that it does not hear (docs/design/failover.md, rule 7).

// yieldsTo tells whether this node yields in the end to another holder that does not hear it, and so will not: unless that one may not
// answer, or it is the one that is deaf, since others hear this node. Then that one is told by way of the API server (rule 7).
func (d *deciding) yieldsTo(h holder) bool {
	if d.able(h.node, true) != Owner || !d.view.Nodes[h.node].Ready {
		return false
	}
	if h.claim.Generation > d.vip.Generation || !d.view.Members.listened() {
		return true
	}
	d.deaf = h.node
	return false
}

// told tells whether this node, which hears nobody, reads in the status that another one answers and knows of one that is deaf (rule 7).
func (d *deciding) told() bool {
	return d.vip.Contested && d.alone && d.answersUnheard(d.vip.Holder)
}

// hearsOthers tells whether this node has heard others for long enough to hear all that are there.
func (d *deciding) hearsOthers() bool {
	return !d.alone && d.view.Members.informed() && d.waits(d.informedAt.Add(contest*d.interval), Owner) != ""
}

// answersUnheard tells whether a node, which the status says answers, may still be alive although it is not heard.
func (d *deciding) answersUnheard(node string) bool {
	return node != "" && node == d.vip.Holder && node != d.self && !d.heard(node) && d.view.Nodes[node].Ready
}

// noteRivals counts how often others answered as well and stopped. One that asked this node to take over is none: this node has
// announced itself since.
func (d *deciding) noteRivals() {
	t := &d.tenure
	rivals := t.held && t.successor == "" && slices.ContainsFunc(d.holders, func(h holder) bool { return h.claim.State == Held })
	if t.held && t.rivals && !rivals {
		t.again++
	}
	t.rivals = rivals
}
