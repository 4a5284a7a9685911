package main

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// writeSessions writes the BGP sessions of speakers that are sorted, nothing if there are none.
func (t *tool) writeSessions(out *bytes.Buffer, speakers []v1alpha1.SpeakerStatus) {
	var rows, wrong []string
	absent := v1alpha1.Absent(speakers, nil)
	for i := range speakers {
		bgp := speakers[i].Status.BGP
		if bgp == nil {
			continue
		}
		for j := range bgp.Sessions {
			s, node := &bgp.Sessions[j], speakers[i].Name
			row := []string{node, s.Peer, orDash(s.Address), asn(s), string(s.State), t.ago(s.Since), fmt.Sprint(s.Prefixes), t.bfd(s.BFD), orDash(s.Reason)}
			switch {
			case absent[node] != "": // what it wrote last says nothing about now
				row = []string{node, s.Peer, orDash(s.Address), asn(s), "Unknown", "-", "-", "-", string(absent[node])}
			case s.State == v1alpha1.SessionEstablished && s.Reason == v1alpha1.ReasonNotConfigured:
				wrong = append(wrong, fmt.Sprintf("%s: not all that BGPPeer %s asks for: %s", node, s.Peer, s.Message))
			case s.State == v1alpha1.SessionEstablished:
				row[8] = "-" // why it was down before
			default:
				if s.Message != "" {
					wrong = append(wrong, fmt.Sprintf("%s: no session with %s: %s: %s", node, s.Peer, cmp.Or(s.Reason, string(s.State)), s.Message))
				}
			}
			rows = append(rows, strings.Join(row, "\t"))
		}
	}
	if len(rows) == 0 {
		return
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tPEER\tADDRESS\tASN\tSESSION\tSINCE\tPREFIXES\tBFD\tREASON")
	fmt.Fprintln(w, strings.Join(rows, "\n"))
	w.Flush()
	if len(wrong) > 0 {
		fmt.Fprintf(out, "\n%s\n", strings.Join(wrong, "\n"))
	}
}

// asn is the router's AS number, if it is known.
func asn(s *v1alpha1.SessionStatus) string {
	if s.PeerASN == 0 {
		return "-"
	}
	return fmt.Sprint(s.PeerASN)
}

// bfd is the state of a BFD session, and since when.
func (t *tool) bfd(b *v1alpha1.BFDStatus) string {
	switch {
	case b == nil:
		return "-"
	case b.Since.IsZero():
		return string(b.State)
	}
	return string(b.State) + " " + t.ago(b.Since)
}
