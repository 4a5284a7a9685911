package main

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/diagnose"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// page is what ui shows: the tables of status, without anything else that is in the objects, and the last moves.
type page struct {
	Context  string           `json:"context"` // of the kubeconfig
	Error    string           `json:"error,omitempty"`
	State    diagnose.State   `json:"state"`
	Problems []diagnose.Group `json:"problems"`
	Pools    []pagePool       `json:"pools"`
	Nodes    []pageNode       `json:"nodes"`
	// Ownerless are the addresses without an owner.
	Ownerless []pageAddress `json:"ownerless"`
	// Routed are the addresses of Services that no VirtualIP has: those that only BGP announces, or nothing.
	Routed   []pageAddress `json:"routed"`
	Sessions []pageSession `json:"sessions"`
	Moves    []pageMove    `json:"moves"`
	// MovesError is why the moves are not known.
	MovesError string `json:"movesError,omitempty"`
}

type pagePool struct {
	Name      string       `json:"name"`
	Ready     string       `json:"ready"` // True, False or Unknown
	Draining  bool         `json:"draining,omitempty"`
	Addresses []string     `json:"addresses"`
	Families  []pageFamily `json:"families"`
}

// pageFamily counts the addresses of a pool in one family. Cooling ones are free, and listed up to a limit.
type pageFamily struct {
	Family  corev1.IPFamily `json:"family"`
	Used    int64           `json:"used"`
	Free    int64           `json:"free"`
	Cooling int64           `json:"cooling"`
}

type pageNode struct {
	Name       string        `json:"name"`
	Forwards   string        `json:"forwards"` // True, False or Unknown
	Reason     string        `json:"reason"`
	Message    string        `json:"message,omitempty"`
	Alive      string        `json:"alive,omitempty"`
	Interfaces []string      `json:"interfaces,omitempty"`
	Addresses  []pageAddress `json:"addresses"`
}

// pageAddress are addresses that move together.
type pageAddress struct {
	Addresses []string     `json:"addresses"`
	Services  []string     `json:"services"`
	Announced string       `json:"announced"` // True, False or Unknown
	Reason    string       `json:"reason"`
	Since     *metav1.Time `json:"since,omitempty"`
	Next      string       `json:"next,omitempty"`
}

type pageSession struct {
	Node     string       `json:"node"`
	Peer     string       `json:"peer"`
	Address  string       `json:"address,omitempty"`
	ASN      string       `json:"asn"`
	State    string       `json:"state"`
	Since    *metav1.Time `json:"since,omitempty"`
	Prefixes int32        `json:"prefixes"`
	BFD      string       `json:"bfd,omitempty"`
	Reason   string       `json:"reason,omitempty"`
}

// pageMove are moves that have the cause, the previous owner and, but for seconds, the time in common.
type pageMove struct {
	At        metav1.Time `json:"at"` // of the latest
	Reason    string      `json:"reason"`
	From      string      `json:"from,omitempty"`
	To        []string    `json:"to"`
	Cause     string      `json:"cause,omitempty"`
	Addresses []string    `json:"addresses"`
	// Shortest and Longest are how long clients had no answer, in milliseconds; absent for handovers, and if unknown.
	Shortest int64 `json:"shortest,omitempty"`
	Longest  int64 `json:"longest,omitempty"`
}

// pageReader returns the function that reads the objects and makes the page of them.
func (t *tool) pageReader() func(context.Context) (*page, error) {
	events := &moveEvents{tool: t, moves: []pageMove{}}
	return func(ctx context.Context) (*page, error) {
		c, err := t.read(ctx)
		if err != nil {
			return nil, err
		}
		events.refresh(ctx, c.VirtualIPs)
		p := t.page(c)
		p.Moves, p.MovesError = events.moves, events.failed
		return p, nil
	}
}

