package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/ironlb/ironlb/ccm/advertisement"
	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Step is a part of the way from a Service to the network, in the order of the constants.
type Step string

const (
	StepClass         Step = "Class"
	StepAddress       Step = "Address"
	StepPool          Step = "Pool" // that gave no address
	StepAdvertisement Step = "Advertisement"
	StepOwner         Step = "Owner"
	StepNode          Step = "Node" // other than the owner
	StepSession       Step = "BGP"
	StepEndpoints     Step = "Endpoints"
	StepForwarding    Step = "Forwarding"
	StepKubeProxy     Step = "kube-proxy"
	StepWarnings      Step = "Warnings"
)

// State of a step.
type State string

const (
	OK      State = "OK"
	Info    State = "Info"    // neither good nor bad
	Warning State = "Warning" // works, and deserves attention
	Problem State = "Problem"
	Unknown State = "Unknown" // an object could not be read
)

// Reasons that no condition has.
const (
	ReasonNotLoadBalancer = "NotLoadBalancer"
	ReasonOtherClass      = "OtherClass"
	ReasonOtherController = "OtherController"
	ReasonDeleted         = "Deleted"
	ReasonNotProcessed    = "NotProcessed"
	ReasonNotReady        = "NotReady"
	ReasonNotAutoAssigned = "NotAutoAssigned"
	ReasonCoolingDown     = "CoolingDown"
	ReasonNotShown        = "NotShown"
	ReasonNotAdvertised   = "NotAdvertised"
	ReasonNotPlaced       = "NotPlaced"
	ReasonNotReported     = "NotReported"
	ReasonStandby         = "Standby"
	ReasonNotSelected     = "NotSelected"
	ReasonExcluded        = "Excluded"
	ReasonSessionDown     = "SessionDown"
	ReasonNoSession       = "NoSession"
	ReasonNoEndpoint      = "NoEndpoint"
	ReasonOtherProxy      = "OtherProxy"
	ReasonUnread          = "Unread"
)

// OfOthers follows a kind in Cluster.Unread of which only the objects of one namespace could be listed.
const (
	OfOthers      = " of other namespaces"
	OtherServices = "Services" + OfOthers
)

// Finding is what was found out about one step.
type Finding struct {
	Step    Step   `json:"step"`
	Subject string `json:"subject,omitempty"` // address, node, pool or session
	State   State  `json:"state"`
	Reason  string `json:"reason,omitempty"`
	// Message explains the reason, with the remediation.
	Message string `json:"message,omitempty"`
}

// Explanation is the way of a Service to the network.
type Explanation struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Addresses []string  `json:"addresses,omitempty"`
	Findings  []Finding `json:"findings"`
}

// Cause returns the first finding of the worst state, nil if everything is OK: later problems follow from it.
func (e *Explanation) Cause() *Finding {
	for _, s := range []State{Problem, Unknown, Warning} {
		if i := slices.IndexFunc(e.Findings, func(f Finding) bool { return f.State == s }); i >= 0 {
			return &e.Findings[i]
		}
	}
	return nil
}

// explainer collects the findings about one Service.
type explainer struct {
	*Cluster
	svc       *corev1.Service
	addresses []v1alpha1.Record // with their pools
	absence   map[string]v1alpha1.Absence
	brief     bool // only the cause counts
	out       Explanation
}

func (e *explainer) add(step Step, subject string, state State, reason, format string, args ...any) {
	e.out.Findings = append(e.out.Findings, Finding{step, subject, state, reason, fmt.Sprintf(format, args...)})
}

// unread reports whether a kind could not be read, and adds that to the step.
func (e *explainer) unread(step Step, kinds ...string) bool {
	for _, kind := range kinds {
		if why := e.Unread[kind]; why != "" {
			e.add(step, "", Unknown, ReasonUnread, "%s cannot be listed: %s", kind, why)
			return true
		}
	}
	return false
}

// Explain follows a Service of the Cluster to the network. It ends at a step without which there is no next one.
func (c *Cluster) Explain(svc *corev1.Service) Explanation { return c.explain(svc, false) }

// Cause returns the cause that an explanation of the Service would have, for less than the explanation costs.
func (c *Cluster) Cause(svc *corev1.Service) *Finding {
	e := c.explain(svc, true)
	return e.Cause()
}

