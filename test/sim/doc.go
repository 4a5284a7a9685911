// Package sim is a cluster of speakers in one process: as many nodes and VirtualIPs as asked for, over a network that loses and
// delays, under a clock of its own.
//
// Each node is a real member.Core, a real reach.Core and a real plan.Planner, and does with them what the loop of package
// speaker does. Of its kernel there is what answers ICMP echo and neighbor discovery. The lists come from ccm/placement.
// There are no goroutines and no sleeps: one queue of events is worked off in the order of time, so a seed gives the same
// run each time. docs/design/simulation.md has what it measures.
package sim