// page makes the page of the objects, but for the moves.
func (t *tool) page(c *diagnose.Cluster) *page {
	s := t.tables(c, nil)
	p := &page{Context: t.context(), State: s.worst(), Problems: s.Problems,
		Pools: []pagePool{}, Nodes: []pageNode{}, Ownerless: []pageAddress{}, Routed: []pageAddress{}, Sessions: []pageSession{}}
	for i := range s.Pools {
		p.Pools = append(p.Pools, poolOnPage(&s.Pools[i]))
	}
	owned := map[string][]pageAddress{}
	placed := map[string]bool{}
	for i := range s.VirtualIPs {
		v := &s.VirtualIPs[i]
		one := addressOnPage(v)
		for _, a := range one.Addresses {
			placed[a] = true
		}
		if v.Status.Node == "" {
			p.Ownerless = append(p.Ownerless, one)
			continue
		}
		owned[v.Status.Node] = append(owned[v.Status.Node], one)
	}
	p.Routed = routed(c, s.Problems, placed)
	for i := range s.Nodes {
		n := &s.Nodes[i]
		forwards, reason := s.forwarding(n)
		one := pageNode{Name: n.Name, Forwards: forwards, Reason: reason, Alive: n.Status.Alive,
			Interfaces: interfacesOf(&n.Status), Addresses: append([]pageAddress{}, owned[n.Name]...)}
		switch forwards {
		case "False":
			one.Message = n.Status.DataPlane.Message
		case "Unknown":
			outdate(one.Addresses, reason)
		}
		p.Nodes = append(p.Nodes, one)
		delete(owned, n.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(owned)) { // an owner without a SpeakerStatus
		outdate(owned[name], diagnose.ReasonNotReported)
		p.Nodes = append(p.Nodes, pageNode{Name: name, Forwards: "Unknown", Reason: diagnose.ReasonNotReported, Addresses: owned[name]})
	}
	for i := range s.Sessions {
		p.Sessions = append(p.Sessions, s.sessionOnPage(&s.Sessions[i]))
	}
	return p
}

// context returns the name of the kubeconfig's context, as the name of the cluster.
func (t *tool) context() string {
	if name := t.flags.Context; name != nil && *name != "" {
		return printable(*name)
	}
	config, err := t.flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return "" // the objects have been read without it
	}
	return printable(config.CurrentContext)
}

func poolOnPage(p *v1alpha1.IPAddressPool) pagePool {
	one := pagePool{Name: p.Name, Ready: readiness(p), Draining: isDraining(p), Addresses: p.Spec.Addresses, Families: []pageFamily{}}
	cooling := map[bool]int64{}
	for _, c := range p.Status.CoolingDown {
		cooling[strings.Contains(c.Address, ":")]++
	}
	v4 := pageFamily{corev1.IPv4Protocol, p.Status.AssignedIPv4, p.Status.AvailableIPv4, cooling[false]}
	v6 := pageFamily{corev1.IPv6Protocol, p.Status.AssignedIPv6, p.Status.AvailableIPv6, cooling[true]}
	for _, f := range []pageFamily{v4, v6} {
		if f.Used+f.Cooling > 0 || f.Free > 0 {
			one.Families = append(one.Families, f)
		}
	}
	return one
}

func addressOnPage(v *v1alpha1.VirtualIP) pageAddress {
	announced, reason := announcement(v)
	one := pageAddress{Addresses: v.Spec.Addresses, Services: append([]string{}, servicesOn(v)...), Announced: announced, Reason: reason, Since: v.Status.Since}
	if n := next(v); n != "-" {
		one.Next = n
	}
	return one
}

// outdate marks addresses of an owner of which nothing is known: their status is that of before.
func outdate(addresses []pageAddress, reason string) {
	for i := range addresses {
		addresses[i].Announced, addresses[i].Reason = "Unknown", reason
	}
}

// routed returns the addresses of Services that no VirtualIP has. The first problem of the Service tells about them.
func routed(c *diagnose.Cluster, problems []diagnose.Group, placed map[string]bool) []pageAddress {
	reasons := map[string]string{}
	for _, g := range slices.Backward(problems) {
		if g.Kind == "Service" && g.State != diagnose.Warning {
			for _, name := range g.Objects {
				reasons[name] = g.Reason
			}
		}
	}
	of := map[netip.Addr]*pageAddress{}
	for i := range c.Services {
		svc := &c.Services[i]
		name := svc.Namespace + "/" + svc.Name
		records, _ := v1alpha1.RecordsOf(svc)
		for _, r := range records {
			if placed[r.Addr.String()] {
				continue
			}
			one := of[r.Addr]
			if one == nil {
				one = &pageAddress{Addresses: []string{r.Addr.String()}, Announced: "True", Reason: "BGP"}
				if len(c.Unread) > 0 {
					one.Announced, one.Reason = "Unknown", diagnose.ReasonUnread
				}
				of[r.Addr] = one
			}
			one.Services = append(one.Services, name)
			if why := reasons[name]; why != "" {
				one.Announced, one.Reason = "False", why
			}
		}
	}
	out := []pageAddress{}
	for _, addr := range slices.SortedFunc(maps.Keys(of), netip.Addr.Compare) {
		out = append(out, *of[addr])
	}
	return out
}

