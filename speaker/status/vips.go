package status

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// reportSplit logs the start and the end of a split brain: an unreachable node announces a VirtualIP that this node owns.
func (s *Status) reportSplit(name, rival string) {
	before := s.rivals[name]
	switch {
	case rival == before:
	case rival == "":
		delete(s.rivals, name)
		s.cfg.Line(slog.LevelInfo, "split brain resolved", "node", before, "virtualip", name)
	default:
		s.rivals[name] = rival
		s.cfg.Line(slog.LevelWarn, "split brain: an unreachable node announces VirtualIPs of this node", "node", rival, "virtualip", name)
	}
}

func equal(a, b report.VIPStatus) bool {
	return slices.Equal(a.Interfaces, b.Interfaces) && slices.Equal(a.Hosts, b.Hosts) && a.Node == b.Node &&
		a.Announced == b.Announced && a.Reason == b.Reason && a.Message == b.Message &&
		a.Conflict == b.Conflict && a.ConflictReason == b.ConflictReason &&
		a.NotDirect == b.NotDirect && a.NotDirectReason == b.NotDirectReason && a.At.Equal(b.At)
}

// recordMove counts a move of a VirtualIP to or from this node, and measures how long it had no owner.
func (s *Status) recordMove(name string, dec ownership.Decision, exists bool) {
	before := s.moved[name]
	if !exists {
		delete(s.moved, name)
		return
	}
	if before.reason != dec.Moved || !before.at.Equal(dec.At) {
		before = move{reason: dec.Moved, at: dec.At}
		s.cfg.Metrics.moves.WithLabelValues(string(dec.Moved)).Inc()
	}
	if dec.Owner == s.cfg.Node && !before.done && s.answered(dec) {
		before.done = true
		if dec.Moved == view.OwnerLost && dec.Cause != view.NoLocalEndpoint && !dec.Vacant.IsZero() {
			before.took = time.Since(dec.Vacant)
			s.cfg.Metrics.completion.Observe(before.took.Seconds())
			if dec.Cause == view.NodeNotAlive { // it was silent for the dead time before it counted as dead
				before.took += s.in.View.Members.Dead
			}
		}
	}
	s.moved[name] = before
}

// move is the last move of a VirtualIP; done is set once all of its addresses are announced, took is that of the status.
type move struct {
	reason view.Reason
	at     time.Time
	done   bool
	took   time.Duration
}

// answered reports whether all addresses of a decision are announced.
func (s *Status) answered(dec ownership.Decision) bool {
	return !slices.ContainsFunc(dec.Addresses, func(a netip.Addr) bool { return !has(s.in.Held, a) })
}

// status returns the outcome of a decision on this node.
func (s *Status) status(dec ownership.Decision) report.VIPStatus {
	out := s.ownStatus(dec)
	var hosts []string
	for _, addr := range dec.Addresses {
		if c, ok := s.in.Conflicts[addr]; ok {
			out.Hosts = append(out.Hosts, report.HostConflict{Addr: addr, MAC: c.MAC, Interface: c.Interface})
			hosts = append(hosts, fmt.Sprintf("another host, %s, answers for %v on %s", c.MAC, addr, c.Interface))
		}
	}
	switch {
	case len(hosts) > 0:
		out.ConflictReason = view.AddressConflict
		out.Conflict = fmt.Sprintf("node %s: %s: take the address away from it, or out of the IPAddressPool", s.cfg.Node, strings.Join(hosts, "; "))
	case dec.Asymmetric != "":
		out.ConflictReason = view.AnsweredTwice
		out.Conflict = fmt.Sprintf("node %s announces it as well and receives no heartbeats of node %s: allow the speakers' UDP port", dec.Asymmetric, s.cfg.Node)
	}
	return out
}

