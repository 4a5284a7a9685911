// Package kernel drives the kernel's IPVS over netlink. docs/design/ipvs-driver.md describes how, and why it builds its
// own messages.
package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	mobyipvs "github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// Kernel is the IPVS of one network namespace. It is safe for concurrent use.
type Kernel struct {
	mu      sync.Mutex // prevents concurrent callers from reading each other's responses
	library library    // single requests, and Connections
	conn    *conn      // batches, and lists of real servers

	// counters is another socket of the library, with its own mutex, for VirtualStats and RealStats: a caller that
	// programs does not wait for a scrape.
	statistics sync.Mutex
	counters   library
}

// Open opens IPVS in the network namespace of the calling thread, and loads the module ip_vs if possible.
//
// The error wraps [ipvs.ErrNoModule] if the kernel has no IPVS. Open may then be called again: that failure is not
// cached, so loading the module repairs a running process. The error also wraps it if the library does not reach IPVS
// although the family exists; only a restart of the process repairs that.
func Open() (*Kernel, error) {
	return OpenAt(netns.None())
}

// OpenAt opens IPVS in the given network namespace.
func OpenAt(ns netns.NsHandle) (*Kernel, error) {
	family, err := findFamily()
	if err != nil {
		return nil, err
	}
	return open(ns, family)
}

// OpenLoaded is Open for read-only use: it does not load the module. Without the module nothing is programmed.
func OpenLoaded() (*Kernel, error) {
	family, err := netlink.GenlFamilyGet("IPVS")
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%w: module ip_vs is not loaded", ipvs.ErrNoModule)
	}
	if err != nil {
		return nil, fmt.Errorf("get the netlink family of IPVS: %w", err)
	}
	return open(netns.None(), family.ID)
}

// open opens the sockets in the namespace, or in the calling thread's if ns is not open.
func open(ns netns.NsHandle, family uint16) (*Kernel, error) {
	k := &Kernel{}
	var err error
	if k.conn, err = newConn(ns, family); err != nil {
		return nil, err
	}
	if k.library, err = openLibrary(ns); err == nil {
		k.counters, err = openLibrary(ns)
	}
	if err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

// Close closes the sockets. Programmed state stays.
func (k *Kernel) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.statistics.Lock()
	defer k.statistics.Unlock()
	if k.conn != nil {
		k.conn.close()
	}
	for _, l := range []library{k.library, k.counters} {
		if l != nil {
			l.Close()
		}
	}
}

// List returns all virtual servers except those of firewall marks, which are never IronLB's. It costs one request, and
// one more per virtual server.
func (k *Kernel) List() (ipvs.Table, error) {
	return k.list(func(netip.Addr) bool { return true })
}

// ListOf is List for the virtual servers of these addresses: it reads the real servers of no other.
func (k *Kernel) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	return k.list(func(a netip.Addr) bool { _, ok := addrs[a]; return ok })
}

func (k *Kernel) list(want func(netip.Addr) bool) (ipvs.Table, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	table := ipvs.Table{}
	err := k.virtuals(func(key ipvs.Key, settings ipvs.Settings) {
		if want(key.Addr) {
			table[key] = ipvs.VirtualServer{Settings: settings}
		}
	})
	if err != nil {
		return nil, err
	}
	for key, vs := range table {
		if vs.RealServers, err = k.reals(key, usualReals); err != nil {
			return nil, fmt.Errorf("list real servers of %v: %w", key, err)
		}
		table[key] = vs
	}
	return table, nil
}

// Virtuals returns the virtual servers without their real servers, in one request.
func (k *Kernel) Virtuals() (map[ipvs.Key]ipvs.Settings, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	virtuals := map[ipvs.Key]ipvs.Settings{}
	err := k.virtuals(func(key ipvs.Key, settings ipvs.Settings) { virtuals[key] = settings })
	return virtuals, err
}

// virtuals calls found with each virtual server that has an address.
func (k *Kernel) virtuals(found func(ipvs.Key, ipvs.Settings)) error {
	services, err := k.library.GetServices()
	if err != nil {
		return fmt.Errorf("list virtual servers: %w", explain(err))
	}
	for _, s := range services {
		if key, settings, ok := readService(s); ok {
			found(key, settings)
		}
	}
	return nil
}

// usualReals is more real servers than most virtual servers have.
const usualReals = 31

// reals returns the real servers of a virtual server; none if the virtual server does not exist any more. expected is
// their likely number. The library reads 16 of the 32 bits of a weight, so an edit by another program could go
// unnoticed.
func (k *Kernel) reals(key ipvs.Key, expected int) (map[netip.AddrPort]ipvs.RealServer, error) {
	if key.Addr.Is4() && optionsFit {
		if reals, err := k.conn.destsOption(key, expected); err == nil {
			return reals, nil
		}
	}
	reals, err := k.conn.dests(key)
	return reals, explain(err)
}

// one carries out one op. Adding an existing object edits it.
func (k *Kernel) one(op ipvs.Op) error {
	service, destination := serviceOf(op.Virtual, op.Settings), destinationOf(op.Real, op.RealServer)
	var err error
	switch op.Action {
	case ipvs.AddVirtual:
		if err = k.library.NewService(service); err == unix.EEXIST {
			err = k.library.UpdateService(service)
		}
	case ipvs.EditVirtual:
		err = k.library.UpdateService(service)
	case ipvs.DeleteVirtual:
		err = k.library.DelService(service)
	case ipvs.AddReal:
		if err = k.library.NewDestination(service, destination); err == unix.EEXIST {
			err = k.library.UpdateDestination(service, destination)
		}
	case ipvs.EditReal:
		err = k.library.UpdateDestination(service, destination)
	case ipvs.DeleteReal:
		err = k.library.DelDestination(service, destination)
	}
	return explainOp(op, err)
}

