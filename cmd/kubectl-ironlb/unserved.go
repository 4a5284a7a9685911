package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// writeUnserved writes the BGP addresses not serving traffic, as reported by sorted speakers, optionally only those of
// an address or node in only. It reports whether there are any.
func writeUnserved(out *bytes.Buffer, speakers []v1alpha1.SpeakerStatus, only []string) bool {
	var wrong nodeProblems
	absent := v1alpha1.Absent(speakers, nil)
	for i := range speakers {
		node, bgp := speakers[i].Name, speakers[i].Status.BGP
		if bgp == nil || absent[node] != "" { // its last report is outdated
			continue
		}
		for _, u := range bgp.Unserved {
			if len(only) > 0 && !slices.ContainsFunc(only, func(o string) bool { return o == node || lists(u.Addresses, o) }) {
				continue
			}
			text := strings.Join(u.Addresses, ", ")
			if more := int(u.Count) - len(u.Addresses); more > 0 {
				text += fmt.Sprintf(" and %d more", more)
			}
			text += ": " + u.Reason
			if u.Message != "" {
				text += ": " + u.Message
			}
			wrong.add(node, text)
		}
	}
	lines := wrong.lines()
	if len(lines) == 0 {
		return false
	}
	if out.Len() > 0 {
		fmt.Fprintln(out)
	}
	fmt.Fprintf(out, "BGP addresses not serving traffic, by node:\n%s\n", strings.Join(lines, "\n"))
	return true
}

// lists reports whether the text is one of the addresses, in any notation.
func lists(addresses []string, text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && slices.Contains(addresses, addr.Unmap().String())
}