func (c *Cluster) explain(svc *corev1.Service, brief bool) Explanation {
	e := &explainer{Cluster: c, svc: svc, absence: c.Absent(), brief: brief, out: Explanation{Namespace: svc.Namespace, Name: svc.Name}}
	e.addresses, _ = v1alpha1.RecordsOf(svc)
	for _, r := range e.addresses {
		e.out.Addresses = append(e.out.Addresses, r.Addr.String())
	}
	if e.class() && e.allocation() {
		e.announcement()
		e.endpoints()
		e.forwarding()
	}
	e.warnings()
	return e.out
}

// Affected reports whether the Service is one of IronLB: those of other controllers need no explanation unless it is
// asked for.
func (c *Cluster) Affected(svc *corev1.Service) bool {
	_, ours := v1alpha1.RecordsOf(svc)
	return ours || c.Settings.Wants(svc) && len(svc.Status.LoadBalancer.Ingress) == 0
}

func (e *explainer) class() bool {
	svc := e.svc
	_, ours := v1alpha1.RecordsOf(svc)
	class, shown := "", strings.Join(shownBy(svc), ", ")
	if svc.Spec.LoadBalancerClass != nil {
		class = *svc.Spec.LoadBalancerClass
	}
	switch {
	case svc.DeletionTimestamp != nil:
		e.add(StepClass, class, Info, ReasonDeleted, "the Service is being deleted")
	case svc.Spec.Type != corev1.ServiceTypeLoadBalancer:
		e.add(StepClass, class, Problem, ReasonNotLoadBalancer, "spec.type is %s: only Services of type LoadBalancer get an address", svc.Spec.Type)
	case !e.Settings.Wants(svc) && !ours && shown != "":
		e.add(StepClass, class, Info, ReasonOtherController, "another controller gave it %s", shown)
	case !e.Settings.Wants(svc) && len(e.addresses) > 0:
		e.add(StepClass, class, OK, "", "served by IronLB since before its class settings changed")
		return true
	case !e.Settings.Wants(svc) && e.unread(StepClass, "Deployments"): // its flags have the class
	case !e.Settings.Wants(svc) && class != "":
		e.add(StepClass, class, Problem, ReasonOtherClass,
			"IronLB serves the class %s only: spec.loadBalancerClass cannot be changed, so delete the Service and create it with that class", e.Settings.Class)
	case !e.Settings.Wants(svc):
		e.add(StepClass, class, Problem, ReasonOtherClass,
			"IronLB runs with --only-class: delete the Service and create it with spec.loadBalancerClass: %s", e.Settings.Class)
	case !ours && shown != "":
		e.add(StepClass, class, Info, ReasonOtherController, "another controller gave it %s; IronLB serves it once these addresses are removed from its status", shown)
	case !ours && e.Controller != "":
		e.add(StepClass, class, Problem, ReasonNotProcessed, "ironlb-ccm does not run: %s", e.Controller)
	case !ours:
		e.add(StepClass, class, Problem, ReasonNotProcessed, "ironlb-ccm has not processed the Service: see its log")
	default:
		e.add(StepClass, class, OK, "", "served by IronLB")
		return true
	}
	return false
}

// shownBy returns what the status of a Service shows: addresses, or names of other controllers' load balancers.
func shownBy(svc *corev1.Service) (out []string) {
	for _, in := range svc.Status.LoadBalancer.Ingress {
		out = append(out, cmp.Or(in.IP, in.Hostname))
	}
	return out
}

func (e *explainer) allocation() bool {
	c := meta.FindStatusCondition(e.svc.Status.Conditions, v1alpha1.ConditionAllocated)
	if c == nil {
		e.add(StepAddress, "", Unknown, ReasonNotProcessed, "the Service has no condition %s", v1alpha1.ConditionAllocated)
		return len(e.addresses) > 0
	}
	state := OK
	switch {
	case c.Status != metav1.ConditionTrue && len(e.addresses) == 0:
		state = Problem
	case c.Status != metav1.ConditionTrue, c.Reason == string(pools.Draining):
		state = Warning // it keeps what it has
	}
	e.add(StepAddress, "", state, c.Reason, "%s", c.Message)
	if state == Problem && !e.brief {
		e.pools()
	}
	for _, r := range e.addresses {
		if !slices.Contains(servicerecord.IngressOf(e.svc), r.Addr) {
			e.add(StepAddress, r.Addr.String(), Problem, ReasonNotShown,
				"status.loadBalancer does not show the address: another writer changed it, and ironlb-ccm restores it")
		}
	}
	return len(e.addresses) > 0
}

