package virtualip

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/placement"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// attached are the interfaces of the nodes, by the latest SpeakerStatuses: which nodes can answer for an address.
type attached struct {
	bySubnet map[netip.Prefix]map[string]bool
	byName   map[string]map[string]bool
	// of are the subnets that contain an address, sets the nodes by the subnets and names that suffice.
	of   map[netip.Addr][]netip.Prefix
	sets map[string]placement.Able
}

func newAttached(speakers []v1alpha1.SpeakerStatus) attached {
	out := attached{
		bySubnet: map[netip.Prefix]map[string]bool{}, byName: map[string]map[string]bool{},
		of: map[netip.Addr][]netip.Prefix{}, sets: map[string]placement.Able{},
	}
	for i := range speakers {
		for _, in := range speakers[i].Status.Interfaces {
			add(out.byName, in.Name, speakers[i].Name)
			for _, text := range in.Subnets {
				if subnet, err := netip.ParsePrefix(text); err == nil {
					add(out.bySubnet, subnet.Masked(), speakers[i].Name)
				}
			}
		}
	}
	return out
}

func add[K comparable](sets map[K]map[string]bool, key K, node string) {
	if sets[key] == nil {
		sets[key] = map[string]bool{}
	}
	sets[key][node] = true
}

// unknown describes the named interfaces that no node has up, empty for none or before the first report.
func (a *attached) unknown(named []string) string {
	var absent []condition.Name
	for _, name := range named {
		if len(a.byName[name]) == 0 {
			absent = append(absent, condition.Name(name))
		}
	}
	if len(absent) == 0 || len(a.byName) == 0 {
		return ""
	}
	has := condition.Some(condition.Names(slices.Sorted(maps.Keys(a.byName))))
	return fmt.Sprintf("spec.interfaces: no node has %s up, or it is no Ethernet interface of its own; nodes have %s: correct the name, or remove it", condition.Some(absent), has)
}

// able returns the nodes that have an interface for each address of a unit, nil if there are none or all nodes are
// listed anyway.
func (p *Placer) able(u unit, who match) placement.Able {
	if u.local || len(who.nodes) <= placement.Most {
		return nil
	}
	return p.attached.able(u.addresses, who)
}

func (a *attached) able(addresses []pools.Address, who match) placement.Able {
	var key strings.Builder
	for _, name := range who.interfaces {
		key.WriteString(name + " ")
	}
	subnets := make([][]netip.Prefix, len(addresses))
	for i, address := range addresses {
		if who.bySubnet {
			subnets[i] = a.containing(address.Addr)
		}
		for _, subnet := range subnets[i] {
			key.WriteString(subnet.String() + " ")
		}
		key.WriteByte('/')
	}
	if set, known := a.sets[key.String()]; known {
		return set
	}
	var set placement.Able
	if nodes := a.nodes(who.interfaces, subnets); len(nodes) > 0 {
		set = &nodes
	}
	if a.sets != nil { // nil before the first report
		a.sets[key.String()] = set
	}
	return set
}

// nodes returns the nodes with one of the named interfaces, or with an interface in one of the subnets of each address.
func (a *attached) nodes(named []string, subnets [][]netip.Prefix) map[string]bool {
	out := map[string]bool{}
	for i, of := range subnets {
		here := map[string]bool{}
		for _, subnet := range of {
			for node := range a.bySubnet[subnet] {
				here[node] = i == 0 || out[node]
			}
		}
		for _, name := range named {
			for node := range a.byName[name] {
				here[node] = i == 0 || out[node]
			}
		}
		out = here
	}
	for node, is := range out {
		if !is {
			delete(out, node)
		}
	}
	return out
}

// containing returns the subnets that contain an address, sorted.
func (a *attached) containing(addr netip.Addr) []netip.Prefix {
	if of, known := a.of[addr]; known {
		return of
	}
	var of []netip.Prefix
	for subnet := range a.bySubnet {
		if subnet.Contains(addr) {
			of = append(of, subnet)
		}
	}
	slices.SortFunc(of, netip.Prefix.Compare)
	if a.of != nil {
		a.of[addr] = of
	}
	return of
}

// sameInterfaces reports whether two lists are equal.
func sameInterfaces(a, b []v1alpha1.InterfaceStatus) bool {
	return slices.EqualFunc(a, b, func(a, b v1alpha1.InterfaceStatus) bool {
		return a.Name == b.Name && slices.Equal(a.Subnets, b.Subnets)
	})
}
