// Package allocation assigns addresses to Services: Service -> claim -> address -> status.
//
//   - Ledger holds the allocator (package pools) under one lock, and per Service the last decision and the last
//     write. Every decision about addresses is made by it. An address that a Service gave up stays reserved for it
//     until its status is written: see docs/design/ccm-crash.md.
//   - registrar decides about one Service and writes the outcome, or removes it. Two controllers call it:
//     cloud-provider's service controller for Services without a class (loadBalancer, with the requeuer as its
//     informer and a filtered client), and classController for those of IronLB's class.
//   - After a start nothing is assigned before the recorded addresses of all Services are adopted.
//   - divergence repairs the status of a Service that another writer changed, with increasing delays.
package allocation