// pools finds out for each pool why it gives no address: by the rules of the allocation, applied to a claim of the
// Service for that pool.
func (e *explainer) pools() {
	if e.unread(StepPool, "IPAddressPools") {
		return
	}
	if why := e.Unread[OtherServices]; why != "" {
		e.add(StepPool, "", Info, ReasonUnread, "addresses and sharing keys of %s are not considered: %s", OtherServices, why)
	}
	alloc := pools.New()
	alloc.SetPools(e.poolsInForce())
	for i := range e.Namespaces {
		alloc.SetNamespace(e.Namespaces[i].Name, e.Namespaces[i].Labels)
	}
	var held []pools.Claim
	for i := range e.Services {
		if c := e.Settings.ClaimOf(&e.Services[i]); len(c.Held) > 0 {
			held = append(held, c)
		}
	}
	alloc.Adopt(held)
	for i := range e.Pools {
		p, claim := &e.Pools[i], e.Settings.ClaimOf(e.svc)
		requested := claim.Pool == p.Name
		claim.Pool, claim.Invalid, claim.Addresses = p.Name, "", nil
		d := alloc.Assign(claim, e.Now)
		alloc.Release(claim.Service, e.Now)
		switch ready := meta.FindStatusCondition(p.Status.Conditions, condition.Ready); {
		case ready != nil && ready.Status == metav1.ConditionFalse && p.Status.LastGood == "":
			e.add(StepPool, p.Name, Info, ready.Reason, "%s", ready.Message)
		case len(d.Lease) == 0:
			e.add(StepPool, p.Name, Info, string(d.Reason), "%s", d.Message)
		case p.Spec.AutoAssign != nil && !*p.Spec.AutoAssign && !requested:
			e.add(StepPool, p.Name, Info, ReasonNotAutoAssigned, "autoAssign is false: request the pool with the annotation %s: %s", v1alpha1.AnnotationPool, p.Name)
		case free(p, d.Lease) == 0:
			e.add(StepPool, p.Name, Info, string(pools.PoolExhausted), "no address is free; %s", withheldIn(p))
		case cooling(p, d.Lease):
			e.add(StepPool, p.Name, Info, ReasonCoolingDown, "all free addresses cool down; the next is free in %s", e.nextCool(p))
		default:
			e.add(StepPool, p.Name, Info, "", "accepts the Service; %d IPv4 and %d IPv6 addresses are free", p.Status.AvailableIPv4, p.Status.AvailableIPv6)
		}
	}
	if len(e.Pools) == 0 {
		e.add(StepPool, "", Info, string(pools.NoPool), "there is no IPAddressPool: create one")
	}
}

// free returns the fewest free addresses of a pool in a family of the lease.
func free(p *v1alpha1.IPAddressPool, lease []pools.Address) int64 {
	least := int64(math.MaxInt64)
	for _, a := range lease {
		if a.Addr.Is4() {
			least = min(least, p.Status.AvailableIPv4)
		} else {
			least = min(least, p.Status.AvailableIPv6)
		}
	}
	return least
}

// withheldIn explains a pool that is full although few Services hold its addresses.
func withheldIn(p *v1alpha1.IPAddressPool) string {
	if c := trueCondition(p.Status.Conditions, "Withheld"); c != nil {
		return c.Message
	}
	return "add addresses, or delete a Service"
}

// cooling reports whether all free addresses of a pool cool down, in a family of the lease.
func cooling(p *v1alpha1.IPAddressPool, lease []pools.Address) bool {
	v4, v6 := int64(0), int64(0)
	for _, c := range p.Status.CoolingDown {
		if addr, err := netip.ParseAddr(c.Address); err == nil && addr.Is4() {
			v4++
		} else if err == nil {
			v6++
		}
	}
	return slices.ContainsFunc(lease, func(a pools.Address) bool {
		return a.Addr.Is4() && v4 > 0 && p.Status.AvailableIPv4 <= v4 || a.Addr.Is6() && v6 > 0 && p.Status.AvailableIPv6 <= v6
	})
}

