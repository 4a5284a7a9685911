// Package servicerecord translates between a Service object and the allocator of addresses.
//
// Scope decides which Services IronLB serves. ClaimOf reads from a Service what it requests, by annotations and fields,
// and what it holds by IronLB's record. Outcome is what IronLB writes in return, always in one patch of the status:
// ingress, record, annotation, condition and finalizer. The record is the message of a condition, which the author of a
// Service cannot write; the annotation is for users and is never read as a record. A patch names the version of the
// object that was decided about, so that the API server refuses it after any other change: see RetryOnConflict.
//
// The package keeps no state.
package servicerecord
