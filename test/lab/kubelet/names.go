// Package kubelet defines the Pod annotations that the lab and its nodes' agents exchange.
package kubelet

// AnnotationIPs is written by the lab on a Pod once its server is up. The node's agent then reports the Pod as running
// with these addresses, separated by commas.
const AnnotationIPs = "lab.ironlb.io/pod-ips"

// AnnotationReady set to "false" makes the node's agent report the Pod as not ready, while the Pod continues to serve.
const AnnotationReady = "lab.ironlb.io/ready"

// AnnotationGrace makes the lab keep a deleted Pod, which serves until its grace period has ended. Other Pods end at
// once.
const AnnotationGrace = "lab.ironlb.io/grace"
