package member

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// Core holds the liveness state and the claims of all nodes. It does no I/O, has no clock and starts nothing: its owner
// passes in what was received, calls Tick when Next requires it, and sends what Tick returns. The same calls
// produce the same bytes. Besides the time it takes raw, a clock that is never set or slewed; see clock.
type Core struct {
	config  Config
	profile Profile // stretched for the number of nodes
	ring    *keyring
	random  *rand.Rand
	cluster uint64
	// authorities are the current ones, followed by earlier ones.
	authorities []uint64
	self        uint64 // nodeID of this node

	incarnation, sequence uint64
	begun                 bool
	began                 time.Duration // raw at the first tick
	lastTick              time.Time
	lastHeartbeat         time.Time
	nextHeartbeat         time.Time
	heartbeatNow          bool // at the next tick, whatever the time
	urgent                bool // an answer waits to be sent
	announcedAlive        time.Time

	heartbeats heartbeats

	asks                bool // SetAnswers was called
	observer            bool
	observerSince       time.Time
	fenced              bool
	fences, fencesAcked uint64    // fencesAcked: fences before the last publication
	forgive             time.Time // silence before it does not count

	published view.LocalState // advertised last
	decided   bool            // something was published
	changes   []entry
	ids       map[string]view.VIPID
	mine      journal
	recent    [3]uint64 // versions of mine at the last heartbeats, newest first
	leaving   bool
	slots     uint64 // digest of this node's slots, advertised if hasSlots is set
	hasSlots  bool

	ifaces []iface // the first one means any path
	peers  map[string]*peer
	order  []*peer // by name
	// unsteady is the index in order of the peer that last made ticks frequent. steady is a lower bound of steadyUntil,
	// zero if unknown.
	unsteady int
	steady   time.Time
	byID     map[uint64]*peer

	repeated uint64 // last version of its claims that a node without reception has repeated
	silentAt int    // where the list of nodes that are not received continues
	returned int    // count of nodes received again after a silence
	// unanswered are away nodes that were given up, for the log.
	unanswered []string

	reported   Reception // by Received at reportedAt
	reportedAt time.Time

	msg   message
	sends []Send
	arena []byte
	out   outbox
	count Counts
}

// Config is the initial configuration of a Core.
type Config struct {
	// Node is this node's name, Cluster keeps clusters on one segment apart.
	Node, Cluster string
	// Incarnation is higher with each start of this node's speaker, like CLOCK_REALTIME in nanoseconds. If the clock
	// went back, the other nodes report that, and a higher one is taken.
	Incarnation uint64
	// Keys are one key, or two during a key change; the first one signs.
	Keys    [][]byte
	Profile Profile
	// Nonce is a random number, in challenges that no recorded datagram answers; 0: the incarnation.
	Nonce uint64
	// Seed spreads the heartbeats of different nodes in time.
	Seed uint64
	// Retained is set if this node still answers for the claims of a previous process. The others keep those claims
	// until Settled.
	Retained bool
	// Authorities are digests of the certificates of the cluster's certificate authority. A datagram with none of them
	// is dropped as another cluster's. Empty: not compared.
	Authorities []uint64
	// Broadcast sends everything to all hosts of a segment instead of the group.
	Broadcast bool
}

// Link is an interface on which VirtualIPs are or may be announced.
type Link struct {
	Name string
	// Keys has at least one key, and one in common with every node that has an interface on this segment; see
	// SegmentKeys.
	Keys []uint64
	MAC  [6]byte
	// IPv4 is set if it has an IPv4 subnet: the group of that family suffices, unless a node there has none.
	IPv4 bool
}

// Packet is a datagram that arrived.
type Packet struct {
	Iface  string
	Source netip.Addr
	// OnLink is set if the hop limit was 255: no router forwarded it (RFC 5082).
	OnLink bool
	// Group is set if it was sent to the group or to all hosts: its source is an address of the sender's interface.
	Group bool
	Data  []byte
}

// Send is a datagram to send: to an address, or without one to the speakers' group on an interface's segment.
type Send struct {
	Iface string
	To    netip.Addr
	// Broadcast sends to every host on the segment, for speakers that the group does not reach.
	Broadcast bool
	// IPv6 sends by that family, for nodes without IPv4 on a segment where this node has it.
	IPv6 bool
	Data []byte
}

// Counts are the counters since the start.
type Counts struct {
	Received, Sent uint64
	Broadcast      uint64 // of those sent
	RelayRequests  uint64 // relay evidence requested, per silent node and helper
	Relayed        uint64 // nodes kept alive by relay evidence
	FalseDeaths    uint64 // nodes received again in the same incarnation after they counted as dead
	Fences         uint64
	ClockStops     uint64 // of the fences: this node's clock stopped, those of the others did not
}

// Profile is how fast a silent node is detected. Every datagram carries the profile of its sender, so nodes with
// different profiles interoperate: a node is dead after its own dead time.
type Profile struct {
	Name string
	// Interval is the interval between heartbeats; Dead is the silence after which a node is dead.
	Interval, Dead time.Duration
}

