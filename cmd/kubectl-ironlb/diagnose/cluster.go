// Package diagnose finds out from the objects of a cluster what works and what does not: for a Service each step of the
// way from its spec to the network, and for the cluster all problems. It is pure: no clock, no I/O. A reason is that of
// the condition that reports it (docs/reference/events-and-conditions.md), or one of the constants here.
package diagnose

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Cluster holds the objects that a diagnosis depends on, sorted by namespace and name.
type Cluster struct {
	Now        time.Time
	Services   []corev1.Service
	Slices     []discoveryv1.EndpointSlice
	Nodes      []corev1.Node
	Namespaces []corev1.Namespace
	Pools      []v1alpha1.IPAddressPool
	L2         []v1alpha1.L2Advertisement
	BGP        []v1alpha1.BGPAdvertisement
	Peers      []v1alpha1.BGPPeer
	VirtualIPs []v1alpha1.VirtualIP
	Speakers   []v1alpha1.SpeakerStatus
	// Pods are those of the speakers, of doctor only.
	Pods []corev1.Pod

	// Settings are those of ironlb-ccm.
	Settings Settings
	// Controller is why ironlb-ccm does not run, Daemons why some speakers do not; empty if they do, or if that is
	// unknown.
	Controller, Daemons string
	// Unread are the kinds that could not be listed, with the error.
	Unread map[string]string

	absent map[string]v1alpha1.Absence // both once asked for
	found  *index
}

// index finds objects, so that a diagnosis of all Services takes time in proportion to their number.
type index struct {
	services   map[types.NamespacedName]*corev1.Service
	holders    map[netip.Addr][]*corev1.Service
	slices     map[types.NamespacedName][]*discoveryv1.EndpointSlice // by Service
	nodes      map[string]*corev1.Node
	pools      map[string]*v1alpha1.IPAddressPool
	speakers   map[string]*v1alpha1.SpeakerStatus
	virtualIPs map[string]*v1alpha1.VirtualIP // by address
	inForce    pools.Index
	ads        []selecting
	announcers map[string][]*v1alpha1.SpeakerStatus // by the names of the advertisements
}

