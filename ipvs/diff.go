package ipvs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Action is the kind of an Op.
type Action uint8

// The actions in the order in which Diff emits them: nothing is deleted before all of its replacements exist.
const (
	AddVirtual Action = iota + 1
	EditVirtual
	AddReal
	EditReal
	DeleteReal
	DeleteVirtual
)

// String returns the action as in a log line.
func (a Action) String() string {
	switch a {
	case AddVirtual:
		return "add virtual server"
	case EditVirtual:
		return "edit virtual server"
	case AddReal:
		return "add real server"
	case EditReal:
		return "edit real server"
	case DeleteReal:
		return "delete real server"
	case DeleteVirtual:
		return "delete virtual server"
	}
	return fmt.Sprintf("Action(%d)", uint8(a))
}

// Op is one change of a Table. It is comparable; the fields that its action does not need are zero.
type Op struct {
	Action  Action
	Virtual Key
	// Settings belong to AddVirtual and EditVirtual.
	Settings Settings
	// Real belongs to the three actions on real servers, RealServer to the adding and the editing one.
	Real       netip.AddrPort
	RealServer RealServer
}

// String returns the op in one line, as for a log or an error.
func (o Op) String() string {
	switch o.Action {
	case AddVirtual, EditVirtual:
		return fmt.Sprintf("%v %v %v", o.Action, o.Virtual, o.Settings)
	case AddReal, EditReal:
		return fmt.Sprintf("%v %v of %v %v", o.Action, o.Real, o.Virtual, o.RealServer)
	case DeleteReal:
		return fmt.Sprintf("%v %v of %v", o.Action, o.Real, o.Virtual)
	}
	return fmt.Sprintf("%v %v", o.Action, o.Virtual)
}

// Diff returns the ops that change have into want: adds and edits before deletes, a virtual server before its real
// servers, each group sorted by virtual server and then by real server.
//
// It deletes every virtual server of have that want lacks. So have must contain only IronLB's: see [Table.Restrict].
func Diff(have, want Table) []Op {
	var ops []Op
	for key, w := range want {
		h, exists := have[key]
		ops = append(ops, diffSettings(key, h, w, exists)...)
		ops = append(ops, diffReals(key, h.RealServers, w.RealServers)...)
	}
	for key := range have {
		if _, wanted := want[key]; !wanted {
			ops = append(ops, Op{Action: DeleteVirtual, Virtual: key})
		}
	}
	slices.SortFunc(ops, compareOps)
	return ops
}

func diffSettings(key Key, have, want VirtualServer, exists bool) []Op {
	wanted := want.Settings.normal()
	switch {
	case !exists:
		return []Op{{Action: AddVirtual, Virtual: key, Settings: wanted}}
	case have.Settings.normal() != wanted:
		return []Op{{Action: EditVirtual, Virtual: key, Settings: wanted}}
	}
	return nil
}

func diffReals(key Key, have, want map[netip.AddrPort]RealServer) []Op {
	var ops []Op
	for addr, w := range want {
		switch h, exists := have[addr]; {
		case !exists:
			ops = append(ops, Op{Action: AddReal, Virtual: key, Real: addr, RealServer: w})
		case h != w:
			ops = append(ops, Op{Action: EditReal, Virtual: key, Real: addr, RealServer: w})
		}
	}
	for addr := range have {
		if _, wanted := want[addr]; !wanted {
			ops = append(ops, Op{Action: DeleteReal, Virtual: key, Real: addr})
		}
	}
	return ops
}

// compareOps orders by phase (virtual servers, real servers, deletions of either), then virtual server, action, real
// server. No two ops of one Diff compare equal.
func compareOps(a, b Op) int {
	return cmp.Or(
		cmp.Compare(a.Action, b.Action),
		a.Virtual.Compare(b.Virtual),
		a.Real.Compare(b.Real),
	)
}
