package main

import (
	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// parseScheduler parses the annotation ironlb.io/scheduler.
func parseScheduler(text string) (name string, flags ipvs.Flags, err error) {
	s, err := v1alpha1.ParseScheduler(text)
	if err != nil {
		return "", 0, err
	}
	if s.Fallback {
		flags |= ipvs.SchedFallback
	}
	if s.Port {
		flags |= ipvs.SchedPort
	}
	return s.Name, flags, nil
}