// nextCool returns the delay until an address of the pool may be assigned again.
func (e *explainer) nextCool(p *v1alpha1.IPAddressPool) string {
	first := slices.MinFunc(p.Status.CoolingDown, func(a, b v1alpha1.CoolingAddress) int { return a.Freed.Compare(b.Freed.Time) })
	rest := time.Duration(0)
	if p.Spec.ReuseAfter != nil {
		rest = max(0, first.Freed.Add(p.Spec.ReuseAfter.Duration).Sub(e.Now))
	}
	return duration.HumanDuration(rest)
}

// selecting is an advertisement with its selection.
type selecting struct {
	kind, name string
	advertisement.Selection
	peers    []string // of BGP; none: all
	withheld bool     // of BGP: it lacks a community
}

// selectsSharers reports whether an advertisement selects all Services on an address.
func (e *explainer) selectsSharers(a *selecting, addr netip.Addr) bool {
	return !slices.ContainsFunc(e.find().holders[addr], func(svc *corev1.Service) bool { return !a.SelectsService(svc.Labels) })
}

func (c *Cluster) advertisements() (out []selecting) {
	for i := range c.L2 {
		s, _ := advertisement.OfL2(&c.L2[i]) // its condition has the error
		out = append(out, selecting{kind: "L2Advertisement", name: c.L2[i].Name, Selection: s})
	}
	for i := range c.BGP {
		s, _ := advertisement.OfBGP(&c.BGP[i])
		ready := meta.FindStatusCondition(c.BGP[i].Status.Conditions, condition.Ready)
		out = append(out, selecting{kind: "BGPAdvertisement", name: c.BGP[i].Name, Selection: s, peers: c.BGP[i].Spec.Peers,
			withheld: ready != nil && ready.Reason == "UnknownCommunity"})
	}
	return out
}

func (s *selecting) String() string { return s.kind + " " + s.name }

// announcement explains for each address who announces it.
func (e *explainer) announcement() {
	if e.unread(StepAdvertisement, "L2Advertisements", "BGPAdvertisements", "IPAddressPools") {
		return
	}
	ads := e.find().ads
	var explained []*v1alpha1.VirtualIP
	for _, r := range e.addresses {
		r.Pool = cmp.Or(e.poolOf(r.Addr), r.Pool) // the record may lag behind
		var labels map[string]string
		if p := e.pool(r.Pool); p != nil {
			labels = p.Labels
		}
		var l2, bgp []selecting
		var names, why []string
		for _, a := range ads {
			switch {
			case !a.SelectsPool(r.Pool, labels):
				why = append(why, fmt.Sprintf("%s does not select pool %s", a.String(), r.Pool))
				continue
			case !a.SelectsService(e.svc.Labels):
				why = append(why, fmt.Sprintf("%s does not select the labels of the Service", a.String()))
				continue
			case a.kind == "BGPAdvertisement" && !e.selectsSharers(&a, r.Addr):
				why = append(why, fmt.Sprintf("%s does not select all Services on the address", a.String()))
				continue
			case a.withheld:
				why = append(why, fmt.Sprintf("%s announces nothing: its condition Ready has the reason", a.String()))
				continue
			case a.kind == "L2Advertisement":
				l2 = append(l2, a)
			default:
				bgp = append(bgp, a)
			}
			names = append(names, a.String())
		}
		if len(names) == 0 {
			e.notAdvertised(r, why)
			continue
		}
		e.add(StepAdvertisement, r.Addr.String(), OK, "", "%s", some(names))
		if why := e.Unread[OtherServices]; len(bgp) > 0 && why != "" {
			e.add(StepAdvertisement, r.Addr.String(), Info, ReasonUnread,
				"BGP announces the address only while all Services on it are selected, and %s cannot be listed: %s", OtherServices, why)
		}
		if len(l2) > 0 {
			switch v := e.VirtualIP(r.Addr); {
			case v != nil && slices.Contains(explained, v):
			case v != nil:
				explained = append(explained, v)
				e.owner(v, l2)
				e.unread(StepOwner, "SpeakerStatuses") // whether the owner's is gone
			case !e.unread(StepOwner, "VirtualIPs"):
				e.add(StepOwner, r.Addr.String(), Problem, ReasonNotPlaced, "there is no VirtualIP of the address: see the log of ironlb-ccm")
			}
		}
		if len(bgp) > 0 && !e.unread(StepSession, "SpeakerStatuses") {
			e.sessions(r.Addr, bgp)
		}
	}
}

