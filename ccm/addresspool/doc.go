// Package addresspool connects the IPAddressPools to the allocator, in both directions.
//
// Specs passes the pools to the allocator after every change. An invalid pool counts with its last valid
// configuration, which its status keeps across restarts. Once after the start Specs passes on the cool-downs that the
// status of pools records, then the addresses that Services hold, and only then is an address assigned. Status writes
// the counts, the cool-downs and the conditions of each pool, at most twice a second, and an Event per cause while a
// pool is not in use.
package addresspool
