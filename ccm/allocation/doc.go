// Package allocation assigns addresses to Services: Service -> claim -> address -> status.
//
// In come Services from informers, pools and withheld addresses from other packages. Out go one patch per changed
// outcome, one Event with it, and the pools' counts through [Ledger]. Nothing else is written.
//
//   - [Ledger] owns the record: the allocator (package pools) under one lock, and per Service the last decision, the
//     last write and what was published. Every change of the allocator goes through change, which decides again about
//     the Services that the change concerns and requeues those with another decision. An address that a Service gave
//     up stays reserved for it until its status is written: see docs/design/ccm-crash.md.
//   - [Registrar] decides about one Service and writes the outcome, or removes it. It keeps no state. Two controllers
//     call it: cloud-provider's service controller for Services without a class ([LoadBalancer], with the requeuer as
//     its informer and a filtered client), and classController for those of IronLB's class.
//   - divergence repairs the status of a Service that another writer changed, with increasing delays.
//
// After a start nothing is assigned before the recorded addresses of all Services are adopted (adoption.go).
package allocation
