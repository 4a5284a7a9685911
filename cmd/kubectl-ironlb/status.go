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

	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/diagnose"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

func (t *tool) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [ADDRESS | NAMESPACE/SERVICE | NODE | PEER | POOL]...",
		Short: "Show the problems, and the pools, addresses, nodes and BGP sessions",
		Long: `status shows the problems, grouped by cause. Then the pools: their addresses in use, free, cooling down, and draining.
Then each VirtualIP: its addresses and Services, its owner and since when, whether it is announced and why, and the node
that takes over next. Then each node: whether it forwards, how many VirtualIPs it owns, and how many of the other speakers
it receives. Then the BGP sessions of each node.

With arguments it shows only what has one of the addresses, Services, nodes, BGPPeers or pools. Addresses that only BGP
announces have no VirtualIP: kubectl ironlb explain shows how they are announced.`,
		Example: `  kubectl ironlb status
  kubectl ironlb status 192.0.2.10
  kubectl ironlb status default/web
  kubectl ironlb status router-1 --watch`,
		RunE: t.connected(func(ctx context.Context, only []string) error {
			return t.show(ctx, func(c *diagnose.Cluster) (any, diagnose.State, func(*bytes.Buffer), error) {
				s := t.tables(c, only)
				if len(only) > 0 && s.empty() {
					return nil, "", nil, fmt.Errorf("nothing is named %s: write an address, NAMESPACE/SERVICE, node, BGPPeer or pool", strings.Join(only, ", "))
				}
				return s, s.worst(), s.status, nil
			})
		}),
	}
	t.outputFlags(cmd)
	return cmd
}

// tableCommand returns a command that shows the problems of one kind of object, and its table.
func (t *tool) tableCommand(name, short string, kinds []string, table func(*tables, *bytes.Buffer)) *cobra.Command {
	cmd := &cobra.Command{
		Use:     name + " [NAME]...",
		Short:   short,
		Example: fmt.Sprintf("  kubectl ironlb %s\n  kubectl ironlb %s -o json", name, name),
		RunE: t.connected(func(ctx context.Context, only []string) error {
			return t.show(ctx, func(c *diagnose.Cluster) (any, diagnose.State, func(*bytes.Buffer), error) {
				s := t.tables(c, only)
				if len(only) > 0 && s.empty() {
					return nil, "", nil, fmt.Errorf("nothing is named %s", strings.Join(only, ", "))
				}
				s.Problems = slices.DeleteFunc(s.Problems, func(g diagnose.Group) bool { return !slices.Contains(kinds, g.Kind) })
				value := map[string]any{"problems": s.Problems}
				switch name {
				case "pools":
					value[name] = s.Pools
				case "nodes":
					value[name] = s.Nodes
				default:
					value["sessions"] = s.Sessions
				}
				return value, s.worst(), func(out *bytes.Buffer) {
					s.tool.writeProblems(out, s.Problems)
					table(s, out)
				}, nil
			})
		}),
	}
	t.outputFlags(cmd)
	return cmd
}

// tables are the objects that status shows. Its JSON is the output of -o json.
type tables struct {
	Problems   []diagnose.Group         `json:"problems"`
	Pools      []v1alpha1.IPAddressPool `json:"pools,omitempty"`
	VirtualIPs []v1alpha1.VirtualIP     `json:"virtualIPs,omitempty"`
	Nodes      []v1alpha1.SpeakerStatus `json:"nodes,omitempty"`
	Sessions   []session                `json:"sessions,omitempty"`

	tool     *tool
	absent   map[string]v1alpha1.Absence
	only     bool
	services bool // a Service has one of the names
}

// session is a BGP session with its node.
type session struct {
	Node                   string `json:"node"`
	v1alpha1.SessionStatus `json:",inline"`
}

// tables selects the objects that have one of the names, all without names.
func (t *tool) tables(c *diagnose.Cluster, only []string) *tables {
	is := func(names ...string) bool {
		return len(only) == 0 || slices.ContainsFunc(names, func(n string) bool { return slices.Contains(only, n) })
	}
	s := &tables{tool: t, absent: c.Absent(), only: len(only) > 0, Problems: []diagnose.Group{}}
	for i := range only { // an address in any notation
		if addr, err := netip.ParseAddr(only[i]); err == nil {
			only[i] = addr.Unmap().String()
		}
	}
	services := servicesOf(c, is)
	s.services = len(services) > 0
	for _, g := range c.Problems() {
		g.Objects = slices.DeleteFunc(g.Objects, func(o string) bool {
			return !is(append(strings.Split(o, " to "), o)...) && !slices.Contains(services, o) && !mentions(g.Message, only) && g.Kind != "Cluster"
		})
		if len(g.Objects) > 0 {
			s.Problems = append(s.Problems, g)
		}
	}
	for i := range c.Pools {
		if is(c.Pools[i].Name) {
			s.Pools = append(s.Pools, c.Pools[i])
		}
	}
	for i := range c.VirtualIPs {
		v := &c.VirtualIPs[i]
		if is(slices.Concat([]string{v.Name, v.Status.Node}, v.Spec.Addresses, servicesOn(v))...) {
			s.VirtualIPs = append(s.VirtualIPs, *v)
		}
	}
	for i := range c.Speakers {
		n := &c.Speakers[i]
		if is(n.Name) {
			s.Nodes = append(s.Nodes, *n)
		}
		if n.Status.BGP == nil {
			continue
		}
		for _, one := range n.Status.BGP.Sessions {
			if is(n.Name, one.Peer, one.Address) {
				s.Sessions = append(s.Sessions, session{n.Name, one})
			}
		}
	}
	return s
}

