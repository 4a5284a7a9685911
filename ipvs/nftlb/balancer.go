package nftlb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"

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
