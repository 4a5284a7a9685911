package sim

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ccm/placement"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

const (
	// reportAfter is the delay of a status write to the API server, watchAfter that of a watch event to a speaker.
	reportAfter, reportSpread = 10 * time.Millisecond, 40 * time.Millisecond
	watchAfter, watchSpread   = 5 * time.Millisecond, 45 * time.Millisecond
	// passEvery is the interval of the placement controller, exactAfter the time without changes before an exact
	// placement.
	passEvery, exactAfter = time.Second, 5 * time.Second
	// writesPerSecond limits the lists that the controller writes.
	writesPerSecond = 200
)

// api is the API server with the placement controller.
type api struct {
	cluster  *Cluster
	down     bool
	services map[pools.ServiceKey]view.Service
	slices   map[pools.ServiceKey]map[string]view.Slice
	nodes    map[string]view.Node
	names    []string
	ready    map[string]bool
	peers    map[string][]netip.Addr
	vips     map[string]view.VIP
	placer   placement.Placer
	// passing is set while a pass is scheduled; changed is the time of the last change of a list.
	passing bool
	changed int64
	exact   bool
	lists   []write
	// clusterIPs are the Services of Config.ClusterIPs, in order.
	clusterIPs []clusterIP
	Written    Writes
}

// Writes counts writes to the API server: lists of VirtualIPs, statuses of VirtualIPs, SpeakerStatuses, and Events.
type Writes struct{ Lists, VirtualIPs, Speakers, Events int }

// Minus returns the writes since v.
func (w Writes) Minus(v Writes) Writes {
	return Writes{w.Lists - v.Lists, w.VirtualIPs - v.VirtualIPs, w.Speakers - v.Speakers, w.Events - v.Events}
}

// Plus returns the sum of two.
func (w Writes) Plus(v Writes) Writes {
	return Writes{w.Lists + v.Lists, w.VirtualIPs + v.VirtualIPs, w.Speakers + v.Speakers, w.Events + v.Events}
}

// write is a planned write of a list.
type write struct {
	vip   string
	nodes []string
	owner string // the owner at the decision
}

func newAPI(c *Cluster) *api {
	return &api{cluster: c, services: c.services(), nodes: map[string]view.Node{}, ready: map[string]bool{}, peers: map[string][]netip.Addr{}, vips: map[string]view.VIP{}}
}

func (a *api) addNode(s *Speaker) {
	addr := s.addrs[NodeNetwork]
	if a.cluster.config.OneNetwork {
		addr = s.addrs[LAN]
	}
	a.nodes, a.peers = maps.Clone(a.nodes), maps.Clone(a.peers)
	a.nodes[s.Name], a.peers[s.Name], a.ready[s.Name] = view.Node{Addresses: []netip.Addr{addr}, Ready: true}, []netip.Addr{addr}, true
	a.names = append(slices.Clone(a.names), s.Name)
}

// begin places all VirtualIPs before the speakers start.
func (a *api) begin() {
	for i, addr := range a.cluster.vips {
		a.vips[addr.String()] = view.VIP{Addresses: []netip.Addr{addr}, Services: []pools.ServiceKey{a.cluster.service(i)}}
	}
	for _, l := range a.place(true) {
		vip := a.vips[l.Unit]
		vip.Nodes, vip.Generation = l.Nodes, 1
		a.vips[l.Unit] = vip
	}
	a.exact = true
}

// view returns the initial View of a speaker that starts now.
func (a *api) view(s *Speaker) *view.View {
	v := view.New()
	v.Services, v.Slices, v.Nodes = a.services, a.slices, a.nodes
	if s.complete {
		v.VIPs = maps.Clone(a.vips)
	} else {
		v.Services = map[pools.ServiceKey]view.Service{}
		for i := range a.clusterIPs {
			key := a.clusterIPs[i].key
			v.Services[key] = a.services[key]
		}
		for name, vip := range a.vips {
			if s.concerns(vip) {
				v.VIPs[name] = vip
				v.Services[vip.Services[0]] = a.services[vip.Services[0]]
			}
		}
	}
	v.Advertisements["all"] = view.Advertisement{}
	v.Links[ifaces[LAN]] = view.Link{Name: ifaces[LAN], Subnets: []netip.Prefix{lanSubnet}}
	return v
}

// place computes all lists.
func (a *api) place(exact bool) []placement.List {
	var units []placement.Unit
	for name, vip := range a.vips {
		units = append(units, placement.Unit{Name: name, Eligible: a.names, Previous: vip.Nodes, Owner: vip.ReportedOwner})
	}
	var nodes []placement.Node
	for _, name := range a.names {
		nodes = append(nodes, placement.Node{Name: name, Ready: a.ready[name]})
	}
	return a.placer.Place(units, nodes, exact)
}

