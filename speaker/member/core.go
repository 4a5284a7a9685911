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

	"github.com/ironlb/ironlb/speaker/plan"
)

// Core knows who is alive and what each says. It does no I/O, has no clock and starts nothing: its owner gives it what was
// received, calls Tick several times per interval, and sends what that returns. The same calls give the same bytes.
// Beside the time it is given raw, a clock that nobody sets or slews; see clock.
type Core struct {
	config  Config
	profile Profile // stretched for the number of nodes
	ring    *keyring
	random  *rand.Rand
	cluster uint64
	// authorities are the present ones and, behind them, earlier ones.
	authorities []uint64
	self        uint64 // nodeID of this node

	incarnation, sequence uint64
	begun                 bool
	began                 time.Duration // raw at the first turn
	lastTick, nextBeat    time.Time
	beatNow               bool // at the next turn, whatever the time
	urgent                bool // there is an answer to send
	broadcasts            bool // what goes to the group goes by broadcast as well
	reassured             time.Time

	observer      bool
	observerSince time.Time
	fenced        bool
	fences, seen  uint64    // seen: of which who decides knows
	forgive       time.Time // silence before it does not count

	word    plan.Word // as said last
	changes []entry
	ids     map[string]plan.VIPID
	mine    journal
	recent  [3]uint64 // versions of mine at the last beats, the newest first
	leaving bool

	ifaces []iface // the first stands for any path
	peers  map[string]*peer
	order  []*peer // by name
	byID   map[uint64]*peer
	gone   map[uint64]uint64 // incarnations of nodes that were forgotten, by id

	repeated uint64 // up to which version a node that hears nobody has said its claims again
	silentAt int    // where the list of whom this node does not hear goes on
	returned int    // how often one that fell silent was heard again
	// unanswered are nodes away that were given up, for the log.
	unanswered []string

	reported reported

	msg   message
	sends []Send
	arena []byte
	out   outbox
	count Counts
}

// Config is what Core needs from the start.
type Config struct {
	// Node is this node's name, Cluster keeps clusters on one segment apart.
	Node, Cluster string
	// Incarnation is higher each time this node's speaker begins: the wall clock in nanoseconds does. If it went back, the
	// others say so and a higher one is taken.
	Incarnation uint64
	// Keys are one key, or two while they change; the first one signs.
	Keys    [][]byte
	Profile Profile
	// Seed spreads the beats of different nodes in time.
	Seed uint64
	// Retained is set if this node still answers for what an earlier process claimed. The others take that for claimed until Settled.
	Retained bool
	// Authorities are digests of the certificates of the cluster's certificate authority. What a node sends that has
	// none of them is dropped as another cluster's. None: not compared.
	Authorities []uint64
	// Broadcast has all go to every host of a segment, not to the members of the group alone.
	Broadcast bool
}

// Link is an interface on which VirtualIPs are or may be announced.
type Link struct {
	Name string
	// Keys has one in common with every node that has an interface on this segment, and there is at least one; see
	// SegmentKeys.
	Keys []uint64
	MAC  [6]byte
}

// Packet is a datagram that arrived.
type Packet struct {
	Iface  string
	Source netip.Addr
	// OnLink is set if the hop limit was 255, so that no router has passed it on (RFC 5082).
	OnLink bool
	// Group is set if it came to the group or to all hosts: its source is an address of the sender's interface.
	Group bool
	Data  []byte
}

// Send is a datagram to send: to an address, or without one to the speakers' group on the segment of an interface.
type Send struct {
	Iface string
	To    netip.Addr
	// Broadcast sends to every host on the segment, for speakers whom the group does not reach.
	Broadcast bool
	Data      []byte
}

// Counts are what happened since the beginning.
type Counts struct {
	Received, Sent uint64
	Broadcast      uint64 // of those sent
	Asked          uint64 // relay evidence asked for, per silent node and helper
	Relayed        uint64 // nodes kept alive by it
	FalseDeaths    uint64 // nodes heard again in the same incarnation after they counted as dead
	Fences         uint64
	ClockStops     uint64 // of the fences: since the others' clocks went on
}

// NewCore returns a Core that observes until it has heard the others. It fails if the configuration is not usable.
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
		observer: true, ids: map[string]plan.VIPID{}, mine: newJournal(), ifaces: []iface{{keys: []uint64{0}}},
		peers: map[string]*peer{}, byID: map[uint64]*peer{}, gone: map[uint64]uint64{}, out: newOutbox(),
	}
	core.SetAuthorities(c.Authorities)
	return core, nil
}

// nodeID names a node, or a cluster, in datagrams.
func nodeID(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint64(sum[:])
}

// SegmentKeys returns the keys of the segment of an interface: two nodes that share it have a subnet in common there,
// and so a key. There is
// one for each subnet, IPv4 before IPv6, or one of the name where there is none. One of a single address, as DHCPv6
// gives, is no other node's.
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

