package sim

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/view"
)

// Config configures a simulated cluster.
type Config struct {
	Seed        uint64
	Nodes, VIPs int
	// Complete is the number of speakers that plan all VirtualIPs, from the first; 0 for all of them. The others plan
	// those that list them or that they have owned. A node decides nothing about the rest, so the run is the same, in
	// less memory.
	Complete int
	// ClusterIPs are Services that each node forwards.
	ClusterIPs int
	Profile    member.Profile
	// Loss is the share of lost datagrams, each lost independently.
	Loss   float64
	Bursts Bursts
	// OneNetwork: the InternalIPs are in the LAN too.
	OneNetwork bool
	Busy       Busy
	// Work is the time between observation and action of the speaker's loop; 0 means 2 ms.
	Work time.Duration
}

// Busy are nodes with overloaded CPUs.
type Busy struct {
	// Share of the nodes.
	Share float64
	// Heartbeat is the maximum delay of the heartbeat thread, which has a CPU share of its own (SCHED_DEADLINE). Prober
	// is that of the prober's thread, and Kernel that of the kernel's answers.
	Heartbeat, Prober, Kernel time.Duration
	// Paused are stalls of the process, Blocked stalls of the prober's thread.
	Paused, Blocked Bursts
}

// Cluster is a simulated cluster.
type Cluster struct {
	config   Config
	now      int64
	random   *rand.Rand
	probes   *rand.Rand // of everything about probers
	queue    queue
	Speakers []*Speaker
	byName   map[string]*Speaker
	byAddr   map[netip.Addr]address
	api      *api
	// Gateway is a host of the LAN.
	Gateway *Gateway
	// Owners records the owners, Deaths the nodes considered dead, Verdicts the nodes considered unreachable.
	Owners   *Owners
	Deaths   []Death
	Verdicts []*Verdict
	// Empty are the ClusterIPs that had no endpoint for new connections.
	Empty []Empty
	// vips are the VirtualIPs in order.
	vips  []netip.Addr
	index map[netip.Addr]int
}

// Death records that one node considered another one dead on the network of the VirtualIPs.
type Death struct {
	At         time.Duration
	Node, Dead string
	// Wrong is set if the other node was up, and reachable there.
	Wrong bool
}

var beginning = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// New returns a cluster whose nodes start within 0.1 s.
func New(config Config) *Cluster {
	if config.Work == 0 {
		config.Work = 2 * time.Millisecond
	}
	c := &Cluster{
		config: config, random: rand.New(rand.NewPCG(config.Seed, 1)), probes: rand.New(rand.NewPCG(config.Seed, 2)),
		byName: map[string]*Speaker{}, byAddr: map[netip.Addr]address{}, index: map[netip.Addr]int{},
	}
	c.Gateway = &Gateway{cluster: c, host: host{addrs: addresses(0), power: true}}
	c.byAddr[c.Gateway.addrs[LAN]] = address{host: &c.Gateway.host, iface: LAN}
	for i := range config.VIPs {
		a := netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0, 1, 6: 0, 7: 0, 12: 1, 14: byte(i >> 8), 15: byte(i)})
		c.vips, c.index[a] = append(c.vips, a), i
	}
	c.Owners = newOwners(c, config.VIPs)
	c.api = newAPI(c)
	for range config.Nodes {
		c.attach()
	}
	c.api.forwards(config.ClusterIPs)
	c.api.begin()
	for _, s := range c.Speakers {
		c.After(time.Duration(c.random.Int64N(int64(100*time.Millisecond))), s.Start)
		s.beginBusy()
	}
	return c
}

