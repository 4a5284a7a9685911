// Package ccm is the implementation of ironlb-ccm: the cloud provider "ironlb" for cloud-provider's controller manager,
// and the wiring of its controllers.
//
// Cloud is the cloudprovider.Interface; a load balancer is its only sub-interface. The controllers are in packages,
// each with the part of the model that it owns:
//
//   - allocation: Service -> claim -> address; servicerecord is the form of both on a Service
//   - addresspool: IPAddressPools to the allocator, and their status
//   - virtualip: which nodes may announce an address, in which order; package placement decides it
//   - bgpstatus: the status of BGPPeers and BGPAdvertisements
//   - warnings: what the author of a Service should know
//   - install: the subcommands release and crds
//
// What they need of one another they declare as interfaces, and Cloud passes it in. The Cloud itself owns the leader's
// Lease, the gate that ends all writes before it is released, and the record of outages of the API server.
package ccm