func (e *explainer) notAdvertised(r v1alpha1.Record, why []string) {
	remedy := fmt.Sprintf("create one that selects pool %s", r.Pool)
	if len(why) > 0 {
		remedy += ", or widen one: " + some(why)
	}
	e.add(StepAdvertisement, r.Addr.String(), Problem, ReasonNotAdvertised,
		"no L2Advertisement or BGPAdvertisement covers the address, so no node announces it: %s", remedy)
}

// owner explains which node answers for a VirtualIP, and why not the others.
func (e *explainer) owner(v *v1alpha1.VirtualIP, ads []selecting) {
	subject, owner, found := strings.Join(v.Spec.Addresses, ", "), v.Status.Node, len(e.out.Findings)
	announced := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionAnnounced)
	conflict := trueCondition(v.Status.Conditions, v1alpha1.ConditionConflict)
	if c := trueCondition(v.Status.Conditions, v1alpha1.ConditionNoEligibleNode); c != nil {
		e.add(StepOwner, subject, Problem, c.Reason, "%s", c.Message)
		announced = nil
	}
	switch {
	case len(v.Spec.Nodes) == 0 && len(e.out.Findings) == found:
		e.add(StepOwner, subject, Problem, ReasonNotPlaced, "its list of nodes is empty: ironlb-ccm has not placed it yet")
	case len(v.Spec.Nodes) == 0:
	case announced == nil:
		e.add(StepOwner, subject, Problem, ReasonNotReported, "no node has reported the address: see the speakers on %s", some(v.Spec.Nodes))
	case announced.Status == metav1.ConditionTrue && e.absence[owner] != "":
		e.add(StepOwner, subject, Problem, string(e.absence[owner]), "%s answered for the address, and its speaker is gone; no other node has reported yet", owner)
	case announced.Status == metav1.ConditionTrue:
		e.add(StepOwner, subject, OK, announced.Reason, "%s answers on %s since %s", owner, orNone(v.Status.Interfaces), e.ago(v.Status.Since))
	case conflict != nil && conflict.Reason == announced.Reason: // its message names the other host
	default:
		e.add(StepOwner, subject, Problem, announced.Reason, "%s", announced.Message)
	}
	if conflict != nil {
		e.add(StepOwner, subject, Problem, conflict.Reason, "%s", conflict.Message)
	}
	if owner != "" {
		e.dataPlane(owner)
	}
	if !e.brief {
		e.others(v, ads)
	}
	if c := trueCondition(v.Status.Conditions, v1alpha1.ConditionNotDirect); c != nil {
		e.add(StepForwarding, subject, Warning, c.Reason, "%s", c.Message)
	}
	if c := trueCondition(v.Status.Conditions, v1alpha1.ConditionKubeProxyConflict); c != nil {
		e.add(StepKubeProxy, owner, Problem, c.Reason, "%s", c.Message)
	}
}

func (e *explainer) dataPlane(node string) {
	if s := e.speaker(node); s != nil && !s.Status.DataPlane.Healthy && e.absence[node] == "" {
		e.add(StepForwarding, node, Problem, s.Status.DataPlane.Reason, "%s", s.Status.DataPlane.Message)
	}
}

// others explains for each node but the owner why it does not answer.
func (e *explainer) others(v *v1alpha1.VirtualIP, ads []selecting) {
	for rank, name := range v.Spec.Nodes {
		if name == v.Status.Node {
			continue
		}
		s := e.speaker(name)
		switch {
		case e.absence[name] != "":
			e.add(StepNode, name, Info, string(e.absence[name]), "its speaker is gone")
		case s == nil && e.Unread["SpeakerStatuses"] == "":
			e.add(StepNode, name, Info, ReasonNotReported, "no speaker has reported from it")
		case s != nil && !s.Status.DataPlane.Healthy:
			e.add(StepNode, name, Info, s.Status.DataPlane.Reason, "%s", s.Status.DataPlane.Message)
		case rank == 0 && v.Status.Node != "":
			e.add(StepNode, name, Info, ReasonStandby, "takes over from %s now", v.Status.Node)
		default:
			e.add(StepNode, name, Info, ReasonStandby, "number %d of the nodes that take over", rank+1)
		}
	}
	for i := range e.Nodes {
		n := &e.Nodes[i]
		switch why := watch.ExclusionReason(n, e.Settings.IgnoreExclude); {
		case slices.Contains(v.Spec.Nodes, n.Name):
		case why != "":
			e.add(StepNode, n.Name, Info, ReasonExcluded, "%s", why)
		case !slices.ContainsFunc(ads, func(a selecting) bool { return a.SelectsNode(n) }):
			e.add(StepNode, n.Name, Info, ReasonNotSelected, "nodeSelectors of %s do not match it", some(namesOf(ads)))
		}
	}
}

