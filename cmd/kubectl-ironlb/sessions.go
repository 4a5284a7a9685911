package main

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// writeSessions writes the BGP sessions of sorted speakers, optionally only those whose node, peer or router's address
// is in only. It reports whether there are any.
func (t *tool) writeSessions(out *bytes.Buffer, speakers []v1alpha1.SpeakerStatus, only []string) bool {
	var rows []string
	var wrong nodeProblems
	absent := v1alpha1.Absent(speakers, nil)
	for i := range speakers {
		bgp := speakers[i].Status.BGP
		if bgp == nil {
			continue
		}
		for j := range bgp.Sessions {
			s, node := &bgp.Sessions[j], speakers[i].Name
			if len(only) > 0 && !slices.ContainsFunc(only, func(o string) bool { return o == node || o == s.Peer || o == s.Address }) {
				continue
			}
			prefixes := "-" // nothing is advertised without a session
			if s.State == v1alpha1.SessionEstablished {
				prefixes = fmt.Sprint(s.Prefixes)
			}
			row := []string{node, s.Peer, orDash(s.Address), asn(s), string(s.State), t.ago(s.Since), prefixes, t.bfd(s.BFD), orDash(s.Reason)}
			unwatched := absent[node] == "" && s.State == v1alpha1.SessionEstablished && s.BFD != nil && s.BFD.Reason != ""
			if unwatched {
				wrong.add(node, fmt.Sprintf("session with %s without BFD: %s: %s", s.Peer, s.BFD.Reason, cmp.Or(s.BFD.Message, string(s.BFD.State))))
			}
			switch {
			case absent[node] != "": // its last report is outdated
				row = []string{node, s.Peer, orDash(s.Address), asn(s), "Unknown", "-", "-", "-", string(absent[node])}
			case s.State == v1alpha1.SessionEstablished && s.Reason == v1alpha1.ReasonNotConfigured:
				wrong.add(node, fmt.Sprintf("BGPPeer %s is only partly configured: %s", s.Peer, s.Message))
			case unwatched:
				row[8] = s.BFD.Reason
			case s.State == v1alpha1.SessionEstablished:
				row[8] = "-" // the reason of the last interruption
			default:
				if s.Message != "" {
					wrong.add(node, fmt.Sprintf("no session with %s: %s: %s", s.Peer, cmp.Or(s.Reason, string(s.State)), s.Message))
				}
			}
			rows = append(rows, strings.Join(row, "\t"))
		}
	}
	if len(rows) == 0 {
		return false
	}
	if out.Len() > 0 {
		fmt.Fprintln(out)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tPEER\tADDRESS\tASN\tSESSION\tSINCE\tPREFIXES\tBFD\tREASON")
	fmt.Fprintln(w, strings.Join(rows, "\n"))
	w.Flush()
	if lines := wrong.lines(); len(lines) > 0 {
		fmt.Fprintf(out, "\n%s\n", strings.Join(lines, "\n"))
	}
	return true
}

// asn returns the router's AS number, if known.
func asn(s *v1alpha1.SessionStatus) string {
	if s.PeerASN == 0 {
		return "-"
	}
	return fmt.Sprint(s.PeerASN)
}

// bfd returns the state of a BFD session, and since when.
func (t *tool) bfd(b *v1alpha1.BFDStatus) string {
	switch {
	case b == nil:
		return "-"
	case b.Since.IsZero():
		return string(b.State)
	}
	return string(b.State) + " " + t.ago(b.Since)
}