// report writes the status of a VirtualIP: its owner, and whether a node with an asymmetric link answers as well, as
// reported by the owner's speaker.
func (a *api) report(s *Speaker, vip int) {
	name := a.cluster.vips[vip].String()
	a.cluster.After(reportAfter+a.some(reportSpread), func() {
		if _, holds := s.holds[vip]; a.down || !holds || !s.runs() || !a.differs(s, name) || !s.desired.VIPs[name].Reporter {
			return
		}
		v := a.vips[name]
		v.ReportedOwner, v.Contested = s.Name, s.desired.VIPs[name].Asymmetric != ""
		a.vips[name] = v
		a.Written.VirtualIPs++
		a.publish(name)
		a.later(passEvery)
	})
}

// differs reports whether an owner's status differs from the written one.
func (a *api) differs(s *Speaker, name string) bool {
	v := a.vips[name]
	return v.ReportedOwner != s.Name || v.Contested != (s.desired.VIPs[name].Asymmetric != "")
}

func (a *api) some(spread time.Duration) time.Duration {
	return time.Duration(a.cluster.random.Int64N(int64(spread)))
}

// publish publishes VirtualIPs to all speakers that plan them.
func (a *api) publish(names ...string) {
	vips := make([]view.VIP, len(names))
	for i, name := range names {
		vips[i] = a.vips[name]
	}
	concerned := func(s *Speaker) bool {
		for i, name := range names {
			if _, has := s.viewed(name); has || s.concerns(vips[i]) {
				return true
			}
		}
		return false
	}
	a.each(concerned, func(s *Speaker) {
		for i, name := range names {
			a.show(s, name, vips[i])
		}
	})
}

// show puts a VirtualIP into a speaker's View, if it plans it.
func (a *api) show(s *Speaker, name string, vip view.VIP) {
	if _, has := s.view.VIPs[name]; !has {
		if !s.concerns(vip) {
			return
		}
		if !s.complete {
			key := vip.Services[0]
			s.view.Services[key] = a.services[key]
			if s.touched.Services == nil {
				s.touched.Services = map[pools.ServiceKey]struct{}{}
			}
			s.touched.Services[key] = struct{}{}
		}
	}
	if s.touched.VIPs == nil {
		s.touched.VIPs = map[string]struct{}{}
	}
	s.view.VIPs[name] = vip
	s.touched.VIPs[name] = struct{}{}
}

// each changes the View of the concerned speakers, each at its own time and in the order of the changes, and triggers
// them.
func (a *api) each(concerned func(*Speaker) bool, f func(*Speaker)) {
	for _, s := range a.cluster.Speakers {
		if !concerned(s) {
			continue
		}
		boot := s.boot
		s.watched = max(s.watched, a.cluster.now+int64(watchAfter+a.some(watchSpread)))
		a.cluster.After(time.Duration(s.watched-a.cluster.now), func() {
			if s.boot == boot && s.core != nil {
				f(s)
				s.trigger()
			}
		})
	}
}

// nodesChanged publishes a Node to all speakers, and triggers placement.
func (a *api) nodesChanged(name string) {
	nodes, peers := a.nodes, a.peers
	a.each(func(*Speaker) bool { return true }, func(s *Speaker) {
		s.view.Nodes = nodes
		if s.touched.Nodes == nil {
			s.touched.Nodes = map[string]struct{}{}
		}
		s.touched.Nodes[name] = struct{}{}
		s.core.SetPeers(peers)
		s.setTargets()
		s.wakeProber(a.cluster.now)
	})
	a.later(passEvery)
}

// Ready sets a node's Ready condition in Kubernetes.
func (c *Cluster) Ready(s *Speaker, ready bool) {
	c.api.ready[s.Name] = ready
	c.api.later(passEvery)
}

// later schedules a pass of the placement controller, unless one is scheduled.
func (a *api) later(d time.Duration) {
	if a.passing {
		return
	}
	a.passing = true
	a.cluster.After(d, func() {
		a.passing = false
		a.pass()
	})
}

func (a *api) pass() {
	if a.down {
		return
	}
	now := a.cluster.now
	exact := time.Duration(now-a.changed) >= exactAfter
	idle := len(a.lists) == 0
	a.lists = a.lists[:0]
	for _, l := range a.place(exact) {
		if l.Reason != placement.Unchanged {
			a.lists = append(a.lists, write{l.Unit, l.Nodes, a.vips[l.Unit].ReportedOwner})
			a.changed = now
		}
	}
	if idle && len(a.lists) > 0 {
		a.write()
	}
	if !exact || len(a.lists) > 0 {
		a.later(max(passEvery, exactAfter-time.Duration(now-a.changed)))
	}
}

// write writes the planned lists in batches. If the status of a VirtualIP has changed since, its list is computed
// again.
func (a *api) write() {
	const batch = 10
	var names []string
	for ; len(names) < batch && len(a.lists) > 0; a.lists = a.lists[1:] {
		w := a.lists[0]
		vip := a.vips[w.vip]
		if vip.ReportedOwner != w.owner {
			a.later(passEvery)
			continue
		}
		vip.Nodes, vip.Generation = w.nodes, vip.Generation+1
		a.vips[w.vip] = vip
		a.Written.Lists++
		a.changed = a.cluster.now
		names = append(names, w.vip)
	}
	a.publish(names...)
	if len(a.lists) > 0 {
		a.cluster.After(batch*time.Second/writesPerSecond, a.write)
	}
}
