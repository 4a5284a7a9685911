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

// Scope says whose packets a Balancer forwards.
type Scope uint8

const (
	// Everyone: all packets, tables ironlb-lb.
	Everyone Scope = iota
	// Inside: those of Pods and of the node itself, tables ironlb-inside.
	Inside
)

// Table returns the name of the tables of the scope, of the families ip and ip6.
func (s Scope) Table() string {
	if s == Inside {
		return "ironlb-inside"
	}
	return "ironlb-lb"
}

// ErrNoCommand is wrapped by New when the program nft is not there.
var ErrNoCommand = errors.New("nft not found: install the package nftables")

// Balancer is our tables in one network namespace. It is safe for concurrent use.
type Balancer struct {
	scope Scope
	nft   knftables.Interface

	mu    sync.Mutex
	watch *nftwatch.Watch
	// known tells that the rest is what the kernel holds, as long as nobody else changes it.
	known  bool
	have   map[ipvs.Key]*virtual
	tables [nftwatch.NumFamilies]table
	pods   ipvs.PodSources
}

// table is what is known of the table of a family besides its virtual servers.
type table struct {
	exists  bool
	classes map[class]struct{}
	// stale tells that clients may be remembered for a real server that gets no new connections.
	stale bool
}

// virtual is a virtual server with its slots. It is never changed, but replaced.
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

// refused tells whether there is a virtual server, and nowhere for its packets to go.
func (v *virtual) refused() bool { return v.Scheduler != "" && v.layout.slots == 0 }

// memory is the class that remembers the clients of a persistent virtual server.
func (v *virtual) memory() class { return class{choice: remembering, timeout: v.Timeout} }

// persistent returns the settings of a virtual server whose clients are remembered, and none of another.
func (v *virtual) persistent() ipvs.Settings {
	if !v.class().sticky {
		return ipvs.Settings{}
	}
	return v.Settings
}

// live tells whether a client of the virtual server, which may be nil, that is remembered may go to the real server.
func live(v *virtual, real netip.AddrPort) bool {
	return v != nil && v.Flags&ipvs.Persistent != 0 && v.RealServers[real].Weight > 0
}

// strands tells whether clients may be remembered for a real server that is live no more when next takes the place of have.
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

// New finds the program nft and tries whether it may be used. It changes nothing.
//
// Every call acts on the network namespace of the thread that makes it, which must be the same each time.
func New(scope Scope) (*Balancer, error) {
	// The table that is tried is named by each object; the library only asks for a name here.
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

// Close stops watching. What was programmed stays.
func (b *Balancer) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watch.Close()
}

// Remove deletes our tables. It succeeds when there are none. Connections that were made stay.
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

// SetPods says what is inside. It has no effect on connections that are there.
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
	pods.Prefixes, pods.Interfaces = reduce(pods.Prefixes), slices.Sorted(slices.Values(pods.Interfaces))
	slices.SortFunc(pods.Prefixes, netip.Prefix.Compare)
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

// Virtuals returns the virtual servers without their real servers. It costs a system call and a copy when nobody else has changed
// our tables.
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

// Probe finds out whether the scheduler is known and whether the kernel takes the rules that carry it out. It leaves nothing.
//
// The error wraps [ipvs.ErrNoScheduler] or says how to mend it.
func (b *Balancer) Probe(name string) error {
	if _, known := schedulers[name]; !known {
		return fmt.Errorf("probe nftables: %w: %s: use one of %v", ipvs.ErrNoScheduler, name, slices.Sorted(maps.Keys(schedulers)))
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

// run carries out a transaction of ours on the tables of the families where ours is 1, and notices any other that touched our tables meanwhile:
// then what is known must be read anew.
func (b *Balancer) run(tx *knftables.Transaction, ours nftwatch.Counts) error {
	return b.runFunc(func() error { return firstLine(b.nft.Run(context.Background(), tx)) }, ours)
}

// firstLine leaves out of an error of nft all but the first thing that it complains of.
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
