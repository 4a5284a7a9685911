package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
)

// MaxWeight is the greatest weight that is read back unchanged (the netlink library reads 16 bits).
const MaxWeight = 1<<16 - 1

// Addrs returns the virtual addresses of the table.
func (t Table) Addrs() map[netip.Addr]struct{} {
	addrs := make(map[netip.Addr]struct{}, len(t))
	for key := range t {
		addrs[key.Addr] = struct{}{}
	}
	return addrs
}

// Restrict returns the part of the table whose virtual addresses are in addrs. The parts of t are shared, not copied.
//
// Given IronLB's addresses it keeps Diff from deleting foreign virtual servers. A virtual server is IronLB's if its
// address is wanted now, or has IronLB's local route, or is in the packet filter's set of addresses.
func (t Table) Restrict(addrs map[netip.Addr]struct{}) Table {
	part := make(Table)
	for key, vs := range t {
		if _, ok := addrs[key.Addr]; ok {
			part[key] = vs
		}
	}
	return part
}

// Clone returns a deep copy.
func (t Table) Clone() Table {
	c := make(Table, len(t))
	for key, vs := range t {
		vs.RealServers = maps.Clone(vs.RealServers)
		c[key] = vs
	}
	return c
}

// Equal reports whether both tables have the same content, by the same rules as Diff.
func (t Table) Equal(u Table) bool {
	return maps.EqualFunc(t, u, VirtualServer.Equal)
}

// Equal reports whether both have the same settings and real servers, by the same rules as Diff.
func (v VirtualServer) Equal(u VirtualServer) bool {
	return v.Settings.normal() == u.Settings.normal() && maps.Equal(v.RealServers, u.RealServers)
}

// Apply carries out one op on the table itself, by the rules of every driver: adding an existing object edits it,
// deleting an absent one succeeds, editing an absent one fails. On an error the table is unchanged.
func (t Table) Apply(op Op) error {
	if err := op.Validate(); err != nil {
		return fmt.Errorf("%v: %w", op, err)
	}
	vs, exists := t[op.Virtual]
	switch op.Action {
	case AddVirtual:
		if !exists {
			vs.RealServers = make(map[netip.AddrPort]RealServer)
		}
		vs.Settings = op.Settings.normal()
		t[op.Virtual] = vs
		return nil
	case DeleteVirtual:
		delete(t, op.Virtual)
		return nil
	case DeleteReal:
		delete(vs.RealServers, op.Real)
		return nil
	}
	if !exists {
		return fmt.Errorf("%v: %w", op, ErrNoVirtual)
	}
	switch op.Action {
	case EditVirtual:
		vs.Settings = op.Settings.normal()
		t[op.Virtual] = vs
	case AddReal:
		t.addReal(op, vs)
	case EditReal:
		if _, ok := vs.RealServers[op.Real]; !ok {
			return fmt.Errorf("%v: %w", op, ErrNoReal)
		}
		vs.RealServers[op.Real] = op.RealServer
	}
	return nil
}

func (t Table) addReal(op Op, vs VirtualServer) {
	if vs.RealServers == nil {
		vs.RealServers = make(map[netip.AddrPort]RealServer)
		t[op.Virtual] = vs
	}
	vs.RealServers[op.Real] = op.RealServer
}

// Validate returns why no kernel could carry out the op as specified, wrapping [ErrInvalid].
func (o Op) Validate() error {
	switch {
	case o.Action < AddVirtual || o.Action > DeleteVirtual:
		return fmt.Errorf("%w action", ErrInvalid)
	case !o.Virtual.Addr.IsValid() || o.Virtual.Addr.IsUnspecified() || o.Virtual.Addr.Is4In6():
		return fmt.Errorf("%w virtual address %v", ErrInvalid, o.Virtual.Addr)
	case o.Virtual.Protocol != TCP && o.Virtual.Protocol != UDP && o.Virtual.Protocol != SCTP:
		return fmt.Errorf("%w protocol %v", ErrInvalid, o.Virtual.Protocol)
	case o.Virtual.Port == 0:
		return fmt.Errorf("%w port 0", ErrInvalid)
	}
	switch o.Action {
	case AddVirtual, EditVirtual:
		return o.Settings.validate()
	case AddReal, EditReal, DeleteReal:
		return o.validateReal()
	}
	return nil
}

func (s Settings) validate() error {
	switch {
	case s.Scheduler == "":
		return fmt.Errorf("%w empty scheduler", ErrInvalid)
	case s.Flags&Persistent != 0 && s.Timeout == 0:
		return fmt.Errorf("%w persistence without a time-out", ErrInvalid)
	case s.Flags&Persistent == 0 && s.Timeout != 0:
		return fmt.Errorf("%w time-out without persistence", ErrInvalid)
	}
	return nil
}

func (o Op) validateReal() error {
	switch {
	case !o.Real.IsValid() || o.Real.Addr().IsUnspecified() || o.Real.Addr().Is4In6():
		return fmt.Errorf("%w real server address %v", ErrInvalid, o.Real)
	case o.Real.Addr().Is4() != o.Virtual.Addr.Is4():
		return fmt.Errorf("%w real server %v of another family than %v", ErrInvalid, o.Real.Addr(), o.Virtual.Addr)
	case o.RealServer.Weight > MaxWeight:
		return fmt.Errorf("%w weight %d, at most %d", ErrInvalid, o.RealServer.Weight, MaxWeight)
	}
	return nil
}