// NewCore returns a Core that observes until it has received the others. It fails if the configuration is not usable.
func NewCore(c Config) (*Core, error) {
	if c.Node == "" || len(c.Node) > maxName {
		return nil, fmt.Errorf("node name %q: give one of 1 to %d bytes", c.Node, maxName)
	}
	if c.Profile.Interval < 4*time.Millisecond || c.Profile.Dead < 2*c.Profile.Interval {
		return nil, fmt.Errorf("liveness profile %q: interval %v and dead time %v do not fit: give a dead time of several intervals",
			c.Profile.Name, c.Profile.Interval, c.Profile.Dead)
	}
	ring, err := newKeyring(c.Keys)
	if err != nil {
		return nil, err
	}
	core := &Core{
		config: c, profile: c.Profile, ring: ring, random: rand.New(rand.NewPCG(c.Seed, nodeID(c.Node))),
		cluster: nodeID(c.Cluster), self: nodeID(c.Node), incarnation: max(c.Incarnation, 1),
		observer: true, ids: map[string]view.VIPID{}, mine: newJournal(), ifaces: []iface{{keys: []uint64{0}}},
		peers: map[string]*peer{}, byID: map[uint64]*peer{}, out: newOutbox(),
	}
	core.config.Nonce = cmp.Or(c.Nonce, core.incarnation)
	core.SetAuthorities(c.Authorities)
	return core, nil
}

// nodeID identifies a node, or a cluster, in datagrams.
func nodeID(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint64(sum[:])
}

// SegmentKeys returns the keys of an interface's segment. Two nodes on one segment share a subnet there, and therefore
// a key. There is one key per subnet, IPv4 before IPv6, or one of the name where there is no subnet. A subnet of a
// single address, as DHCPv6 assigns, is shared with no other node.
func SegmentKeys(name string, subnets []netip.Prefix) []uint64 {
	var shared []netip.Prefix
	for _, s := range subnets {
		if s = s.Masked(); s.IsValid() && !s.IsSingleIP() && !s.Addr().IsLinkLocalUnicast() {
			shared = append(shared, s)
		}
	}
	slices.SortFunc(shared, comparePrefix)
	var keys []uint64
	for _, s := range slices.Compact(shared) {
		keys = append(keys, segmentKey("subnet "+s.String()))
	}
	if len(keys) == 0 {
		keys = []uint64{segmentKey("name " + name)}
	}
	return keys
}

// segmentKey returns a key; 0 means any path.
func segmentKey(text string) uint64 { return max(nodeID(text), 1) }

func comparePrefix(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 { // IPv4 comes before IPv6
		return c
	}
	return a.Bits() - b.Bits()
}

// SetKeys changes the keys; on an error the old ones remain.
func (c *Core) SetKeys(keys [][]byte) error {
	ring, err := newKeyring(keys)
	if err == nil {
		c.ring = ring
	}
	return err
}

// SetSlots sets the digest of this node's slots of direct forwarding. The next heartbeat that is due carries it: with
// many nodes and endpoints it changes often.
func (c *Core) SetSlots(digest uint64) { c.slots, c.hasSlots = digest, true }

// SetPeers sets the Nodes and their InternalIPs, which also receive datagrams. The map must not change afterwards.
func (c *Core) SetPeers(peers map[string][]netip.Addr) {
	for _, p := range c.order {
		p.addrs = nil
	}
	for name, addrs := range peers {
		if name != c.config.Node {
			p := c.peer(name)
			if p.addrs = addrs; len(p.sources) != len(addrs) {
				p.sources = make([]source, len(addrs))
			}
		}
	}
	c.expire()
}

// expire removes the expired nodes, and adapts the profile to the number of the others.
func (c *Core) expire() {
	c.order = slices.DeleteFunc(c.order, func(p *peer) bool {
		if !c.expired(p) {
			return false
		}
		c.removePeer(p)
		return true
	})
	c.profile, c.steady = c.config.Profile.Stretched(len(c.order)), time.Time{}
}

// expired reports whether a node is no Node and silent for long.
func (c *Core) expired(p *peer) bool {
	return p.addrs == nil && !p.paths[0].up && c.lastTick.Sub(p.paths[0].last()) >= expireAfter
}

// expireAfter is how long the state of a silent node that is no Node is kept.
const expireAfter = 5 * time.Minute

// removePeer removes a node. Its old datagrams are a recording from then on, which answers no challenge.
func (c *Core) removePeer(p *peer) {
	delete(c.peers, p.name)
	delete(c.byID, p.id)
	c.out.node(p)
	for id := range p.claims.claims {
		c.out.vip(id)
	}
}

