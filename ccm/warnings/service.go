package warnings

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// warning is one warning for the author of a Service.
type warning struct{ reason, message string }

// endpoint is an address and a port that clients outside the cluster connect to. Port 0 means a LoadBalancer address
// itself, which Services may share.
type endpoint struct {
	addr     netip.Addr
	protocol v1.Protocol
	port     int32
}

// claimant is a Service that claims an endpoint. The oldest one serves it on every node (docs/design/data-plane.md).
type claimant struct {
	service pools.ServiceKey
	created int64
}

// claims are all endpoints and their claimants, the oldest first.
type claims struct {
	of map[endpoint][]claimant
	by map[pools.ServiceKey][]endpoint
	// at returns the Services with an endpoint at an address.
	at func(netip.Addr) []pools.ServiceKey
}

// Reasons why a Service is not served as its author may expect. None of them keeps the Service from its address.
const (
	familyClosed          = "FamilyClosed"
	unreadableSourceRange = "UnreadableSourceRange"
	unknownScheduler      = "UnknownScheduler"
	unknownForwarding     = "UnknownForwarding"
	noNodePort            = "NoNodePort"
	portConflict          = "PortConflict"
	addressRefused        = "AddressRefused"
	endpointRefused       = "EndpointRefused"
)

// serviceWarnings returns the warnings that follow from the Service alone.
func serviceWarnings(svc *v1.Service, byDefault v1alpha1.Forwarding) []warning {
	out := sourceRangeWarnings(svc)
	if text, given := svc.Annotations[v1alpha1.AnnotationScheduler]; given {
		if _, err := v1alpha1.ParseScheduler(text); err != nil {
			out = append(out, warning{unknownScheduler, fmt.Sprintf("Annotation %s: %v. The default of the nodes is used", v1alpha1.AnnotationScheduler, err)})
		}
	}
	forwarding, err := v1alpha1.ParseForwarding(svc.Annotations[v1alpha1.AnnotationForwarding], byDefault)
	if err != nil {
		out = append(out, warning{unknownForwarding, fmt.Sprintf("Annotation %s: %v. %s is used", v1alpha1.AnnotationForwarding, err, forwarding)})
	}
	out = append(out, annotationWarnings(svc)...)
	if forwarding != v1alpha1.ForwardingNodePort {
		return out
	}
	for _, p := range svc.Spec.Ports {
		if p.NodePort == 0 {
			return append(out, warning{noNodePort, fmt.Sprintf("Annotation %s is %s, but port %d has no node port: connections go straight to the Pods. "+
				"Set spec.allocateLoadBalancerNodePorts to true, or remove the annotation", v1alpha1.AnnotationForwarding, forwarding, p.Port)})
		}
	}
	return out
}

// sourceRangeWarnings reports the source ranges that do not count, and the families that they close.
func sourceRangeWarnings(svc *v1.Service) []warning {
	ranges := v1alpha1.ParseSourceRanges(svc.Spec.LoadBalancerSourceRanges, svc.Annotations[v1alpha1.AnnotationSourceRanges])
	field := "spec.loadBalancerSourceRanges"
	if len(svc.Spec.LoadBalancerSourceRanges) == 0 {
		field = "Annotation " + v1alpha1.AnnotationSourceRanges
	}
	var out []warning
	for _, text := range ranges.Unreadable {
		out = append(out, warning{unreadableSourceRange, fmt.Sprintf("%s: %.64q is not a CIDR and allows no source. Write it as 192.0.2.0/24 or 2001:db8::/32", field, text)})
	}
	for _, family := range svc.Spec.IPFamilies {
		example, all := netip.IPv4Unspecified(), "0.0.0.0/0"
		if family == v1.IPv6Protocol {
			example, all = netip.IPv6Unspecified(), "::/0"
		}
		if !ranges.Accepts(example) {
			out = append(out, warning{familyClosed, fmt.Sprintf("%s has no %s range and refuses all connections of that family. Add %s to allow all sources", field, family, all)})
		}
	}
	return out
}

func (e endpoint) String() string {
	return fmt.Sprintf("%s %s", e.protocol, netip.AddrPortFrom(e.addr, uint16(e.port)))
}

func (e endpoint) compare(f endpoint) int {
	return cmp.Or(e.addr.Compare(f.addr), cmp.Compare(e.port, f.port), cmp.Compare(e.protocol, f.protocol))
}

// maxEndpoints is how many endpoints of a Service are compared with those of others. A tenant may write thousands of
// external IPs and of ports, and each pair is an endpoint.
const maxEndpoints = 1024

// endpointsOf returns the endpoints of a Service: LoadBalancer addresses if IronLB assigned them, and external IPs that
// are not refused. It returns at most maxEndpoints, with all ports of each address or none.
func endpointsOf(svc *v1.Service, ours bool, refused []refusedAddress) []endpoint {
	var texts []string
	if ours {
		texts = servicerecord.IPs(svc.Status.LoadBalancer.Ingress)
	}
	assigned := len(texts)
	texts = append(texts, svc.Spec.ExternalIPs...)
	var out []endpoint
	for i, text := range texts {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			continue // a host name
		}
		addr = addr.Unmap()
		if slices.ContainsFunc(refused, func(r refusedAddress) bool { return r.addr == addr && (r.field == inStatus) == (i < assigned) }) {
			continue
		}
		if len(out)+1+len(svc.Spec.Ports) > maxEndpoints {
			break
		}
		if i < assigned {
			out = append(out, endpoint{addr: addr})
		}
		for _, p := range svc.Spec.Ports {
			out = append(out, endpoint{addr, cmp.Or(p.Protocol, v1.ProtocolTCP), p.Port})
		}
	}
	slices.SortFunc(out, endpoint.compare)
	return slices.Compact(out)
}

