// Package watch states which parts of the watched objects count.
//
//   - Objects and Speakers drop from the caches what no controller reads.
//   - ServiceChanged and PoolChanged report whether a change is one that placement and BGP depend on. Heartbeats and
//     counts are not.
//   - StatusUnknown and AbsentFor state when the report of a node, and the absence of its speaker, count.
//   - Kinds is the cache of the kinds of IronLB's API group.
package watch
