// Package v1alpha1 holds the API kinds of the group ironlb.io: what operators write (IPAddressPool, L2Advertisement)
// what the controllers assign to the speakers (VirtualIP), and the status of their nodes (SpeakerStatus). The CRDs
// under deploy/chart/ironlb/crds are generated from it.
//
// +kubebuilder:object:generate=true
// +groupName=ironlb.io
package v1alpha1
