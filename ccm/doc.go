// Package ccm is what ironlb-ccm runs: the cloud provider "ironlb" for cloud-provider's service controller, and the
// controllers of our own beside it.
//
// Who owns what:
//
//   - ledger holds the allocator under one lock. Everything that decides about addresses goes through it, so that a second
//     front (a controller for our loadBalancerClass) can be put beside the first.
//   - Cloud is the cloudprovider.Interface; loadBalancer its only sub-interface.
//   - poolSpecs feeds the ledger with pools and, once after the start, with what Services hold already.
//   - poolStatus writes the status of pools.
//   - placer writes VirtualIP objects; which node comes first is decided by the package placement.
package ccm
