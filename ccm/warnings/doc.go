// Package warnings publishes to the author of a Service what keeps it from being served as expected.
//
// Publisher evaluates one Service at a time and writes an Event for each new warning, and one condition on a Service
// that IronLB serves. Warnings follow from API objects alone: the Service itself, the addresses that no Service may
// have (guard, with the rules of the speakers), endpoints that an older Service has (claims), and addresses that no
// node announces (announcements). None of them keeps a Service from its address.
package warnings