func (c claimant) compare(d claimant) int {
	return cmp.Or(cmp.Compare(c.created, d.created), cmp.Compare(c.service.Namespace, d.service.Namespace), cmp.Compare(c.service.Name, d.service.Name))
}

func newClaims(at func(netip.Addr) []pools.ServiceKey) *claims {
	return &claims{of: map[endpoint][]claimant{}, by: map[pools.ServiceKey][]endpoint{}, at: at}
}

// set records the current claims of a Service, and returns the other Services that may be affected.
func (c *claims) set(me claimant, endpoints []endpoint) []pools.ServiceKey {
	var others []pools.ServiceKey
	changed := func(e endpoint) {
		if e.port == 0 {
			others = append(others, c.at(e.addr)...)
			return
		}
		for _, other := range c.of[e] {
			if other.service != me.service {
				others = append(others, other.service)
			}
		}
	}
	for _, e := range c.by[me.service] {
		i := slices.IndexFunc(c.of[e], func(d claimant) bool { return d.service == me.service })
		if slices.Contains(endpoints, e) && c.of[e][i] == me {
			continue
		}
		changed(e)
		if c.of[e] = slices.Delete(c.of[e], i, i+1); len(c.of[e]) == 0 {
			delete(c.of, e)
		}
	}
	for _, e := range endpoints {
		if slices.Contains(c.of[e], me) {
			continue
		}
		changed(e)
		i, _ := slices.BinarySearchFunc(c.of[e], me, claimant.compare)
		c.of[e] = slices.Insert(c.of[e], i, me)
	}
	if c.by[me.service] = endpoints; len(endpoints) == 0 {
		delete(c.by, me.service)
	}
	return others
}

// warnings returns a warning for each endpoint on which the Service gets no connections.
func (c *claims) warnings(service pools.ServiceKey) []warning {
	var out []warning
	for _, e := range c.by[service] {
		if first := c.of[e][0]; e.port != 0 && first.service != service {
			out = append(out, warning{portConflict, fmt.Sprintf("%v belongs to Service %v, which is older: its connections go there. "+
				"Change the port or the address of one of them", e, first.service)})
		}
	}
	return out
}

// refused returns a warning for each LoadBalancer address that is an endpoint: no node forwards to virtual addresses.
func (c *claims) refused(endpoints []*discoveryv1.EndpointSlice) (out []warning) {
	in := map[netip.Addr]string{} // the first slice with the address
	for _, slice := range endpoints {
		if watch.OfPods(slice) {
			continue
		}
		for _, addr := range watch.Addresses(watch.AddressesIn(slice)) {
			if first, seen := in[addr]; len(c.of[endpoint{addr: addr}]) > 0 && (!seen || slice.Name < first) {
				in[addr] = slice.Name
			}
		}
	}
	for _, addr := range slices.SortedFunc(maps.Keys(in), netip.Addr.Compare) {
		out = append(out, warning{endpointRefused, fmt.Sprintf("EndpointSlice %s: connections to endpoint %s are refused: it is the LoadBalancer address of Service %v. "+
			"Replace it with the addresses of that Service's Pods", in[addr], addr, c.of[endpoint{addr: addr}][0].service)})
	}
	return out
}

// joined returns the combined message of all warnings.
func joined(all []warning) string {
	texts := make([]string, len(all))
	for i, a := range all {
		texts[i] = a.message
	}
	return strings.Join(texts, ". ")
}

// Reasons why an annotation of a Service has no effect.
const (
	legacyAnnotation  = "LegacyAnnotation"
	unknownAnnotation = "UnknownAnnotation"
)

const (
	ourGroup       = "ironlb.io"
	metallbLegacy  = "metallb.universe.tf"
	metallbRecords = "ip-allocated-from-pool" // MetalLB's own record, in both of its groups
)

// ofLegacy maps MetalLB's annotations of its first group to their replacements.
var ofLegacy = map[string]string{
	"address-pool":    v1alpha1.AnnotationPool,
	"loadBalancerIPs": v1alpha1.AnnotationAddresses,
	"allow-shared-ip": servicerecord.AnnotationSharingKey,
}

// annotationWarnings warns about annotations that are ignored although they resemble supported ones.
func annotationWarnings(svc *v1.Service) (out []warning) {
	for _, key := range slices.Sorted(maps.Keys(svc.Annotations)) {
		group, name, _ := strings.Cut(key, "/")
		switch instead := ofLegacy[name]; {
		case !slices.Contains(watch.Groups, group) || name == metallbRecords && group != ourGroup || slices.Contains(watch.Annotations, key):
		case group == metallbLegacy && instead != "":
			out = append(out, warning{legacyAnnotation,
				fmt.Sprintf("Annotation %s is not read: write %s instead", key, instead)})
		default:
			out = append(out, warning{unknownAnnotation,
				fmt.Sprintf("Annotation %s is not read: no annotation of a Service has this name", key)})
		}
	}
	return out
}
