package nftlb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
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

	mu    sync.Mutex
	watch *nftwatch.Watch
	// known means that the fields below equal the kernel's content, until a foreign change.
	known  bool
	have   map[ipvs.Key]*virtual
	tables [nftwatch.NumFamilies]table
	pods   ipvs.PodSources
}

// table is the known state of a family's table other than its virtual servers.
type table struct {
	exists  bool
	classes map[class]struct{}
	// stale means that affinity may contain clients of a real server that gets no new connections.
	stale bool
}

// virtual is a virtual server with its slots. It is immutable: it is only replaced.
type virtual struct {
	ipvs.VirtualServer
	layout layout
}

func newVirtual(settings ipvs.Settings) *virtual {
	return &virtual{
		VirtualServer: ipvs.VirtualServer{Settings: settings, RealServers: make(map[netip.AddrPort]ipvs.RealServer)},
		layout:        layout{at: make(map[uint32]netip.AddrPort)},
	}
}

func (v *virtual) class() class { return classOf(v.Settings, v.layout.slots) }

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
	nft, err := knftables.New("", "")
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
	return &Balancer{scope: scope, nft: nft, watch: watch}, nil
}

// Close stops watching. Programmed state stays.
func (b *Balancer) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watch.Close()
}

// Remove deletes the tables. It succeeds if there are none. Existing connections stay.
func (b *Balancer) Remove() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.sync(); err != nil {
		return err
	}
	tx := b.nft.NewTransaction()
	var touched nftwatch.Counts
	for i, t := range b.tables {
		if t.exists {
			b.writer(tx, i).removeTable()
			touched[i] = 1
		}
	}
	b.known = false
	if touched == (nftwatch.Counts{}) {
		return nil
	}
	return b.run(tx, touched)
}

// SetPods sets the sources that are cluster-internal. It does not affect existing connections.
func (b *Balancer) SetPods(pods ipvs.PodSources) error {
	for _, p := range pods.Prefixes {
		if !p.IsValid() || p.Addr().Is4In6() {
			return fmt.Errorf("set the Pods' networks: %w prefix %v", ipvs.ErrInvalid, p)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.sync(); err != nil {
		return err
	}
	pods.Prefixes, pods.Interfaces = ipvs.Disjoint(pods.Prefixes), slices.Sorted(slices.Values(pods.Interfaces))
	if pods.Equal(b.pods) {
		return nil
	}
	tx := b.nft.NewTransaction()
	var touched nftwatch.Counts
	for i, t := range b.tables {
		if t.exists {
			b.writer(tx, i).pods(pods)
			touched[i] = 1
		}
	}
	if touched != (nftwatch.Counts{}) {
		if err := b.run(tx, touched); err != nil {
			return fmt.Errorf("set the Pods' networks: %w", err)
		}
	}
	b.pods = pods
	return nil
}

// List returns all virtual servers.
func (b *Balancer) List() (ipvs.Table, error) {
	return b.list(func(netip.Addr) bool { return true })
}

// ListOf returns the virtual servers of these addresses.
func (b *Balancer) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	return b.list(func(a netip.Addr) bool { _, ok := addrs[a]; return ok })
}

func (b *Balancer) list(want func(netip.Addr) bool) (ipvs.Table, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.sync(); err != nil {
		return nil, err
	}
	found := make(ipvs.Table)
	for key, v := range b.have {
		if want(key.Addr) {
			found[key] = ipvs.VirtualServer{Settings: v.Settings, RealServers: maps.Clone(v.RealServers)}
		}
	}
	return found, nil
}

// Virtuals returns the virtual servers without their real servers. Without a foreign change of the tables it costs a
// system call and a copy.
func (b *Balancer) Virtuals() (map[ipvs.Key]ipvs.Settings, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.sync(); err != nil {
		return nil, err
	}
	virtuals := make(map[ipvs.Key]ipvs.Settings, len(b.have))
	for key, v := range b.have {
		virtuals[key] = v.Settings
	}
	return virtuals, nil
}

// Probe checks whether the scheduler is supported and whether the kernel accepts the rules that implement it. It leaves
// nothing.
//
// The error wraps [ipvs.ErrNoScheduler] or includes the remediation.
func (b *Balancer) Probe(name string) error {
	if err := checkScheduler(name); err != nil {
		return fmt.Errorf("probe nftables: %w", err)
	}
	tx := b.nft.NewTransaction()
	w := writer{tx: tx, table: b.scope.Table() + "-probe", family: families[nftwatch.IP]}
	w.newTable(b.scope)
	w.class(classOf(ipvs.Settings{Scheduler: name}, 1))
	if err := b.nft.Check(context.Background(), tx); err != nil {
		return fmt.Errorf("probe nftables (needs CAP_NET_ADMIN and a kernel with nft_nat, nft_numgen, nft_hash and nft_reject): %w", err)
	}
	return nil
}

func (b *Balancer) writer(tx *knftables.Transaction, family int) writer {
	return writer{tx: tx, table: b.scope.Table(), family: families[family]}
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
