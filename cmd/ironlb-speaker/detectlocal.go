package main

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/ironlb/ironlb/speaker/forwarding"
)

// detectLocal parses how packets of Pods are identified. podCIDRs alone mean ClusterCIDR. A field that its mode does
// not use is an error: it would have no effect.
func (p *configParser) detectLocal(to *forwarding.DetectLocal, f configFile) {
	to.CIDRs = p.prefixes("podCIDRs", f.PodCIDRs)
	if len(f.PodCIDRs) > 0 {
		to.Mode = forwarding.ClusterCIDR
	}
	if f.DetectLocalMode != nil {
		to.Mode = forwarding.LocalMode(*f.DetectLocalMode)
	}
	if !slices.Contains(forwarding.LocalModes, to.Mode) {
		p.fault("detectLocalMode", string(to.Mode), fmt.Sprintf("give one of %v", forwarding.LocalModes))
		return
	}
	if to.Mode == forwarding.ClusterCIDR && len(f.PodCIDRs) == 0 {
		p.fault("podCIDRs", "[]", "detectLocalMode ClusterCIDR needs the CIDRs of all Pods, as kube-proxy's clusterCIDR")
	}
	if to.Mode != forwarding.ClusterCIDR && len(f.PodCIDRs) > 0 {
		p.fault("podCIDRs", strings.Join(f.PodCIDRs, ","), unused(to.Mode, forwarding.ClusterCIDR))
	}
	for _, is := range []struct {
		field string
		text  *string
		mode  forwarding.LocalMode
		most  int
	}{
		{"detectLocal.bridgeInterface", f.DetectLocal.BridgeInterface, forwarding.BridgeInterface, interfaceMost},
		{"detectLocal.interfaceNamePrefix", f.DetectLocal.InterfaceNamePrefix, forwarding.InterfaceNamePrefix, interfaceMost - 1},
	} {
		switch {
		case is.mode == to.Mode && (is.text == nil || !interfaceName(*is.text, is.most)):
			p.fault(is.field, deref(is.text),
				fmt.Sprintf("give a name of at most %d letters, digits and any of -_.@, without * or +", is.most))
		case is.mode == to.Mode:
			to.Interface = *is.text
		case is.text != nil && *is.text != "": // kube-proxy's own file has it empty
			p.fault(is.field, *is.text, unused(to.Mode, is.mode))
		}
	}
}

func unused(mode, by forwarding.LocalMode) string {
	return fmt.Sprintf("detectLocalMode %s does not use it: leave it out, or set detectLocalMode: %s", mode, by)
}

// interfaceMost is the length of the name of an interface: IFNAMSIZ of linux/if.h less the final zero.
const interfaceMost = 15

// interfaceName reports whether a text can be, or begin, the name of an interface. The kernel accepts more characters
// (dev_valid_name of net/core/dev.c); nft would reject some of them, or read them as a pattern.
func interfaceName(text string, most int) bool {
	other := func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_.@", r)
	}
	return text != "" && len(text) <= most && !strings.ContainsFunc(text, other)
}

func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}