// servicesOf returns the Services that have one of the names, of their addresses or pools.
func servicesOf(c *diagnose.Cluster, is func(...string) bool) (out []string) {
	for i := range c.Services {
		svc := &c.Services[i]
		names := []string{svc.Namespace + "/" + svc.Name}
		records, ours := v1alpha1.RecordsOf(svc)
		for _, r := range records {
			names = append(names, r.Addr.String(), r.Pool)
		}
		if ours && is(names...) {
			out = append(out, names[0])
		}
	}
	return out
}

// mentions reports whether a message has one of the names as a word.
func mentions(message string, only []string) bool {
	words := strings.FieldsFunc(message, func(r rune) bool { return strings.ContainsRune(` ,;()"`, r) })
	return slices.ContainsFunc(words, func(w string) bool { return slices.Contains(only, strings.TrimRight(w, ":.")) })
}

func (s *tables) empty() bool {
	named := slices.ContainsFunc(s.Problems, func(g diagnose.Group) bool { return g.Kind != "Cluster" })
	return !named && !s.services && len(s.Pools)+len(s.VirtualIPs)+len(s.Nodes)+len(s.Sessions) == 0
}

// worst returns the state of the worst problem: they are sorted.
func (s *tables) worst() diagnose.State {
	if len(s.Problems) == 0 {
		return diagnose.OK
	}
	return s.Problems[0].State
}

func (s *tables) status(out *bytes.Buffer) {
	s.tool.writeProblems(out, s.Problems)
	s.pools(out)
	s.addresses(out)
	s.nodes(out)
	s.sessions(out)
}

// manyObjects is how many objects of a problem are named; -o wide names all.
const manyObjects = 5

// some names objects.
func (t *tool) some(objects []string) string {
	if more := len(objects) - manyObjects; more > 0 && t.output != "wide" {
		return fmt.Sprintf("%s and %d more", strings.Join(objects[:manyObjects], ", "), more)
	}
	return strings.Join(objects, ", ")
}

func (t *tool) writeProblems(out *bytes.Buffer, problems []diagnose.Group) {
	if len(problems) == 0 {
		fmt.Fprintln(out, t.colour(diagnose.OK, "No problem."))
		return
	}
	for _, g := range problems {
		fmt.Fprintf(out, "%s %s %s: %s\n", t.colour(g.State, string(g.State)), g.Kind, t.some(g.Objects), strings.TrimSuffix(g.Reason+": "+g.Message, ": "))
	}
}

// table begins a table after an empty line.
func table(out *bytes.Buffer, head string) *tabwriter.Writer {
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head)
	return w
}

func (s *tables) pools(out *bytes.Buffer) {
	if len(s.Pools) == 0 {
		if !s.only {
			fmt.Fprintln(out, "\nNo IPAddressPool: no Service gets an address.")
		}
		return
	}
	w := table(out, "POOL\tREADY\tUSED\tFREE\tCOOLING\tDRAINING\tADDRESSES")
	for i := range s.Pools {
		p := &s.Pools[i]
		draining := "-"
		if isDraining(p) {
			draining = "yes"
		}
		addresses := strings.Join(p.Spec.Addresses, ",")
		if len(p.Spec.Addresses) > 3 && s.tool.output != "wide" {
			addresses = strings.Join(p.Spec.Addresses[:3], ",") + ",..."
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", p.Name, readiness(p), both(p.Status.AssignedIPv4, p.Status.AssignedIPv6),
			both(p.Status.AvailableIPv4, p.Status.AvailableIPv6), len(p.Status.CoolingDown), draining, addresses)
	}
	w.Flush()
}

// readiness returns the status of the condition Ready.
func readiness(p *v1alpha1.IPAddressPool) string {
	if c := meta.FindStatusCondition(p.Status.Conditions, condition.Ready); c != nil {
		return string(c.Status)
	}
	return "Unknown"
}

func isDraining(p *v1alpha1.IPAddressPool) bool {
	return meta.IsStatusConditionTrue(p.Status.Conditions, "Draining")
}

