package nftlb

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
)

// choice is the method that selects a slot of a virtual server for a connection.
type choice uint8

const (
	// refuse: there are no slots.
	refuse choice = iota
	random
	// byAddr and byPort hash the client's address, or address and port.
	byAddr
	byPort
	// withAffinity selects nothing: the chain records the real server of a connection.
	withAffinity
)

// class is the common configuration of virtual servers that use the same chain. There are few, whatever the number of
// virtual servers.
type class struct {
	choice choice
	slots  uint32
	// sticky checks the client's affinity first.
	sticky bool
	// timeout is the duration of affinity in seconds.
	timeout uint32
}

// hashSeed makes all nodes hash equally. Its value is arbitrary.
const hashSeed = 0x4c42

// name returns the name of the chain.
func (c class) name() string {
	text := [...]string{refuse: "refuse", random: "random", byAddr: "hash-address", byPort: "hash-port", withAffinity: "affinity"}[c.choice]
	switch c.choice {
	case refuse:
		return text
	case withAffinity:
		return fmt.Sprintf("%s-%d", text, c.timeout)
	}
	text = fmt.Sprintf("%s-%d", text, c.slots)
	if c.sticky {
		text += "-sticky"
	}
	return text
}

// verdict sends a packet to the chain. Refused packets are left to later chains, after the packet filter.
func (c class) verdict() string {
	if c.choice == refuse {
		return "return"
	}
	return "goto " + c.name()
}

// rules returns the rules of the chain. [addAffinityRules] adds those of a class with affinity.
func (c class) rules(f family) []string {
	dnat := func(slot string) (rules []string) {
		for _, p := range protocols {
			rules = append(rules, fmt.Sprintf("meta l4proto %s dnat to %s daddr . th dport . %s mod %d%s map @%s",
				nftName(p), f.name, slot, c.slots, c.seed(), mapReals[p]))
		}
		return rules
	}
	switch {
	case c.choice == refuse:
		return []string{"meta l4proto tcp reject with tcp reset", "reject with " + f.unreachable}
	case c.choice == withAffinity:
		return nil
	case c.sticky:
		return []string{
			fmt.Sprintf("dnat to %s saddr . %[1]s daddr . meta l4proto . th dport map @%s", f.name, mapAffinity),
			"goto " + c.withoutAffinity().name(),
		}
	case c.choice == byAddr:
		return dnat(fmt.Sprintf("jhash %s saddr", f.name))
	case c.choice == byPort:
		return dnat(fmt.Sprintf("jhash %s saddr . th sport", f.name))
	}
	return dnat("numgen random")
}

func (c class) seed() string {
	if c.choice == random {
		return ""
	}
	return fmt.Sprintf(" seed 0x%x", hashSeed)
}

// withoutAffinity returns the class without affinity.
func (c class) withoutAffinity() class {
	c.sticky = false
	return c
}

// scheduler defines how a scheduler is implemented.
type scheduler struct {
	choice choice
	// weighted gives a real server slots in proportion to its weight.
	weighted bool
	// consistent uses a fixed number of slots, so that few are reassigned when a real server is added or deleted.
	consistent bool
}

var schedulers = map[string]scheduler{
	"rr":     {choice: random},
	Fallback: {choice: random, weighted: true},
	"sh":     {choice: byAddr, weighted: true},
	"mh":     {choice: byAddr, weighted: true, consistent: true},
}

// Fallback is the scheduler in place of those that only IPVS has.
const Fallback = "wrr"

// onlyIPVS are the schedulers of Linux (net/netfilter/ipvs) that count connections or choose a fixed real server.
var onlyIPVS = []string{"lc", "wlc", "lblc", "lblcr", "dh", "sed", "nq", "fo", "ovf"}

// HasScheduler reports whether nftables implements a scheduler; else [Fallback] is in effect.
func HasScheduler(name string) bool {
	_, has := schedulers[name]
	return has
}

// schedulerOf returns the scheduler in effect for a scheduler of IPVS.
func schedulerOf(name string) scheduler {
	if s, has := schedulers[name]; has {
		return s
	}
	return schedulers[Fallback]
}

// checkScheduler refuses a scheduler that IPVS does not have either.
func checkScheduler(name string) error {
	if HasScheduler(name) || slices.Contains(onlyIPVS, name) {
		return nil
	}
	return fmt.Errorf("%w: %s: use one of %v", ipvs.ErrNoScheduler, name, slices.Sorted(maps.Keys(schedulers)))
}

// schedulerPort is IP_VS_SVC_F_SCHED_SH_PORT and IP_VS_SVC_F_SCHED_MH_PORT (include/uapi/linux/ip_vs.h): the hash
// includes the client's port. The other flag of both, fallback, is always in effect: a real server of weight 0 gets no
// slot.
const schedulerPort = 0x10

// classOf returns the class of a virtual server with this number of slots.
func classOf(settings ipvs.Settings, slots int) class {
	if slots == 0 {
		return class{}
	}
	c := class{choice: schedulerOf(settings.Scheduler).choice, slots: uint32(slots), sticky: settings.Flags&ipvs.Persistent != 0}
	if c.choice == byAddr && settings.Flags&schedulerPort != 0 {
		c.choice = byPort
	}
	return c
}

// compareClasses orders classes so that the targets of jumps come first.
func compareClasses(a, b class) int {
	first := func(c class) int {
		if c.sticky {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(a.name(), b.name()))
}
