package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

func (t *tool) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status [ADDRESS | NAMESPACE/SERVICE | NODE | PEER | BGPADVERTISEMENT]...",
		Short: "Show the owner of each address and why, BGP sessions, and reachability between speakers",
		Long: `status shows each VirtualIP: its addresses and Services, its owner and since when, whether it is announced and why, and
the node that takes over next, followed by the problems. Then each speaker: whether its node forwards, the number of
VirtualIPs it owns, how many of the other speakers it receives, and which ones it does not. Then the BGP sessions of
each node: the router, the age of the session's state, the number of advertised prefixes, and why it is not established.
Last, the addresses of each BGPAdvertisement that no node serves, and those that a node could not program, at most ten
per reason.

With arguments only the VirtualIPs with one of the addresses, of one of the Services, or owned by one of the nodes, and
the BGP sessions of one of the nodes, or with one of the BGPPeers or routers' addresses, and the problems of one of the
addresses, nodes or BGPAdvertisements. Addresses announced only by BGP
have no VirtualIP: only their problems are shown.`,
		Example: `  kubectl ironlb status
  kubectl ironlb status 192.0.2.10
  kubectl ironlb status default/web
  kubectl ironlb status router-1`,
		RunE: func(cmd *cobra.Command, args []string) error { return t.status(cmd.Context(), args) },
	}
}

