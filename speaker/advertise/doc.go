// Package advertise makes this node's virtual addresses known: L2 by ARP and NDP, BGP by routes.
//
// Each part records what its announcer or daemon is to have and what it has. For each reconcile it is given the plan
// (Update). It withdraws first; then it announces what is programmed already, and after programming the rest. An
// address may be announced only while the data plane forwards it: the caller decides and passes that as a predicate. A
// prefix of several addresses gets a blackhole route before it is announced and keeps it until it is withdrawn.
package advertise
