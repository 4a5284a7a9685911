package main

import (
	"slices"
	"strings"

	"github.com/ironlb/ironlb/speaker/link"
)

// sysctls are those that link wants; without IPVS, none of IPVS.
type sysctls struct {
	ipvs func() bool
}

func (s sysctls) Apply() ([]string, error) {
	want, err := link.Wanted()
	if err != nil {
		return nil, err
	}
	if !s.ipvs() {
		want = slices.DeleteFunc(want, func(s link.Sysctl) bool { return strings.HasPrefix(s.Key, "net.ipv4.vs.") })
	}
	changes, err := link.SetSysctls(want)
	var texts []string
	for _, c := range changes {
		texts = append(texts, c.Key+"="+c.To)
	}
	return texts, err
}