func (t *tool) status(ctx context.Context, only []string) error {
	var vips v1alpha1.VirtualIPList
	var speakers v1alpha1.SpeakerStatusList
	var ads v1alpha1.BGPAdvertisementList
	for _, objects := range []client.ObjectList{&vips, &speakers, &ads} {
		if err := t.list(ctx, objects); err != nil {
			return err
		}
	}
	shown := slices.DeleteFunc(vips.Items, func(v v1alpha1.VirtualIP) bool { return len(only) > 0 && !selected(&v, only) })
	slices.SortFunc(shown, func(a, b v1alpha1.VirtualIP) int {
		return cmp.Or(address(&a).Compare(address(&b)), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(speakers.Items, func(a, b v1alpha1.SpeakerStatus) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(ads.Items, func(a, b v1alpha1.BGPAdvertisement) int { return cmp.Compare(a.Name, b.Name) })
	var out bytes.Buffer
	if len(only) == 0 || len(shown) > 0 {
		t.writeVIPs(&out, shown)
	}
	if len(only) == 0 {
		t.writeSpeakers(&out, speakers.Items)
	}
	sessions := t.writeSessions(&out, speakers.Items, only)
	if unserved := writeUnserved(&out, ads.Items, speakers.Items, only); len(only) > 0 && len(shown) == 0 && !sessions && !unserved {
		return fmt.Errorf("there is no VirtualIP of %s, and no BGP session (addresses announced only by BGP have no VirtualIP, and no problem is reported for them): see kubectl ironlb status",
			strings.Join(only, ", "))
	}
	_, err := t.out.Write(out.Bytes())
	return err
}

// selected reports whether the VirtualIP is one of those named.
func selected(v *v1alpha1.VirtualIP, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		return v.Name == name || has(v, name) || v.Status.Node == name || slices.ContainsFunc(v.Spec.Services, func(s v1alpha1.ServiceReference) bool {
			return s.Namespace+"/"+s.Name == name
		})
	})
}

// address returns the first address of the VirtualIP, as the sort key.
func address(v *v1alpha1.VirtualIP) netip.Addr {
	if len(v.Spec.Addresses) == 0 {
		return netip.Addr{}
	}
	addr, _ := netip.ParseAddr(v.Spec.Addresses[0])
	return addr
}

func (t *tool) writeVIPs(out *bytes.Buffer, vips []v1alpha1.VirtualIP) {
	if len(vips) == 0 {
		fmt.Fprintln(out, "No VirtualIP: no L2Advertisement selects an address of a Service. BGP requires none.")
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ADDRESSES\tSERVICES\tOWNER\tSINCE\tANNOUNCED\tREASON\tNEXT")
	var wrong []string
	for i := range vips {
		v := &vips[i]
		announced, reason := "Unknown", "-"
		if c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionAnnounced); c != nil {
			announced, reason = string(c.Status), c.Reason
		}
		if c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionNoEligibleNode); c != nil && c.Status == metav1.ConditionTrue {
			announced, reason = "False", c.Reason
		}
		var services []string
		for _, s := range v.Spec.Services {
			services = append(services, s.Namespace+"/"+s.Name)
		}
		fmt.Fprintln(w, strings.Join([]string{
			strings.Join(v.Spec.Addresses, ","), strings.Join(services, ","), orDash(v.Status.Node), t.ago(v.Status.Since), announced, reason, next(v),
		}, "\t"))
		wrong = append(wrong, problems(v)...)
	}
	w.Flush()
	if len(wrong) > 0 {
		fmt.Fprintf(out, "\n%s\n", strings.Join(wrong, "\n"))
	}
}

// next returns the node that takes over: in a move, or after the death of the owner.
func next(v *v1alpha1.VirtualIP) string {
	if len(v.Spec.Nodes) == 0 {
		return "-"
	}
	if first := v.Spec.Nodes[0]; first != v.Status.Node {
		return first + " (now)"
	}
	if len(v.Spec.Nodes) == 1 {
		return "-"
	}
	return v.Spec.Nodes[1]
}

// problems returns the messages of conditions that indicate a problem.
func problems(v *v1alpha1.VirtualIP) (out []string) {
	for _, c := range v.Status.Conditions {
		good := metav1.ConditionFalse
		if c.Type == v1alpha1.ConditionAnnounced {
			good = metav1.ConditionTrue
		}
		if c.Status != good && c.Message != "" {
			out = append(out, fmt.Sprintf("%s: %s=%s %s: %s", strings.Join(v.Spec.Addresses, ","), c.Type, c.Status, c.Reason, c.Message))
		}
	}
	return out
}

// writeSpeakers writes sorted speakers.
func (t *tool) writeSpeakers(out *bytes.Buffer, speakers []v1alpha1.SpeakerStatus) {
	if len(speakers) == 0 {
		fmt.Fprintln(out, "\nNo SpeakerStatus: no speaker has reported yet.")
		return
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tFORWARDS\tREASON\tVIPS\tALIVE\tINTERFACES\tUPDATED")
	var wrong []string
	absent := v1alpha1.Absent(speakers, nil)
	for i := range speakers {
		s := &speakers[i].Status
		var interfaces []string
		for _, in := range s.Interfaces {
			if !in.Up {
				in.Name += " (down)"
			}
			interfaces = append(interfaces, in.Name)
		}
		forwards := "True"
		if !s.DataPlane.Healthy {
			forwards = "False"
			wrong = append(wrong, fmt.Sprintf("%s: does not forward: %s: %s", speakers[i].Name, orDash(s.DataPlane.Reason), orDash(s.DataPlane.Message)))
		}
		reason := orDash(s.DataPlane.Reason)
		if why := absent[speakers[i].Name]; why != "" { // its last report is outdated
			forwards, reason = "Unknown", string(why)
		}
		fmt.Fprintln(w, strings.Join([]string{
			speakers[i].Name, forwards, reason, fmt.Sprint(s.VirtualIPs), orDash(s.Alive),
			orDash(strings.Join(interfaces, ",")), t.ago(s.Updated),
		}, "\t"))
		if l := s.Liveness; l != nil && l.SchedulingClass != v1alpha1.SchedulingDeadline && absent[speakers[i].Name] == "" {
			wrong = append(wrong, fmt.Sprintf("%s: liveness thread has scheduling class %s, not %s: %s",
				speakers[i].Name, l.SchedulingClass, v1alpha1.SchedulingDeadline, orDash(l.Message)))
		}
		if absent[speakers[i].Name] == "" {
			wrong = append(wrong, t.unreachable(&speakers[i])...)
		}
		for _, m := range s.Members {
			if m.State != v1alpha1.MemberAlive {
				wrong = append(wrong, fmt.Sprintf("%s: member %s is %s since %s", speakers[i].Name, m.Node, m.State, t.ago(m.Since)))
			}
		}
	}
	w.Flush()
	if len(wrong) > 0 {
		fmt.Fprintf(out, "\n%s\n", strings.Join(wrong, "\n"))
	}
}

// unreachable lists the nodes that a node cannot reach, and those that have no witness.
func (t *tool) unreachable(speaker *v1alpha1.SpeakerStatus) (lines []string) {
	s := &speaker.Status
	line := func(format string, args ...any) {
		lines = append(lines, speaker.Name+": "+fmt.Sprintf(format, args...))
	}
	for _, u := range s.Unreachable {
		var silent []string
		for _, w := range u.Silent {
			silent = append(silent, string(w))
		}
		more := ""
		if u.Gateway != "" {
			more += fmt.Sprintf("; gateway %s answers", u.Gateway)
		}
		if u.EndpointsFailedOpen > 0 {
			more += fmt.Sprintf("; %d endpoints take connections because no other is left", u.EndpointsFailedOpen)
		}
		if u.Damped {
			more += "; reachable again, too often to count yet"
		}
		line("node %s is unreachable since %s (silent: %s): %d endpoints take no new connections%s",
			u.Node, t.ago(&u.Since), strings.Join(silent, ", "), u.Endpoints, more)
	}
	if s.CutOff {
		line("may be cut off: most other nodes became unreachable at once, and no gateway answers")
	}
	for _, node := range s.WithoutWitness {
		line("node %s answers neither ICMP echo nor ARP: its death is detected by Kubernetes only", node)
	}
	return lines
}
