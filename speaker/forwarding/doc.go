// Package forwarding plans the data plane of one node: from Services and EndpointSlices to virtual servers, elements of
// the packet filter and local addresses.
//
// Each Service is planned on its own (service.go). Its accepted addresses (accept.go) and ports become virtual servers
// (ports.go). The endpoints of a port become a list of real servers (drain.go), which virtual servers share:
// unreachable nodes are excluded first, then conditions, topology hints and checks of new endpoints apply (choose.go);
// endpoints that are not chosen any more keep their connections. Of several Services that claim one virtual server the
// oldest wins (claims.go).
//
// The Planner plans again only the Services that a change affects (touched.go), and names what differs. Ownership and
// routes depend on it by view.DataPlane.
//
// It is pure: no I/O, no clock, no Kubernetes type.
package forwarding