// both writes counts of IPv4 and IPv6.
func both(v4, v6 int64) string {
	if v6 == 0 {
		return fmt.Sprint(v4)
	}
	return fmt.Sprintf("%d+%d", v4, v6)
}

func (s *tables) addresses(out *bytes.Buffer) {
	if len(s.VirtualIPs) == 0 {
		if !s.only {
			fmt.Fprintln(out, "\nNo VirtualIP: no L2Advertisement selects an address of a Service. BGP requires none.")
		}
		return
	}
	w := table(out, "ADDRESSES\tSERVICES\tOWNER\tSINCE\tANNOUNCED\tREASON\tNEXT")
	for i := range s.VirtualIPs {
		v := &s.VirtualIPs[i]
		announced, reason := announcement(v)
		fmt.Fprintln(w, strings.Join([]string{
			strings.Join(v.Spec.Addresses, ","), strings.Join(servicesOn(v), ","), orDash(v.Status.Node), s.tool.ago(v.Status.Since), announced, reason, next(v),
		}, "\t"))
	}
	w.Flush()
}

// announcement returns whether the addresses are announced, and why.
func announcement(v *v1alpha1.VirtualIP) (announced, reason string) {
	announced, reason = "Unknown", "-"
	if c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionAnnounced); c != nil {
		announced, reason = string(c.Status), c.Reason
	}
	if c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionNoEligibleNode); c != nil && c.Status == metav1.ConditionTrue {
		announced, reason = "False", c.Reason
	}
	return announced, reason
}

// servicesOn returns the Services of a VirtualIP, as namespace/name.
func servicesOn(v *v1alpha1.VirtualIP) (services []string) {
	for _, svc := range v.Spec.Services {
		services = append(services, svc.Namespace+"/"+svc.Name)
	}
	return services
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

func (s *tables) nodes(out *bytes.Buffer) {
	if len(s.Nodes) == 0 {
		if !s.only {
			fmt.Fprintln(out, "\nNo SpeakerStatus: no speaker has reported yet.")
		}
		return
	}
	w := table(out, "NODE\tFORWARDS\tREASON\tVIPS\tALIVE\tINTERFACES\tUPDATED")
	for i := range s.Nodes {
		n := &s.Nodes[i].Status
		forwards, reason := s.forwarding(&s.Nodes[i])
		fmt.Fprintln(w, strings.Join([]string{
			s.Nodes[i].Name, forwards, reason, fmt.Sprint(n.VirtualIPs), orDash(n.Alive), orDash(strings.Join(interfacesOf(n), ",")), s.tool.ago(n.Updated),
		}, "\t"))
	}
	w.Flush()
}

// forwarding returns whether a node forwards, and why.
func (s *tables) forwarding(n *v1alpha1.SpeakerStatus) (forwards, reason string) {
	switch why := s.absent[n.Name]; {
	case why != "": // its last report is outdated
		return "Unknown", string(why)
	case !n.Status.DataPlane.Healthy:
		return "False", orDash(n.Status.DataPlane.Reason)
	}
	return "True", orDash(n.Status.DataPlane.Reason)
}

func interfacesOf(n *v1alpha1.SpeakerStatusStatus) (interfaces []string) {
	for _, in := range n.Interfaces {
		if !in.Up {
			in.Name += " (down)"
		}
		interfaces = append(interfaces, in.Name)
	}
	return interfaces
}

func (s *tables) sessions(out *bytes.Buffer) {
	if len(s.Sessions) == 0 {
		return // BGP is optional
	}
	w := table(out, "NODE\tPEER\tADDRESS\tASN\tSESSION\tSINCE\tPREFIXES\tBFD\tREASON")
	for i := range s.Sessions {
		one := &s.Sessions[i]
		if why := s.absent[one.Node]; why != "" {
			fmt.Fprintln(w, strings.Join([]string{one.Node, one.Peer, orDash(one.Address), asn(one), "Unknown", "-", "-", "-", string(why)}, "\t"))
			continue
		}
		prefixes := "-" // nothing is advertised without a session
		if one.State == v1alpha1.SessionEstablished {
			prefixes = fmt.Sprint(one.Prefixes)
		}
		fmt.Fprintln(w, strings.Join([]string{
			one.Node, one.Peer, orDash(one.Address), asn(one), string(one.State), s.tool.ago(one.Since), prefixes, s.tool.bfd(one.BFD), orDash(one.why()),
		}, "\t"))
	}
	w.Flush()
}

// why returns why the session is not as it should be, empty if it is.
func (s *session) why() string {
	if s.State != v1alpha1.SessionEstablished {
		return s.Reason
	}
	reason := ""
	if s.Reason == v1alpha1.ReasonNotConfigured { // any other is that of the last interruption
		reason = s.Reason
	}
	if s.BFD != nil {
		reason = cmp.Or(reason, s.BFD.Reason)
	}
	return reason
}

// asn returns the router's AS number, if known.
func asn(s *session) string {
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
