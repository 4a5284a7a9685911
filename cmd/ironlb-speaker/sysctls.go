package main

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/link"
)

// sysctls are the parameters required by link, with the configured limits of conntrack.
type sysctls struct {
	ipvs         func() bool
	serviceProxy bool
	limits       conntrackLimits

	// wrong are the errors of the last Apply; nil before it.
	wrong atomic.Pointer[error]
	// met is the last state found or put in force, for these needs. While it holds, nothing else is checked.
	met   link.SysctlWatch
	needs link.Needs
}

// state returns why parameters are not set; known is false before the first Apply.
func (s *sysctls) state() (known bool, wrong error) {
	if last := s.wrong.Load(); last != nil {
		return true, *last
	}
	return false, nil
}

func (s *sysctls) Apply(ipv6 bool) (changed []string, wrong dataplane.SysctlErrors) {
	defer func() {
		err := errors.Join(wrong.All, wrong.ARP, wrong.IPv6, wrong.Limits)
		s.wrong.Store(&err)
	}()
	needs := link.Needs{IPVS: s.ipvs(), IPv6: ipv6, ServiceProxy: s.serviceProxy}
	if needs == s.needs && s.met.Met() {
		return nil, wrong
	}
	s.met.Open(nil)
	want, err := link.Wanted(needs)
	if err != nil {
		return nil, dataplane.SysctlErrors{All: err}
	}
	want = s.limits.replace(want, runtime.NumCPU())
	parts := map[*error][]link.Sysctl{}
	for _, w := range want {
		part := errorFor(&wrong, w.Key)
		parts[part] = append(parts[part], w)
	}
	for _, part := range []*error{&wrong.All, &wrong.ARP, &wrong.IPv6, &wrong.Limits} {
		var changes []link.Change
		changes, *part = link.SetSysctls(parts[part])
		for _, c := range changes {
			changed = append(changed, c.Key+"="+c.To)
		}
	}
	if wrong.Limits != nil {
		wrong.Limits = fmt.Errorf("%w; or keep the node's: set conntrack.maxPerCore and conntrack.min, or the time-out, to 0 in the file of --config", wrong.Limits)
	}
	if wrong == (dataplane.SysctlErrors{}) {
		s.met.Open(want)
		s.needs = needs
	}
	return changed, wrong
}

// errorFor returns the error field for a parameter with a wrong value.
func errorFor(wrong *dataplane.SysctlErrors, key string) *error {
	switch {
	case strings.HasPrefix(key, "net.ipv6."):
		return &wrong.IPv6
	case strings.HasPrefix(key, "net.netfilter."):
		return &wrong.Limits
	case strings.HasPrefix(key, "net.ipv4.conf.all.arp_"):
		return &wrong.ARP
	}
	return &wrong.All
}

// replace replaces link's limits by the configured ones; a limit of 0 keeps the node's value.
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