// findFamily returns the number of the generic netlink family of IPVS, and loads the module if possible.
func findFamily() (uint16, error) {
	family, err := netlink.GenlFamilyGet("IPVS")
	if err == nil {
		return family.ID, nil
	}
	out, loadErr := exec.Command("modprobe", "ip_vs").CombinedOutput()
	if family, err = netlink.GenlFamilyGet("IPVS"); err == nil {
		return family.ID, nil
	}
	if !errors.Is(err, unix.ENOENT) {
		return 0, fmt.Errorf("get the netlink family of IPVS: %w", err)
	}
	why := "modprobe found it, yet the family is not there"
	if loadErr != nil {
		why = strings.TrimSpace(loadErr.Error() + ": " + strings.TrimSpace(string(out)))
	}
	return 0, fmt.Errorf("%w: module ip_vs missing: run \"modprobe ip_vs\" on the node, or install the kernel package that has it (%s)",
		ipvs.ErrNoModule, why)
}

// within runs f in the namespace, on a thread that ends with it.
func within(ns netns.NsHandle, f func() error) error {
	if !ns.IsOpen() {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := netns.Set(ns)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// probeKey is the temporary virtual server of Probe, on the network address of a documentation range (RFC 5737): no
// Service can have it. kube-proxy tests with port 20000 of the same address; that one is not IronLB's.
var probeKey = ipvs.Key{Addr: netip.AddrFrom4([4]byte{198, 51, 100, 0}), Protocol: ipvs.TCP, Port: 7473}

// Probe checks whether this namespace supports a virtual server with the scheduler, by adding one, reading it back and
// deleting it. Reading back shows that the kernel has really accepted it.
//
// The error wraps [ipvs.ErrNoModule], [ipvs.ErrNoScheduler] or [ipvs.ErrPermission] and includes the remediation.
func (k *Kernel) Probe(scheduler string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	settings := ipvs.Settings{Scheduler: scheduler}
	if err := k.one(ipvs.Op{Action: ipvs.AddVirtual, Virtual: probeKey, Settings: settings}); err != nil {
		return fmt.Errorf("probe IPVS: %w", err)
	}
	listed, err := k.conn.settings(probeKey)
	deleteErr := k.one(ipvs.Op{Action: ipvs.DeleteVirtual, Virtual: probeKey})
	if err != nil {
		return fmt.Errorf("probe IPVS: read back %v: %w", probeKey, explain(err))
	}
	if listed.Scheduler != scheduler {
		return fmt.Errorf("probe IPVS: %w: wrote %v %s, read back %v", ipvs.ErrNoModule, probeKey, scheduler, listed)
	}
	if deleteErr != nil && !errors.Is(deleteErr, ipvs.ErrNoVirtual) {
		return fmt.Errorf("probe IPVS: %w", deleteErr)
	}
	return nil
}

// Timeouts are how long IPVS keeps an idle connection; 0 keeps the kernel's value.
type Timeouts struct {
	TCP, TCPFin, UDP time.Duration
}

// SetTimeouts sets the time-outs of the network namespace and reports whether any changed.
func (k *Kernel) SetTimeouts(want Timeouts) (changed bool, err error) {
	have, err := k.Timeouts()
	if err != nil {
		return false, err
	}
	want = Timeouts{TCP: cmp.Or(want.TCP, have.TCP), TCPFin: cmp.Or(want.TCPFin, have.TCPFin), UDP: cmp.Or(want.UDP, have.UDP)}
	if want == have {
		return false, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	err = k.library.SetConfig(&mobyipvs.Config{TimeoutTCP: want.TCP, TimeoutTCPFin: want.TCPFin, TimeoutUDP: want.UDP})
	if err != nil {
		return false, fmt.Errorf("set the time-outs of IPVS: %w", explain(err))
	}
	return true, nil
}

// Timeouts returns the time-outs of the network namespace.
func (k *Kernel) Timeouts() (Timeouts, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, err := k.library.GetConfig()
	if err != nil {
		return Timeouts{}, fmt.Errorf("read the time-outs of IPVS: %w", explain(err))
	}
	return Timeouts{TCP: c.TimeoutTCP, TCPFin: c.TimeoutTCPFin, UDP: c.TimeoutUDP}, nil
}

// explain maps the kernel's error number to its general meaning.
func explain(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: give the process CAP_NET_ADMIN in the network namespace: %w", ipvs.ErrPermission, err)
	}
	return err
}

// explainOp maps the error number to its meaning for this op (net/netfilter/ipvs/ip_vs_ctl.c).
func explainOp(op ipvs.Op, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%w: %w", ipvs.ErrNoVirtual, err)
	case errors.Is(err, unix.ENOENT) && op.Real.IsValid():
		return fmt.Errorf("%w: %w", ipvs.ErrNoReal, err)
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: module ip_vs_%s missing: run \"modprobe ip_vs_%[2]s\" on the node: %w",
			ipvs.ErrNoScheduler, op.Settings.Scheduler, err)
	}
	return explain(err)
}
