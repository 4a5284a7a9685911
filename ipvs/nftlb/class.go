package nftlb

import (
	"cmp"
	"fmt"

	"github.com/ironlb/ironlb/ipvs"
)

// choice is how one of the slots of a virtual server is chosen for a connection.
type choice uint8

const (
	// refuse: there are no slots.
	refuse choice = iota
	random
	// byAddr and byPort hash the client's address, or address and port.
	byAddr
	byPort
	// remembering is no choice: the chain notes where a connection went.
	remembering
)

// class is what virtual servers have in common that are carried out by the same chain. There are few, whatever the number of
// virtual servers.
type class struct {
	choice choice
	slots  uint32
	// sticky looks first whether the client is remembered.
	sticky bool
	// timeout in seconds is how long a client is remembered.
	timeout uint32
}

// hashSeed makes every node hash alike. Its value means nothing.
const hashSeed = 0x4c42

// name is the name of the chain.
func (c class) name() string {
	text := [...]string{refuse: "refuse", random: "random", byAddr: "hash-address", byPort: "hash-port", remembering: "remember"}[c.choice]
	switch c.choice {
	case refuse:
		return text
	case remembering:
		return fmt.Sprintf("%s-%d", text, c.timeout)
	}
	text = fmt.Sprintf("%s-%d", text, c.slots)
	if c.sticky {
		text += "-sticky"
	}
	return text
}

// verdict sends a packet to the chain. What is refused is left to the chains of the hooks where the packet filter has been asked.
func (c class) verdict() string {
	if c.choice == refuse {
		return "return"
	}
	return "goto " + c.name()
}

// rules are the rules of the chain. Those of a remembering class come by [addRemembering].
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
	case c.choice == remembering:
		return nil
	case c.sticky:
		return []string{
			fmt.Sprintf("dnat to %s saddr . %[1]s daddr . meta l4proto . th dport map @%s", f.name, mapAffinity),
			"goto " + c.forgetful().name(),
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

// forgetful is the class without memory.
func (c class) forgetful() class {
	c.sticky = false
	return c
}

// scheduler says how an IPVS scheduler is carried out; the package comment says why so.
type scheduler struct {
	choice choice
	// weighted gives a real server slots in proportion to its weight, single one slot to one real server.
	weighted, single bool
	// consistent lays a fixed number of slots such that few change hands when a real server comes or goes.
	consistent bool
}

var schedulers = map[string]scheduler{
	"rr":    {choice: random},
	"lc":    {choice: random},
	"wrr":   {choice: random, weighted: true},
	"wlc":   {choice: random, weighted: true},
	"sed":   {choice: random, weighted: true},
	"nq":    {choice: random, weighted: true},
	"lblc":  {choice: random, weighted: true},
	"lblcr": {choice: random, weighted: true},
	"ovf":   {choice: random, weighted: true},
	"fo":    {choice: random, weighted: true, single: true},
	"dh":    {choice: random, single: true},
	"sh":    {choice: byAddr, weighted: true},
	"mh":    {choice: byAddr, weighted: true, consistent: true},
}

// schedulerPort is IP_VS_SVC_F_SCHED_SH_PORT and IP_VS_SVC_F_SCHED_MH_PORT (include/uapi/linux/ip_vs.h): the hash takes in the
// client's port. The other flag of both, fallback, is always acted upon: no slot is given to a real server of weight 0.
const schedulerPort = 0x10

// classOf returns the class of a virtual server with so many slots.
func classOf(settings ipvs.Settings, slots int) class {
	if slots == 0 {
		return class{}
	}
	c := class{choice: schedulers[settings.Scheduler].choice, slots: uint32(slots), sticky: settings.Flags&ipvs.Persistent != 0}
	if c.choice == byAddr && settings.Flags&schedulerPort != 0 {
		c.choice = byPort
	}
	return c
}

// compareClasses orders classes so that those come first that others go to.
func compareClasses(a, b class) int {
	first := func(c class) int {
		if c.sticky {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(a.name(), b.name()))
}
