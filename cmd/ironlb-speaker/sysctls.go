package main

import (
	"runtime"
	"strconv"
	"time"

	"github.com/ironlb/ironlb/speaker/link"
)

// sysctls are those that link wants, with the configured limits of conntrack.
type sysctls struct {
	ipvs         func() bool
	serviceProxy bool
	limits       conntrackLimits
}

func (s sysctls) Apply(ipv6 bool) ([]string, error) {
	want, err := link.Wanted(link.Needs{IPVS: s.ipvs(), IPv6: ipv6, ServiceProxy: s.serviceProxy})
	if err != nil {
		return nil, err
	}
	changes, err := link.SetSysctls(s.limits.replace(want, runtime.NumCPU()))
	var texts []string
	for _, c := range changes {
		texts = append(texts, c.Key+"="+c.To)
	}
	return texts, err
}

// replace puts the configured limits in the place of those that link wants; one that is 0 is left as the node has it.
func (c conntrackLimits) replace(want []link.Sysctl, cores int) []link.Sysctl {
	seconds := func(d time.Duration) int { return int(d / time.Second) }
	values := map[string]int{
		"net.netfilter.nf_conntrack_max":                     c.max(cores),
		"net.netfilter.nf_conntrack_tcp_timeout_established": seconds(c.TCPEstablishedTimeout),
		"net.netfilter.nf_conntrack_tcp_timeout_close_wait":  seconds(c.TCPCloseWaitTimeout),
	}
	var out []link.Sysctl
	for _, s := range want {
		value, ours := values[s.Key]
		switch {
		case !ours:
			out = append(out, s)
		case value != 0:
			s.Value = strconv.Itoa(value)
			out = append(out, s)
		}
	}
	return out
}