func (s *tables) sessionOnPage(one *session) pageSession {
	out := pageSession{Node: one.Node, Peer: one.Peer, Address: one.Address, ASN: asn(one)}
	if why := s.absent[one.Node]; why != "" { // its last report is outdated
		out.State, out.Reason = "Unknown", string(why)
		return out
	}
	out.State, out.Since, out.Prefixes, out.Reason = string(one.State), one.Since, one.Prefixes, one.why()
	if one.BFD != nil {
		out.BFD = string(one.BFD.State)
	}
	return out
}

// Reasons of the Events of a new owner (docs/reference/events-and-conditions.md), and what their messages have besides.
var (
	moveReasons = []string{"OwnerLost", "TakenOver"}
	moveMessage = regexp.MustCompile(`^(?:\(combined from similar events\): )?node (\S+) answers for (\S+?)(?: in place of node (\S+?))?(?: after (\S+?))?(?:: (.+))?$`)
)

const (
	mostMoves   = 20
	oneMove     = 10 * time.Second // moves in less are one line
	eventsLate  = 10 * time.Second // after the status of the VirtualIP
	eventsEvery = time.Minute
)

// moveEvents are the last moves. The API server searches all Events for them, so they are read after an owner has
// changed, and else every minute.
type moveEvents struct {
	tool   *tool
	owners map[string]string
	until  time.Time
	read   time.Time

	moves  []pageMove
	failed string
}

func (m *moveEvents) refresh(ctx context.Context, vips []v1alpha1.VirtualIP) {
	now, owners, addresses := m.tool.now(), map[string]string{}, map[string][]string{}
	for i := range vips {
		owners[vips[i].Name], addresses[vips[i].Name] = vips[i].Status.Node, vips[i].Spec.Addresses
	}
	if !maps.Equal(owners, m.owners) {
		m.owners, m.until = owners, now.Add(eventsLate)
	}
	if now.After(m.until) && now.Before(m.read.Add(eventsEvery)) {
		return
	}
	m.read = now
	lists := make([]corev1.EventList, len(moveReasons))
	var group errgroup.Group
	for i, reason := range moveReasons {
		group.Go(func() error { return m.tool.list(ctx, &lists[i], client.MatchingFields{"reason": reason}) })
	}
	if err := group.Wait(); err != nil {
		m.failed = printable(err.Error()) // the moves stay
		return
	}
	m.failed, m.moves = "", movesOf(slices.Concat(lists[0].Items, lists[1].Items), addresses)
}

// movesOf returns the last moves, the latest first. addresses are those of each VirtualIP by its name.
func movesOf(events []corev1.Event, addresses map[string][]string) []pageMove {
	slices.SortStableFunc(events, func(a, b corev1.Event) int {
		return cmp.Or(b.LastTimestamp.Compare(a.LastTimestamp.Time), cmp.Compare(a.Message, b.Message))
	})
	moves := []pageMove{}
	for i := range events {
		e := &events[i]
		fields := moveMessage.FindStringSubmatch(e.Message)
		if fields == nil || e.Source.Component != "ironlb-speaker" {
			continue // another program's
		}
		took, _ := time.ParseDuration(fields[4]) // 0 if unknown
		one := pageMove{At: e.LastTimestamp, Reason: e.Reason, To: fields[1:2], Addresses: []string{fields[2]}, From: fields[3], Cause: fields[5],
			Shortest: took.Milliseconds(), Longest: took.Milliseconds()}
		if of := addresses[fields[2]]; of != nil {
			one.Addresses = slices.Clone(of)
		}
		same := slices.IndexFunc(moves, func(m pageMove) bool {
			return m.Reason == one.Reason && m.From == one.From && m.Cause == one.Cause && m.At.Sub(one.At.Time) < oneMove
		})
		switch {
		case same >= 0:
			moves[same].add(one)
		case len(moves) < mostMoves:
			moves = append(moves, one)
		}
	}
	for i := range moves {
		slices.Sort(moves[i].To)
		slices.SortFunc(moves[i].Addresses, func(a, b string) int {
			x, _ := netip.ParseAddr(a) // the name of a VirtualIP
			y, _ := netip.ParseAddr(b)
			return cmp.Or(x.Compare(y), cmp.Compare(a, b))
		})
	}
	return moves
}

// add adds a move. The Events of Services on one address are one.
func (m *pageMove) add(one pageMove) {
	for _, to := range one.To {
		if !slices.Contains(m.To, to) {
			m.To = append(m.To, to)
		}
	}
	for _, a := range one.Addresses {
		if !slices.Contains(m.Addresses, a) {
			m.Addresses = append(m.Addresses, a)
		}
	}
	if one.Shortest > 0 && (m.Shortest == 0 || one.Shortest < m.Shortest) {
		m.Shortest = one.Shortest
	}
	m.Longest = max(m.Longest, one.Longest)
}
