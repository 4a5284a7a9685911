// Package nftlb implements virtual servers by DNAT in nftables, with the interface of package ipvs/kernel. It is for
// kernels without IPVS, and used alongside IPVS for clients that IPVS cannot distinguish (docs/design/data-plane.md).
//
// A table contains maps and few chains. A new connection is matched with the map of virtual servers, which names the
// chain of its class (choose one of four slots at random, for example). The rule there selects a slot and finds its
// real server. So a change is a change of elements, whatever the number of virtual servers, and changes of any number
// of them are one transaction for each family. The comments of the elements hold what the rules cannot express, so that
// the state is read back as it was written, also by another process.
//
// # What is approximated
//
// nftables counts no connections. Of the schedulers of IPVS it has:
//
//	rr     one at random, all equal: an even share on average, not round robin
//	wrr    one at random, by weight; also in place of every other scheduler
//	sh     by a hash of the client's address (flag 0x10: and port), by weight
//	mh     the same, and few clients move when a real server is added or deleted
//
// Weights without a small ratio are rounded to 1/256. sh and mh never choose a real server of weight 0, as with their
// flag "fallback". The other flags are kept without effect.
//
// Every forwarding method is implemented as Masquerade: DNAT can neither tunnel nor keep the destination.
//
// An established connection continues when its real server gets weight 0 or is deleted; IPVS with expire_nodest_conn
// would end it. A virtual server without slots is refused, by TCP reset or ICMP.
//
// Persistence records the affinity of 262,144 clients per family; further clients are served without affinity. The
// affinity to a deleted real server is removed right after the change, not with it.
package nftlb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
	"github.com/ironlb/ironlb/ipvs/nftopen"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// Scope is the set of clients whose packets a Balancer forwards.
type Scope uint8

const (
	// AllTraffic (all traffic): all packets, tables ironlb-lb.
	AllTraffic Scope = iota
	// ClusterInternal (cluster-internal): packets of Pods and of the node itself, tables ironlb-inside.
	ClusterInternal
)

// Table returns the name of the tables of the scope, of the families ip and ip6.
func (s Scope) Table() string {
	if s == ClusterInternal {
		return "ironlb-inside"
	}
	return "ironlb-lb"
}

// ErrNoCommand is wrapped by New if the program nft is missing.
var ErrNoCommand = errors.New("nft not found: install the package nftables")

// Balancer is the package's tables in one network namespace. It is safe for concurrent use.
type Balancer struct {
	scope Scope
	nft   knftables.Interface
	// counted means that traffic is counted.
	counted bool
	// send carries out a change of elements.
	send func(*nftbatch.Batch) error

	mu    sync.Mutex
	watch *nftwatch.Watch
	// known means that the fields below equal the kernel's content, until a foreign change.
	known bool
	// generation counts the times that the tables were read.
	generation uint64
	have       map[ipvs.Key]*virtual
	tables     [nftwatch.NumFamilies]table
	pods       ipvs.PodSources
}

// table is the known state of a family's table other than its virtual servers.
type table struct {
	exists bool
	// classes are those with a chain, with the number of virtual servers that require each.
	classes map[class]int
	// definition is the table without elements, empty if another program may have changed it since.
	definition string
	// stale means that affinity may contain clients of a real server that gets no new connections.
	stale bool
}

// virtual is a virtual server with its slots. It is immutable: it is only replaced.
type virtual struct {
	ipvs.VirtualServer
	layout layout
	// counted means that it has counters.
	counted bool
}

func newVirtual(settings ipvs.Settings, counted bool) *virtual {
	return &virtual{
		counted:       counted,
		VirtualServer: ipvs.VirtualServer{Settings: settings, RealServers: make(map[netip.AddrPort]ipvs.RealServer)},
		layout:        layout{at: make(map[uint32]netip.AddrPort)},
	}
}

// count counts a virtual server, which may be nil, in its classes.
func (t *table) count(v *virtual, n int) {
	for _, c := range v.classes() {
		t.classes[c] += n
	}
}

func (v *virtual) class() class { return classOf(v.Settings, v.layout.slots) }

// classes returns the classes that a virtual server requires, none if it is nil or refused: that chain always exists.
func (v *virtual) classes() []class {
	switch {
	case v == nil || v.class().choice == refuse:
		return nil
	case v.class().sticky:
		return []class{v.class(), v.class().withoutAffinity(), v.affinity()}
	}
	return []class{v.class()}
}

// refused reports whether a virtual server exists without a destination for its packets.
func (v *virtual) refused() bool { return v.Scheduler != "" && v.layout.slots == 0 }

// affinity returns the class that records the affinity of a persistent virtual server.
func (v *virtual) affinity() class { return class{choice: withAffinity, timeout: v.Timeout} }

// persistent returns the settings of a virtual server with affinity, and the zero value otherwise.
func (v *virtual) persistent() ipvs.Settings {
	if !v.class().sticky {
		return ipvs.Settings{}
	}
	return v.Settings
}

// live reports whether a client with affinity to the real server of the virtual server, which may be nil, may keep it.
func live(v *virtual, real netip.AddrPort) bool {
	return v != nil && v.Flags&ipvs.Persistent != 0 && v.RealServers[real].Weight > 0
}

// strands reports whether affinity may contain clients of a real server that is no longer live when next replaces have.
func strands(have, next *virtual) bool {
	if have == nil {
		return false
	}
	for real := range have.RealServers {
		if live(have, real) && !live(next, real) {
			return true
		}
	}
	return false
}