// announcers returns the speakers of the nodes that may announce an address of the advertisements by BGP.
func (c *Cluster) announcers(ads []selecting) []*v1alpha1.SpeakerStatus {
	key := strings.Join(namesOf(ads), ",")
	out, known := c.find().announcers[key]
	if known {
		return out
	}
	for i := range c.Speakers {
		s := &c.Speakers[i]
		n := c.node(s.Name)
		switch {
		case s.Status.BGP == nil, c.Absent()[s.Name] != "":
		case n != nil && !slices.ContainsFunc(ads, func(a selecting) bool { return a.SelectsNode(n) }):
		case n != nil && watch.ExclusionReason(n, c.Settings.IgnoreExclude) != "":
		default:
			out = append(out, s)
		}
	}
	c.find().announcers[key] = out
	return out
}

// unserved reports whether a node does not serve the address, and else whether it may be one that is only counted: the
// lowest ones are listed.
func unserved(all []v1alpha1.UnservedStatus, addr netip.Addr) (listed, counted bool) {
	for i := range all {
		u := &all[i]
		if slices.Contains(u.Addresses, addr.String()) {
			return true, false
		}
		if last := len(u.Addresses) - 1; last >= 0 && int(u.Count) > last+1 {
			highest, err := netip.ParseAddr(u.Addresses[last])
			counted = counted || err == nil && highest.Less(addr)
		}
	}
	return false, counted
}

// sessions explains by which BGP sessions an address is announced.
func (e *explainer) sessions(addr netip.Addr, ads []selecting) {
	family := corev1.IPv6Protocol
	if addr.Is4() {
		family = corev1.IPv4Protocol
	}
	var up, unsure []string
	serves := e.serving(addr.Is4())
	for _, s := range e.announcers(ads) {
		if !serves(s.Name) {
			continue
		}
		if e.brief && len(up) > 0 {
			break
		}
		listed, counted := unserved(s.Status.BGP.Unserved, addr)
		if counted {
			unsure = append(unsure, s.Name)
		}
		if listed || counted {
			continue
		}
		for _, session := range s.Status.BGP.Sessions {
			carries := func(a selecting) bool { return len(a.peers) == 0 || slices.Contains(a.peers, session.Peer) }
			name := s.Name + " to " + session.Peer
			switch {
			case !slices.ContainsFunc(ads, carries):
			case session.State != v1alpha1.SessionEstablished:
				e.add(StepSession, name, Info, cmp.Or(session.Reason, ReasonSessionDown), "%s", cmp.Or(session.Message, "state "+string(session.State)))
			case len(session.Families) == 0 || slices.Contains(session.Families, family):
				up = append(up, name)
			}
		}
	}
	reported := false
	for i := range e.BGP {
		for _, u := range e.BGP[i].Status.Unserved {
			if !reported && slices.Contains(u.Addresses, addr.String()) && slices.ContainsFunc(ads, func(a selecting) bool { return a.name == e.BGP[i].Name }) {
				reported = true
				e.add(StepSession, addr.String(), Problem, u.Reason, "%s", u.Message)
			}
		}
	}
	switch {
	case reported:
	case len(up) == 0 && len(unsure) > 0:
		e.add(StepSession, addr.String(), Unknown, ReasonNotReported,
			"%s do not serve all addresses and list only the lowest ones: \"ironlb-speaker dump\" in their Pods shows whether they serve this one", some(unsure))
	case len(up) == 0:
		e.add(StepSession, addr.String(), Problem, ReasonNoSession, "no established session of a node that %s selects carries %s", some(namesOf(ads)), family)
	default:
		e.add(StepSession, addr.String(), OK, v1alpha1.ConditionEstablished, "%s", some(up))
	}
}

// local reports whether only nodes with an endpoint announce the Service.
func (e *explainer) local() bool {
	return e.svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && e.Settings.ForwardingOf(e.svc) != v1alpha1.ForwardingDirect
}

