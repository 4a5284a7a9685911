package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// writeUnserved writes by which addresses of BGP nobody is served, as speakers that are sorted say, or of them what names an address or node of
// only. It tells whether there is any.
func writeUnserved(out *bytes.Buffer, speakers []v1alpha1.SpeakerStatus, only []string) bool {
	var wrong complaints
	absent := v1alpha1.Absent(speakers, nil)
	for i := range speakers {
		node, bgp := speakers[i].Name, speakers[i].Status.BGP
		if bgp == nil || absent[node] != "" { // what it wrote last says nothing about now
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
	fmt.Fprintf(out, "Addresses of BGP by which nobody is served, as these nodes say:\n%s\n", strings.Join(lines, "\n"))
	return true
}

// lists tells whether the text is one of the addresses, however it is written.
func lists(addresses []string, text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && slices.Contains(addresses, addr.Unmap().String())
}
