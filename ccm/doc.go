// Package ccm is the implementation of ironlb-ccm: the cloud provider "ironlb" for cloud-provider's service controller,
// and IronLB's own controllers.
//
// The parts:
//
//   - ledger holds the allocator under one lock. It makes every decision about addresses, so that a second front
//     (the controller for IronLB's loadBalancerClass) can use it together with the first.
//   - Cloud is the cloudprovider.Interface; loadBalancer its only sub-interface.
//   - poolSpecs feeds the ledger with pools and, once after the start, with the addresses that Services hold.
//   - poolStatus writes the status of pools.
//   - placer writes VirtualIP objects; the package placement decides the order of the nodes.
package ccm