// serving returns whether a node may announce an address of the family: with policy Local it needs an endpoint of each port
// that has any.
func (e *explainer) serving(ipv4 bool) func(node string) bool {
	if !e.local() {
		return func(string) bool { return true }
	}
	var ports []map[string]int
	for i := range e.svc.Spec.Ports {
		if on := e.readyOn(e.svc, &e.svc.Spec.Ports[i], ipv4); len(on) > 0 {
			ports = append(ports, on)
		}
	}
	return func(node string) bool {
		return !slices.ContainsFunc(ports, func(on map[string]int) bool { return on[node] == 0 })
	}
}

// endpoints counts the ready endpoints of each port, in each family of the addresses.
func (e *explainer) endpoints() {
	if e.unread(StepEndpoints, "EndpointSlices") {
		return
	}
	for _, ipv4 := range []bool{true, false} {
		if !slices.ContainsFunc(e.addresses, func(r v1alpha1.Record) bool { return r.Addr.Is4() == ipv4 }) {
			continue
		}
		family := corev1.IPv6Protocol
		if ipv4 {
			family = corev1.IPv4Protocol
		}
		for i := range e.svc.Spec.Ports {
			port := &e.svc.Spec.Ports[i]
			on := e.readyOn(e.svc, port, ipv4)
			total := 0
			for _, n := range on {
				total += n
			}
			subject := fmt.Sprintf("%d/%s", port.Port, port.Protocol)
			if total == 0 {
				see := fmt.Sprintf("the Pods of selector %q, their readiness and spec.ports[%d].targetPort",
					metav1.FormatLabelSelector(metav1.SetAsLabelSelector(e.svc.Spec.Selector)), i)
				if len(e.svc.Spec.Selector) == 0 {
					see = "its EndpointSlices: it has no selector"
				}
				e.add(StepEndpoints, subject, Problem, ReasonNoEndpoint, "no ready %s endpoint, so connections are refused: see %s", family, see)
				continue
			}
			local := ""
			if e.local() {
				local = "; externalTrafficPolicy is Local: only these nodes announce"
			}
			e.add(StepEndpoints, subject, OK, "", "%d ready %s endpoints on %s%s", total, family, some(slices.Sorted(maps.Keys(on))), local)
		}
	}
}

func (e *explainer) forwarding() {
	want := e.Settings.ForwardingOf(e.svc)
	if e.Settings.IPMode == string(corev1.LoadBalancerIPModeVIP) {
		switch proxy, labelled := e.svc.Labels[v1alpha1.LabelProxy]; {
		case !labelled:
			e.add(StepForwarding, "", OK, "", "kube-proxy forwards (--ip-mode=VIP)")
		case proxy != v1alpha1.ProxyName:
			e.add(StepKubeProxy, "", Warning, ReasonOtherProxy, "label %s is %q: kube-proxy does not forward the Service, that proxy must", v1alpha1.LabelProxy, proxy)
		}
		return
	}
	bad := func(f Finding) bool { return f.Step == StepForwarding && f.State != OK }
	if !slices.ContainsFunc(e.out.Findings, bad) {
		e.add(StepForwarding, "", OK, "", "%s", want)
	}
}

// warnings adds those of the Service that no other step has.
func (e *explainer) warnings() {
	c := meta.FindStatusCondition(e.svc.Status.Conditions, condition.Warnings)
	if c == nil || slices.ContainsFunc(e.out.Findings, func(f Finding) bool { return f.State != Info && strings.Contains(f.Message, c.Message) }) {
		return
	}
	state := Warning
	if slices.Contains([]string{"AddressRefused", "PortConflict", v1alpha1.ReasonTooLarge}, c.Reason) {
		state = Problem
	}
	e.add(StepWarnings, "", state, c.Reason, "%s", c.Message)
}

func trueCondition(all []metav1.Condition, kind string) *metav1.Condition {
	if c := meta.FindStatusCondition(all, kind); c != nil && c.Status == metav1.ConditionTrue {
		return c
	}
	return nil
}

func (c *Cluster) ago(at *metav1.Time) string {
	if at.IsZero() {
		return "an unknown time"
	}
	return duration.HumanDuration(c.Now.Sub(at.Time))
}

func some(names []string) string { return condition.Some(condition.Names(names)) }

func namesOf(ads []selecting) (out []string) {
	for _, a := range ads {
		out = append(out, a.String())
	}
	return out
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "no interface"
	}
	return some(names)
}
