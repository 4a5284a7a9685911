// Package kernel drives the kernel's IPVS over netlink. docs/design/ipvs-driver.md describes how, and why it builds its
// own messages.
package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

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
