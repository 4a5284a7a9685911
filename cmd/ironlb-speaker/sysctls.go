package main

import "github.com/ironlb/ironlb/speaker/link"

// sysctls are those that link wants.
type sysctls struct {
	ipvs         func() bool
	serviceProxy bool
}

func (s sysctls) Apply(ipv6 bool) ([]string, error) {
	want, err := link.Wanted(link.Needs{IPVS: s.ipvs(), IPv6: ipv6, ServiceProxy: s.serviceProxy})
	if err != nil {
		return nil, err
	}
	changes, err := link.SetSysctls(want)
	var texts []string
	for _, c := range changes {
		texts = append(texts, c.Key+"="+c.To)
	}
	return texts, err
}
