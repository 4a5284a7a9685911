// Package kubelet holds what the lab and its nodes' agents say to each other
// through Pod objects.
package kubelet

// AnnotationIPs is written by the lab on a Pod once its namespace serves; the
// node's agent then reports the Pod as running with these addresses, divided
// by commas.
const AnnotationIPs = "lab.ironlb.io/pod-ips"

// AnnotationReady set to "false" has the node's agent report the Pod as not
// ready, while it goes on to serve.
const AnnotationReady = "lab.ironlb.io/ready"