// segmentKey returns a key; 0 stands for any path.
func segmentKey(text string) uint64 { return max(nodeID(text), 1) }

func comparePrefix(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 { // IPv4 comes before IPv6
		return c
	}
	return a.Bits() - b.Bits()
}

// SetKeys changes the keys; on an error the old ones stay.
func (c *Core) SetKeys(keys [][]byte) error {
	ring, err := newKeyring(keys)
	if err == nil {
		c.ring = ring
	}
	return err
}

// SetPeers tells the Nodes and their InternalIPs, to which datagrams are sent too. The map must not change afterwards.
func (c *Core) SetPeers(peers map[string][]netip.Addr) {
	for _, p := range c.order {
		p.addrs = nil
	}
	for name, addrs := range peers {
		if name != c.config.Node {
			c.peer(name).addrs = addrs
		}
	}
	c.order = slices.DeleteFunc(c.order, func(p *peer) bool {
		if p.addrs != nil || p.paths[0].up || c.lastTick.Sub(p.paths[0].last()) < forgetAfter {
			return false
		}
		c.forget(p)
		return true
	})
	c.profile = c.config.Profile.stretched(len(c.order))
}

// forgetAfter is how long a node that is neither a Node nor heard is remembered.
const forgetAfter = 5 * time.Minute

// goneMost is how many nodes that were forgotten are told from new ones.
const goneMost = 4096

// forget drops a node, except for what keeps its old datagrams from being taken for new ones.
func (c *Core) forget(p *peer) {
	if len(c.gone) >= goneMost {
		oldest := p.id
		for id, incarnation := range c.gone {
			if at, known := c.gone[oldest]; !known || incarnation < at || incarnation == at && id < oldest {
				oldest = id
			}
		}
		delete(c.gone, oldest)
	}
	c.gone[p.id] = p.incarnation
	delete(c.peers, p.name)
	delete(c.byID, p.id)
	c.out.node(p)
	for id := range p.claims.claims {
		c.out.vip(id)
	}
}

// Say tells the others what this node does about its VirtualIPs. It ends a fence: what is said was decided after it. An
// observer's Held and Leaving are not told before it is one no more.
func (c *Core) Say(w plan.Word) {
	c.fenced, c.seen = false, c.fences
	c.word = w
	c.speak()
}

// speak brings the journal to the word, in the order of the ids, so that the same word always makes the same journal.
func (c *Core) speak() {
	c.changes = c.changes[:0]
	note := func(id plan.VIPID, claim plan.Claim) {
		if c.mine.at[id].claim != claim {
			c.changes = append(c.changes, entry{id, claim})
		}
	}
	for name, claim := range c.word.Claims {
		id, known := c.ids[name]
		if !known {
			id = plan.IDOf(name)
			c.ids[name] = id
		}
		if c.observer && claim.State != plan.Declined {
			claim = plan.Claim{}
		}
		if claim.State != plan.Leaving {
			claim.Successor = ""
		}
		note(id, claim)
	}
	if len(c.ids) > len(c.word.Claims) {
		for name, id := range c.ids {
			if _, still := c.word.Claims[name]; !still {
				delete(c.ids, name)
				note(id, plan.Claim{})
			}
		}
	}
	slices.SortFunc(c.changes, func(a, b entry) int { return cmp.Compare(a.id, b.id) })
	for _, e := range c.changes {
		c.mine.set(e.id, e.claim)
	}
	c.beatNow = c.beatNow || len(c.changes) > 0 || c.leaving != c.word.Leaving
	c.leaving = c.word.Leaving
}

// Fences counts the fences, so that a word that was decided before one can be told from a later one.
func (c *Core) Fences() uint64 { return c.fences }

// Fenced is set from a fence until the next word, or until the observer phase that began with it is over.
func (c *Core) Fenced() bool { return c.fenced }

// FenceAfter is the gap between two turns after which this node fences itself.
func (c *Core) FenceAfter() time.Duration { return c.profile.fence() }

// Counts returns the counters.
func (c *Core) Counts() Counts { return c.count }

// Silences returns the silences after which a node was found dead on a path since the last call; not for ever many.
func (c *Core) Silences() []time.Duration {
	silences := c.out.silences
	c.out.silences = nil
	return silences
}

// Next tells when Tick is due.
func (c *Core) Next() time.Time {
	next := c.lastTick.Add(c.profile.turn())
	if c.nextBeat.Before(next) {
		return c.nextBeat
	}
	return next
}

// Urgent tells that a datagram waits to be sent, so that Tick should be called now.
func (c *Core) Urgent() bool { return c.urgent || c.beatNow }

// peer returns what is known of a node, made if need be.
func (c *Core) peer(name string) *peer {
	if p := c.peers[name]; p != nil {
		return p
	}
	p := &peer{name: name, id: nodeID(name), paths: make([]path, len(c.ifaces))}
	p.incarnation = c.gone[p.id]
	delete(c.gone, p.id)
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