func (s *Status) ownStatus(dec ownership.Decision) report.VIPStatus {
	if dec.Owner == "" || dec.Owner != s.cfg.Node {
		return report.VIPStatus{Reason: dec.Reason, Message: message(dec) + s.interfaces(dec)}
	}
	interfaces := map[string]struct{}{}
	for _, addr := range dec.Addresses {
		on, answered := s.in.Held[addr]
		ann, published := s.in.Published(addr)
		if !published {
			return report.VIPStatus{Reason: view.DataPlaneNotReady, Message: "node " + dec.Owner + ": " + messages[view.DataPlaneNotReady]}
		}
		if !answered {
			why := view.NoInterface
			if ann.Probe {
				why = view.Probing
			}
			return report.VIPStatus{Reason: why, Message: "node " + dec.Owner + ": " + messages[why]}
		}
		for _, name := range on {
			interfaces[name] = struct{}{}
		}
	}
	return report.VIPStatus{
		Node:       dec.Owner,
		Interfaces: slices.Sorted(maps.Keys(interfaces)),
		Announced:  true,
		Reason:     view.Owner,
		Message:    "announced by node " + dec.Owner,
		Moved:      dec.Moved,
		At:         dec.At,
		From:       dec.From,
		Cause:      dec.Cause,
	}
}

// interfaces names the interfaces of this node and those that it lacks, if that is why the VirtualIP has no owner.
func (s *Status) interfaces(dec ownership.Decision) string {
	if dec.Reason != view.NoInterface {
		return ""
	}
	text := ""
	if len(dec.Missing) > 0 {
		text = ": interfaces names " + strings.Join(dec.Missing, ", ")
	}
	return fmt.Sprintf("%s; node %s has %s", text, s.cfg.Node, cmp.Or(strings.Join(dec.Up, ", "), "none with a subnet"))
}

// message returns why a VirtualIP has no owner, with the details of the decision.
func message(dec ownership.Decision) string {
	var where []string
	for i, l := range dec.Local {
		of := l.Service.String()
		if same := func(j int) bool { return j >= 0 && j < len(dec.Local) && dec.Local[j].Service == l.Service }; same(i-1) || same(i+1) {
			of += " (" + l.String() + ")"
		}
		nodes, more := l.Nodes, ""
		if n := len(nodes) - mostNodes; n > 0 {
			nodes, more = nodes[:mostNodes], fmt.Sprintf(" and %d more", n)
		}
		where = append(where, fmt.Sprintf("those of %s are on %s%s", of, strings.Join(nodes, ", "), more))
	}
	switch {
	case len(where) == 1:
		return "externalTrafficPolicy is Local and none of its nodes that is alive has an endpoint: " + where[0] +
			". Let a Pod run on one of its nodes, or set the policy to Cluster"
	case len(where) > 1:
		return "externalTrafficPolicy is Local and none of its nodes that is alive has endpoints of each " +
			"Service, port and family on the address: " +
			strings.Join(where, ", ") +
			". Let their Pods run on the same nodes, set the policy to Cluster, or give each its own address"
	}
	return messages[dec.Reason]
}

// mostNodes is the maximum number of nodes of a Service in a message.
const mostNodes = 5

// messages explain each reason and its remediation.
var messages = map[view.Reason]string{
	view.NoEligibleNode:    "no node may answer for it",
	view.NodeNotAlive:      "none of its nodes has a reachable speaker",
	view.NoAdvertisement:   "no L2Advertisement covers its pool on any of its nodes that is alive",
	view.NoLocalEndpoint:   "externalTrafficPolicy is Local and none of its nodes that is alive has an endpoint",
	view.Waiting:           "the preferred node has not claimed it yet",
	view.Observer:          "its speaker has just started or resumed after a stall, and observes the others first",
	view.Isolated:          "no other speaker is reachable on its network, while others reach one another there or no host answers",
	view.Excluded:          "its nodes are excluded by label, are being deleted or have no network",
	view.NotListed:         "the node is not listed any more",
	view.Stopping:          "the speaker of its only node is being stopped",
	view.NodeDeclined:      "its nodes declined it; see the logs of their speakers",
	view.PartlyIsolated:    "no other speaker is reachable on one of its networks, while others reach one another there or no host answers",
	view.AddressConflict:   "another host answers for an address of it",
	view.Probing:           "it is asked whether another host has it",
	view.NoService:         "no Service holds its address",
	view.DataPlaneNotReady: "its virtual servers could not be programmed; see /readyz of the speaker",
	view.KernelAnswers:     "the kernel of its node may answer ARP by itself, since a sysctl could not be set; see /readyz of the speaker",
	view.NoInterface:       "no interface is up that has it in its subnet or that its L2Advertisement names (of a bond or bridge name that, not its port)",
}