// find indexes the objects once.
func (c *Cluster) find() *index {
	if c.found != nil {
		return c.found
	}
	f := &index{
		services: map[types.NamespacedName]*corev1.Service{}, holders: map[netip.Addr][]*corev1.Service{},
		slices: map[types.NamespacedName][]*discoveryv1.EndpointSlice{}, virtualIPs: map[string]*v1alpha1.VirtualIP{},
		nodes: byName(c.Nodes, (*corev1.Node).GetName), pools: byName(c.Pools, (*v1alpha1.IPAddressPool).GetName),
		speakers: byName(c.Speakers, (*v1alpha1.SpeakerStatus).GetName), announcers: map[string][]*v1alpha1.SpeakerStatus{},
		inForce: pools.NewIndex(c.poolsInForce()), ads: c.advertisements(),
	}
	for i := range c.Services {
		svc := &c.Services[i]
		f.services[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = svc
		records, _ := v1alpha1.RecordsOf(svc)
		for _, r := range records {
			f.holders[r.Addr] = append(f.holders[r.Addr], svc)
		}
	}
	for i := range c.Slices {
		of := types.NamespacedName{Namespace: c.Slices[i].Namespace, Name: c.Slices[i].Labels[discoveryv1.LabelServiceName]}
		f.slices[of] = append(f.slices[of], &c.Slices[i])
	}
	for i := range c.VirtualIPs {
		for _, addr := range c.VirtualIPs[i].Spec.Addresses {
			if f.virtualIPs[addr] == nil {
				f.virtualIPs[addr] = &c.VirtualIPs[i]
			}
		}
	}
	c.found = f
	return f
}

func byName[T any](all []T, name func(*T) string) map[string]*T {
	out := make(map[string]*T, len(all))
	for i := range all {
		out[name(&all[i])] = &all[i]
	}
	return out
}

// Settings of ironlb-ccm, from the arguments of its Deployment.
type Settings struct {
	servicerecord.Scope
	// IgnoreExclude is --ignore-exclude-lb.
	IgnoreExclude bool
}

// Absent returns the nodes whose speaker is gone: by the reports of the others, or because Kubernetes has no news of the
// node, of which the last speakers that end are not reported by another.
func (c *Cluster) Absent() map[string]v1alpha1.Absence {
	if c.absent != nil {
		return c.absent
	}
	live := func(name string) bool { n := c.node(name); return n == nil || !watch.StatusUnknown(n) }
	c.absent = v1alpha1.Absent(c.Speakers, live)
	for i := range c.Speakers {
		if name := c.Speakers[i].Name; c.absent[name] == "" && !live(name) {
			c.absent[name] = v1alpha1.AbsenceSilent
		}
	}
	return c.absent
}

func (c *Cluster) speaker(node string) *v1alpha1.SpeakerStatus { return c.find().speakers[node] }

func (c *Cluster) node(name string) *corev1.Node { return c.find().nodes[name] }

func (c *Cluster) pool(name string) *v1alpha1.IPAddressPool { return c.find().pools[name] }

// poolsInForce parses the pools, as ironlb-ccm uses them: while a spec cannot be read, the last good one is in force.
func (c *Cluster) poolsInForce() (all []pools.Pool) {
	for i := range c.Pools {
		p, err := v1alpha1.ParsePool(&c.Pools[i])
		if good := c.Pools[i].DeepCopy(); err != nil && json.Unmarshal([]byte(good.Status.LastGood), &good.Spec) == nil {
			p, err = v1alpha1.ParsePool(good)
		}
		if err != nil {
			p = pools.Pool{Name: c.Pools[i].Name, Unreadable: true}
		}
		all = append(all, p)
	}
	return all
}

// poolOf returns the name of the pool that has the address, empty for none.
func (c *Cluster) poolOf(addr netip.Addr) string { return c.find().inForce.PoolOf(addr) }

// Service returns the Service, nil if it does not exist.
func (c *Cluster) Service(namespace, name string) *corev1.Service {
	return c.find().services[types.NamespacedName{Namespace: namespace, Name: name}]
}

// VirtualIP returns the VirtualIP that has the address, nil if there is none.
func (c *Cluster) VirtualIP(addr netip.Addr) *v1alpha1.VirtualIP {
	return c.find().virtualIPs[addr.String()]
}

// readyOn returns how many ready endpoints of a port and family a Service has on each node, or, without any, how many
// terminating ones that still serve.
func (c *Cluster) readyOn(svc *corev1.Service, port *corev1.ServicePort, ipv4 bool) map[string]int {
	family, out, ending := discoveryv1.AddressTypeIPv6, map[string]int{}, map[string]int{}
	if ipv4 {
		family = discoveryv1.AddressTypeIPv4
	}
	for _, s := range c.find().slices[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] {
		if s.AddressType != family || !slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool {
			return p.Port != nil && ptr.Deref(p.Name, "") == port.Name && ptr.Deref(p.Protocol, corev1.ProtocolTCP) == cmp.Or(port.Protocol, corev1.ProtocolTCP)
		}) {
			continue
		}
		for _, e := range s.Endpoints {
			switch node := ptr.Deref(e.NodeName, "no node"); {
			case ptr.Deref(e.Conditions.Ready, true):
				out[node]++
			case ptr.Deref(e.Conditions.Serving, true) && ptr.Deref(e.Conditions.Terminating, false):
				ending[node]++
			}
		}
	}
	if len(out) == 0 {
		return ending // they still serve
	}
	return out
}

// Sort sorts the objects, for a result that does not depend on the order of the lists.
func (c *Cluster) Sort() {
	slices.SortFunc(c.Services, func(a, b corev1.Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(c.Nodes, func(a, b corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Pools, func(a, b v1alpha1.IPAddressPool) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(c.L2, func(a, b v1alpha1.L2Advertisement) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(c.BGP, func(a, b v1alpha1.BGPAdvertisement) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Peers, func(a, b v1alpha1.BGPPeer) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Speakers, func(a, b v1alpha1.SpeakerStatus) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(c.VirtualIPs, func(a, b v1alpha1.VirtualIP) int {
		return cmp.Or(firstAddress(&a).Compare(firstAddress(&b)), cmp.Compare(a.Name, b.Name))
	})
}

// firstAddress returns the first address of a VirtualIP, as the sort key.
func firstAddress(v *v1alpha1.VirtualIP) netip.Addr {
	if len(v.Spec.Addresses) == 0 {
		return netip.Addr{}
	}
	addr, _ := netip.ParseAddr(v.Spec.Addresses[0])
	return addr
}
