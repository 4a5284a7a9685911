// Package pools decides which address a Service gets.
//
// It is pure: no I/O, no clock, no goroutine, no Kubernetes type. Time is an argument. One goroutine owns an Allocator,
// or its callers lock it.
//
//	a := pools.New()
//	a.SetPools(all)            // the full set, after every change
//	a.SetNamespace(ns, labels) // for the pools' namespace selectors
//	a.Withhold(refusal, addrs) // addresses that something else has
//	a.Restore(coolDowns, now)  // after a start
//	a.Adopt(claims)            // after a start, before the first Assign: the addresses that Services hold already
//
//	d := a.Assign(claim, now)  // what the Service requests -> what it has, and why
//	a.Written(key, now)        // its status shows the decision: what it gave up is free
//	a.Release(key, now)        // it is gone
//
//	keys := a.Reevaluate(now)  // after every call above: the Services whose decision changed
//
// What goes in are pools, labels of namespaces, claims of Services, and addresses that no Service may have. What comes
// out is a [Decision] for each claim and a [PoolStatus] for each pool. A decision depends on what went in and on the
// addresses held, not on the order of earlier calls: among equals the older Service, the first pool by name and the
// lowest address win.
//
// A Service keeps what it holds while a pool accepts it there. A request that cannot be met changes nothing. What a
// Service gives up stays its own until Written, so that the API server never shows one address on two Services. Nobody
// has to retry: when an address becomes free, or a pool, a namespace or a sharer changes, Reevaluate gives it to the
// oldest Service that can use it. A change costs in proportion to the Services that wait for that pool.
//
// Guard answers another question for the speakers: whether an address may become local on a node at all.
package pools