// attach creates a node that is not up yet, and its Node object.
func (c *Cluster) attach() *Speaker {
	i := len(c.Speakers)
	s := &Speaker{cluster: c, Name: fmt.Sprintf("node-%03d", i), number: i, holds: map[int]struct{}{}}
	s.addrs, s.host.busy = addresses(i+1), int(float64(i+1)*c.config.Busy.Share) > int(float64(i)*c.config.Busy.Share)
	c.Speakers = append(c.Speakers, s)
	c.byName[s.Name] = s
	s.complete = c.config.Complete == 0 || i < c.config.Complete
	for i, a := range s.addrs {
		c.byAddr[a] = address{&s.host, s, uint8(i)}
	}
	c.api.addNode(s)
	return s
}

// Join adds a node to the cluster and starts it.
func (c *Cluster) Join() *Speaker {
	s := c.attach()
	c.api.nodesChanged(s.Name)
	s.Start()
	return s
}

// Now is the time since the beginning.
func (c *Cluster) Now() time.Duration { return time.Duration(c.now) }

func (c *Cluster) time() time.Time { return beginning.Add(time.Duration(c.now)) }

// After calls f after a time.
func (c *Cluster) After(d time.Duration, f func()) {
	c.queue.push(event{at: c.now + int64(d), kind: call, call: f})
}

// Run advances the time.
func (c *Cluster) Run(d time.Duration) { c.Until(d, nil) }

// Until advances the time until done, checked every millisecond, and at most by most. It returns the elapsed time and
// whether done held.
func (c *Cluster) Until(most time.Duration, done func() bool) (took time.Duration, ok bool) {
	runtime.LockOSThread() // for clock
	defer runtime.UnlockOSThread()
	start, end := c.now, c.now+int64(most)
	next := c.now
	for {
		if done != nil && c.now >= next {
			if done() {
				return time.Duration(c.now - start), true
			}
			next = c.now + int64(time.Millisecond)
		}
		if len(c.queue.events) == 0 || c.queue.events[0].at > end {
			c.now = end
			return most, done != nil && done()
		}
		e := c.queue.pop()
		c.now = e.at
		c.happen(&e)
	}
}

func (c *Cluster) happen(e *event) {
	if e.kind == call {
		e.call()
		return
	}
	s := e.node
	if e.kind == arrival {
		s.arrive(e)
		return
	}
	if e.boot != s.boot || !s.runs() {
		return
	}
	switch e.kind {
	case tick:
		if s.tickAt == e.at {
			s.tick()
		}
	case wake:
		if s.wakeAt == e.at {
			s.wakeAt = 0
			s.trigger()
		}
	case act:
		s.act()
	case probe:
		if s.prober.at == e.at {
			s.probe()
		}
	}
}

// services returns one Service for each VirtualIP, announced and not programmed: forwarding is the same on all nodes.
func (c *Cluster) services() map[pools.ServiceKey]view.Service {
	out := make(map[pools.ServiceKey]view.Service, len(c.vips))
	for i, a := range c.vips {
		out[c.service(i)] = view.Service{Addresses: []view.Address{{IP: a, Pool: "main", AnnounceOnly: true}}, Created: int64(i)}
	}
	return out
}

func (c *Cluster) service(i int) pools.ServiceKey {
	return pools.ServiceKey{Namespace: "default", Name: fmt.Sprint("service-", i)}
}

// SetLoss sets the networks' loss from now on.
func (c *Cluster) SetLoss(share float64, bursts Bursts) {
	c.config.Loss, c.config.Bursts = share, bursts
}

// Asked counts the questions about silent nodes so far, Relayed the answers that kept a node alive.
func (c *Cluster) Asked() uint64 {
	return c.sum(func(n member.Counts) uint64 { return n.RelayRequests })
}
func (c *Cluster) Relayed() uint64 { return c.sum(func(n member.Counts) uint64 { return n.Relayed }) }

func (c *Cluster) sum(of func(member.Counts) uint64) (n uint64) {
	for _, s := range c.Speakers {
		if s.core != nil {
			n += of(s.core.Counts())
		}
	}
	return n
}

// Written counts the writes to the API server since the start.
func (c *Cluster) Written() Writes { return c.api.Written }
