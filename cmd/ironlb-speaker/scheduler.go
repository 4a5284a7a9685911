package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/ipvs"
)

// schedulers are those that Linux has (net/netfilter/ipvs).
var schedulers = []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh"}

// The bits of sh and mh (IP_VS_SVC_F_SCHED_SH_FALLBACK, _PORT; for mh the same).
const (
	flagFallback ipvs.Flags = 0x8
	flagPort     ipvs.Flags = 0x10
)

// parseScheduler reads "rr", or "mh,fallback,port".
func parseScheduler(text string) (name string, flags ipvs.Flags, err error) {
	fields := strings.Split(text, ",")
	if name = fields[0]; !slices.Contains(schedulers, name) {
		return "", 0, fmt.Errorf("give one of %s", strings.Join(schedulers, ", "))
	}
	for _, field := range fields[1:] {
		switch {
		case name != "sh" && name != "mh":
			return "", 0, fmt.Errorf("only sh and mh have flags; give %s", name)
		case field == "fallback":
			flags |= flagFallback
		case field == "port":
			flags |= flagPort
		default:
			return "", 0, fmt.Errorf("the flags of %s are fallback and port", name)
		}
	}
	return name, flags, nil
}