// New finds the program nft and checks that it may be used. It changes nothing.
//
// Every call acts on the network namespace of the calling thread, which must be the same each time.
func New(scope Scope) (*Balancer, error) {
	// Each object names its own table; the library only requires a name here.
	nft, err := nftopen.Open("", "")
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("open nftables: %w", ErrNoCommand)
	case err != nil:
		return nil, fmt.Errorf("open nftables (needs CAP_NET_ADMIN and a kernel with nf_tables): %w", err)
	}
	watch, err := nftwatch.Open(scope.Table())
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return &Balancer{scope: scope, nft: nft, send: (*nftbatch.Batch).Send, watch: watch}, nil
}

// Close stops watching. Programmed state stays.
func (b *Balancer) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watch.Close()
}

// run carries out an own transaction on the tables of the families where ours is 1, and detects any foreign one that
// touched the tables meanwhile: the known state must then be read again.
func (b *Balancer) run(tx *knftables.Transaction, ours nftwatch.Counts) error {
	return b.runFunc(func() error { return firstLine(b.nft.Run(context.Background(), tx)) }, ours)
}

// firstLine keeps only the first message of an error of nft.
func firstLine(err error) error {
	if err == nil {
		return nil
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(line)
}

func (b *Balancer) runFunc(do func() error, ours nftwatch.Counts) error {
	if counts, err := b.watch.Count(); err != nil || counts != (nftwatch.Counts{}) {
		b.known = false
	}
	if err := do(); err != nil {
		b.known = false
		return err
	}
	if counts, err := b.watch.Count(); err != nil || counts != ours {
		b.known = false
	}
	return nil
}

// family contains all differences between the two families.
type family struct {
	name knftables.Family
	// addrType is nft's type of an address, unreachable its ICMP message for a port without a virtual server.
	addrType, unreachable string
	// number is the family in netlink messages.
	number uint8
	// words is the size of an address in 32-bit registers; source and destination are its offsets in the network
	// header.
	words, source, destination uint32
	// original is the key of conntrack's destination.
	original uint32
}

// families have the indices of package nftwatch.
var families = [nftwatch.NumFamilies]family{
	nftwatch.IP: {
		name: knftables.IPv4Family, addrType: "ipv4_addr", unreachable: "icmp port-unreachable", number: unix.NFPROTO_IPV4,
		words: 1, source: 12, destination: 16, // RFC 791 section 3.1
		original: unix.NFT_CT_DST_IP,
	},
	nftwatch.IP6: {
		name: knftables.IPv6Family, addrType: "ipv6_addr", unreachable: "icmpv6 port-unreachable", number: unix.NFPROTO_IPV6,
		words: 4, source: 8, destination: 24, // RFC 8200 section 3
		original: unix.NFT_CT_DST_IP6,
	},
}

// familyOf returns the index of the family of a virtual server.
func familyOf(key ipvs.Key) int {
	if key.Addr.Is4() {
		return nftwatch.IP
	}
	return nftwatch.IP6
}

// podsOf returns the sources whose packets are of the family: an interface receives both.
func (f family) podsOf(pods ipvs.PodSources) ipvs.PodSources {
	of := ipvs.PodSources{Interfaces: pods.Interfaces}
	for _, p := range pods.Prefixes {
		if p.Addr().Is4() == f.is4() {
			of.Prefixes = append(of.Prefixes, p)
		}
	}
	return of
}

func (f family) is4() bool { return f.name == knftables.IPv4Family }

// The sets and maps of a table.
const (
	// mapVirtuals {virtual server : the chain of its class}, its settings as comment.
	mapVirtuals = "virtuals"
	// mapAffinity {client, virtual server : real server}: the records of persistence, written by the rules.
	mapAffinity = "affinity"
	// mapSticky {virtual server : the chain that records affinity}, only of persistent ones.
	mapSticky = "sticky"
	// setRefused {virtual server}: those without slots.
	setRefused = "refused"
	// setPods {prefix}: the cluster-internal sources.
	setPods = "pods"
	// setPodInterfaces {name, or a prefix of names}: the interfaces on which Pods' packets arrive.
	setPodInterfaces = "pod-interfaces"
)

// mapReals {virtual address, port, slot : real server}, weight and forwarding method as comment, per protocol: nft
// restricts a translation by a map to the protocol in the map's type.
var mapReals = map[ipvs.Protocol]string{ipvs.TCP: "reals-tcp", ipvs.UDP: "reals-udp", ipvs.SCTP: "reals-sctp"}

var protocols = []ipvs.Protocol{ipvs.TCP, ipvs.UDP, ipvs.SCTP}

// protocolOf is the reverse of mapReals.
var protocolOf = func() map[string]ipvs.Protocol {
	reverse := make(map[string]ipvs.Protocol)
	for p, name := range mapReals {
		reverse[name] = p
	}
	return reverse
}()

// elementSets are the sets and maps of virtual servers.
var elementSets = []string{
	mapVirtuals, mapReals[ipvs.TCP], mapReals[ipvs.UDP], mapReals[ipvs.SCTP], mapSticky, setRefused,
}

// The sets {virtual server} of a balancer that counts traffic, with a counter in each element.
const (
	// setConnections counts the first packets of connections, setIncoming packets from clients, setOutgoing those to them.
	setConnections = "connections"
	setIncoming    = "incoming"
	setOutgoing    = "outgoing"
)

var counterSets = []string{setConnections, setIncoming, setOutgoing}

// nftName returns nft's name for the protocol.
func nftName(p ipvs.Protocol) string { return strings.ToLower(p.String()) }
