package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// writeUnserved writes the BGP addresses not serving traffic: of the sorted advertisements those that no node serves,
// of the sorted speakers those that a node could not program. They are optionally only those of an address,
// advertisement or node in only. It reports whether there are any.
func writeUnserved(out *bytes.Buffer, ads []v1alpha1.BGPAdvertisement, speakers []v1alpha1.SpeakerStatus, only []string) bool {
	var cluster, nodes nodeProblems
	for i := range ads {
		addUnserved(&cluster, ads[i].Name, ads[i].Status.Unserved, only)
	}
	absent := v1alpha1.Absent(speakers, nil)
	for i := range speakers {
		if bgp := speakers[i].Status.BGP; bgp != nil && absent[speakers[i].Name] == "" { // else the last report is outdated
			addUnserved(&nodes, speakers[i].Name, bgp.Unserved, only)
		}
	}
	written := false
	for _, part := range []struct {
		title string
		lines []string
	}{
		{"BGP addresses not serving traffic, by BGPAdvertisement", cluster.lines()}, {"BGP addresses not programmed, by node", nodes.lines()},
	} {
		if len(part.lines) == 0 {
			continue
		}
		if out.Len() > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "%s:\n%s\n", part.title, strings.Join(part.lines, "\n"))
		written = true
	}
	return written
}

// addUnserved adds a line for each reason of an advertisement or node.
func addUnserved(wrong *nodeProblems, name string, unserved []v1alpha1.UnservedStatus, only []string) {
	for _, u := range unserved {
		if len(only) > 0 && !slices.ContainsFunc(only, func(o string) bool { return o == name || lists(u.Addresses, o) }) {
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
		wrong.add(name, text)
	}
}

// lists reports whether the text is one of the addresses, in any notation.
func lists(addresses []string, text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && slices.Contains(addresses, addr.Unmap().String())
}
