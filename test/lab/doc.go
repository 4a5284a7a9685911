// Package lab builds a Kubernetes cluster on one machine: a real control plane, nodes, Pods, a router and clients, each
// in a network namespace.
//
//	this machine's kernel     the lab's kernel: this one, or a guest's where this one has no IPVS
//	┌──────────────────┐      ┌───────────────────────────────────────────────────────────┐
//	│ mgmt             │ api  │  bridge api ──── api0 ┐                                   │
//	│ etcd, API server,│══════│                       node1, node2, ... ── pods0 ── Pods  │
//	│ controllers, ccm │      │  bridge lan ──── eth0 ┘                                   │
//	└──────────────────┘      │      ├── client         .100                              │
//	                          │      └── router .1 ── remote (behind the router)          │
//	                          └───────────────────────────────────────────────────────────┘
//
//	LAN   192.0.2.0/24       router .1, nodes .11 and on, client .100; .128/28 is free for pools
//	API   198.51.100.0/25    API server .1:6443, nodes .11 and on
//	WAN   198.51.100.128/25  router .129, remote .200; .232/30 is what Behind makes
//	Pods  203.0.113.128/25   a /28 for each node
//	ClusterIPs 203.0.113.0/25 and 2001:db8:0:4::/112
//	IPv6  each address of the LAN, the WAN and the Pods has a twin with the same last byte: 2001:db8:0:1::/64, :2, :3
//
// Each node has two separate links, so that either can be cut alone. Pods are objects: create one with spec.nodeName
// set (by kubectl, a client, or AddPod). The lab creates its namespace and runs a server in it that answers with the
// Pod's name and the client's address (package probe has the ports). An agent in each node's namespace reports Node and
// Pod status over the node's own API link, so a dead node becomes NotReady as a real one does.
//
// With Config.Kubelets the nodes are real ones (package kubenode): containerd, a kubelet, a scheduler, every
// controller, CoreDNS, kube-proxy if configured, and Pods from images that the lab builds and imports. Ranges are
// larger, as required by upstream's tests: Pods 10.244.0.0/16 and 2001:db8:0:3::/64, a /24 and a /80 for each node;
// ClusterIPs 10.96.0.0/16. Remote has a link to the API server.
//
// With Config.VirtualMachines the first nodes are virtual machines under QEMU, each with its own kernel and clocks and
// with links to both switches. They can be paused, as a hypervisor does. No Pods run on them.
//
// Names have a prefix unique to the lab, so several labs run side by side. Close removes everything; New also removes
// the residual state of a killed lab.
package lab