// Publish advertises this node's claims to the others. It ends a fence, because the claims were decided after it. An
// observer's Held and Leaving are advertised only once its observer phase has ended.
func (c *Core) Publish(w view.LocalState) {
	c.fenced, c.fencesAcked = false, c.fences
	c.heartbeatNow = c.heartbeatNow || !c.decided || c.published.Direct != w.Direct ||
		c.published.DirectIPv4Only != w.DirectIPv4Only
	c.published, c.decided = w, true
	c.updateJournal()
}

// updateJournal updates the journal to the advertised claims, in the order of the ids, so that the same claims always
// produce the same journal.
func (c *Core) updateJournal() {
	c.changes = c.changes[:0]
	record := func(id view.VIPID, claim view.Claim) {
		if c.mine.at[id].claim != claim {
			c.changes = append(c.changes, entry{id, claim})
		}
	}
	for name, claim := range c.published.Claims {
		id, known := c.ids[name]
		if !known {
			id = view.IDOf(name)
			c.ids[name] = id
		}
		if c.observer && claim.State != view.Declined {
			claim = view.Claim{}
		}
		if claim.State != view.HandingOver {
			claim.Successor = ""
		}
		record(id, claim)
	}
	if len(c.ids) > len(c.published.Claims) {
		for name, id := range c.ids {
			if _, still := c.published.Claims[name]; !still {
				delete(c.ids, name)
				record(id, view.Claim{})
			}
		}
	}
	slices.SortFunc(c.changes, func(a, b entry) int { return cmp.Compare(a.id, b.id) })
	for _, e := range c.changes {
		c.mine.set(e.id, e.claim)
	}
	c.heartbeatNow = c.heartbeatNow || len(c.changes) > 0 || c.leaving != c.published.Leaving
	c.leaving = c.published.Leaving
}

// Fences counts the fences. It distinguishes claims decided before a fence from later ones.
func (c *Core) Fences() uint64 { return c.fences }

// Fenced reports whether a fence is in force: until the next Publish.
func (c *Core) Fenced() bool { return c.fenced }

// FenceAfter is the age of the last heartbeat after which this node fences itself.
func (c *Core) FenceAfter() time.Duration { return c.profile.fence() }

// Counts returns the counters.
func (c *Core) Counts() Counts { return c.count }

// Silences returns the silences after which a node was found dead on a path, since the last call; their number is
// limited.
func (c *Core) Silences() []time.Duration {
	silences := c.out.silences
	c.out.silences = nil
	return silences
}

// Urgent reports whether a datagram waits to be sent, so that Tick is due now.
func (c *Core) Urgent() bool { return c.urgent || c.heartbeatNow }

// peer returns the state of a node; it is created if missing.
func (c *Core) peer(name string) *peer {
	if p := c.peers[name]; p != nil {
		return p
	}
	p := &peer{name: name, id: nodeID(name), paths: make([]path, len(c.ifaces))}
	c.peers[name], c.byID[p.id] = p, p
	i, _ := slices.BinarySearchFunc(c.order, name, func(p *peer, name string) int {
		if p.name < name {
			return -1
		}
		return 1
	})
	c.order = slices.Insert(c.order, i, p)
	return p
}

// The profiles. docs/design/liveness.md has the measurements behind the numbers.
var (
	Standard = Profile{Name: "standard", Interval: 100 * time.Millisecond, Dead: 450 * time.Millisecond}
	Fast     = Profile{Name: "fast", Interval: 60 * time.Millisecond, Dead: 300 * time.Millisecond}
	Slow     = Profile{Name: "slow", Interval: time.Second, Dead: 3500 * time.Millisecond}
)

// ProfileNamed returns a profile by its name in the configuration.
func ProfileNamed(name string) (Profile, error) {
	for _, p := range []Profile{Standard, Fast, Slow} {
		if p.Name == name {
			return p, nil
		}
	}
	return Profile{}, fmt.Errorf("liveness profile %q is unknown: give standard, fast or slow", name)
}

const (
	// ticksPerInterval is the number of ticks per interval while a node is silent, so a death is detected at most one
	// tick late.
	ticksPerInterval = 4
	// maxObserverTime ends the observer phase even if a node that is received has not sent all its claims.
	maxObserverTime = 3 * time.Second
	// unstretched is the number of other nodes that the interval suits. With more it grows in proportion, so that a node
	// never reads more than a few thousand datagrams per second.
	unstretched = 200
	// helpers is how many other nodes receive a relay request about a silent one.
	helpers = 3
)

// Stretched returns the profile for a number of other nodes.
func (p Profile) Stretched(others int) Profile {
	if others > unstretched {
		stretched := func(d time.Duration) time.Duration {
			return (d * time.Duration(others) / unstretched).Truncate(time.Millisecond)
		}
		p.Interval, p.Dead = stretched(p.Interval), stretched(p.Dead)
	}
	return p
}

func (p Profile) tick() time.Duration { return p.Interval / ticksPerInterval }

// fence is the age of this node's last heartbeat after which its state is outdated: the others, which received that one
// or an earlier one last, may be about to take over.
func (p Profile) fence() time.Duration { return p.Dead - p.Interval + p.tick() }
