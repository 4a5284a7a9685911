// Package sim simulates a cluster of speakers in one process: any number of nodes and VirtualIPs, over a network with
// loss and delay, under a clock of its own.
//
// Each node has a real member.Core, a real reach.Core and a real plan.Planner, and drives them as the loop of package
// speaker does. Of its kernel, only the replies to ICMP echo and neighbor discovery are simulated. The lists come from
// ccm/placement. There are no goroutines and no sleeps: events of one queue are processed in the order of time, so a
// seed gives the same run each time. docs/development/simulation.md has the results.
package sim
