// Package kernel drives the kernel's IPVS over netlink.
//
// It is a thin layer over github.com/moby/ipvs; docs/design/ipvs-driver.md says what that library lacks and what is
// done about it here.
package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	mobyipvs "github.com/moby/ipvs"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// Kernel is the IPVS of one network namespace. It is safe for concurrent use.
type Kernel struct {
	mu     sync.Mutex // the handle has one socket and mixes up the answers of two callers
	handle *mobyipvs.Handle
}

// Open opens IPVS in the network namespace of the calling thread, loading the module ip_vs if it can.
//
// The error wraps [ipvs.ErrNoModule] when the kernel has no IPVS. Open may then be called again: nothing remembers the
// failure, so loading the module mends a running process.
func Open() (*Kernel, error) {
	return open("")
}

// OpenAt opens IPVS in the given network namespace.
func OpenAt(ns netns.NsHandle) (*Kernel, error) {
	return open(fmt.Sprintf("/proc/self/fd/%d", int(ns)))
}

func open(path string) (*Kernel, error) {
	if err := findFamily(); err != nil {
		return nil, err
	}
	handle, err := newHandle(path)
	if err != nil {
		return nil, fmt.Errorf("open the IPVS netlink socket: %w", err)
	}
	return &Kernel{handle: handle}, nil
}

// Close closes the socket. What was programmed stays.
func (k *Kernel) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.handle.Close()
}

// List returns all virtual servers but those of firewall marks, which are never ours.
// It costs one request, and one more per virtual server.
func (k *Kernel) List() (ipvs.Table, error) {
	return k.list(func(netip.Addr) bool { return true })
}

// ListOf is List for the virtual servers of these addresses: it asks for the real servers of no other.
func (k *Kernel) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	return k.list(func(a netip.Addr) bool { _, ok := addrs[a]; return ok })
}

func (k *Kernel) list(want func(netip.Addr) bool) (ipvs.Table, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	services, err := k.handle.GetServices()
	if err != nil {
		return nil, fmt.Errorf("list virtual servers: %w", explain(err))
	}
	table := make(ipvs.Table, len(services))
	for _, s := range services {
		key, ok := keyOf(s)
		if !ok || !want(key.Addr) {
			continue
		}
		destinations, err := k.handle.GetDestinations(s)
		if err != nil {
			return nil, fmt.Errorf("list real servers of %v: %w", key, explain(err))
		}
		reals := make(map[netip.AddrPort]ipvs.RealServer, len(destinations))
		for _, d := range destinations {
			addr, rs, err := realOf(d)
			if err != nil {
				return nil, fmt.Errorf("list real servers of %v: %w", key, err)
			}
			reals[addr] = rs
		}
		table[key] = ipvs.VirtualServer{Settings: settingsOf(s), RealServers: reals}
	}
	return table, nil
}

// Virtuals returns the virtual servers without their real servers, in one request: cheap enough to notice every second
// that another program has flushed the table.
func (k *Kernel) Virtuals() (map[ipvs.Key]ipvs.Settings, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	services, err := k.handle.GetServices()
	if err != nil {
		return nil, fmt.Errorf("list virtual servers: %w", explain(err))
	}
	virtuals := make(map[ipvs.Key]ipvs.Settings, len(services))
	for _, s := range services {
		if key, ok := keyOf(s); ok {
			virtuals[key] = settingsOf(s)
		}
	}
	return virtuals, nil
}

// Apply carries out the ops in order and returns those done. Adding what exists edits it in place, deleting what does
// not exist succeeds, editing what does not exist fails; nothing is ever deleted in order to be added again, so
// connections stay. It goes on after an error as [ipvs.Each] does.
func (k *Kernel) Apply(ops []ipvs.Op) ([]ipvs.Op, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return ipvs.Each(ops, k.apply)
}

func (k *Kernel) apply(op ipvs.Op) error {
	err := op.Validate()
	if err == nil {
		err = explainOp(op, k.send(op))
	}
	if err != nil {
		return fmt.Errorf("%v: %w", op, err)
	}
	return nil
}

// send translates one op into requests. The errors are the kernel's own.
func (k *Kernel) send(op ipvs.Op) error {
	s := service(op.Virtual, op.Settings)
	d := destination(op.Real, op.RealServer)
	switch op.Action {
	case ipvs.AddVirtual:
		err := k.handle.NewService(s)
		if errors.Is(err, unix.EEXIST) {
			err = k.handle.UpdateService(s)
		}
		return err
	case ipvs.EditVirtual:
		return k.handle.UpdateService(s)
	case ipvs.AddReal:
		err := k.handle.NewDestination(s, d)
		if errors.Is(err, unix.EEXIST) {
			err = k.handle.UpdateDestination(s, d)
		}
		return err
	case ipvs.EditReal:
		return k.handle.UpdateDestination(s, d)
	case ipvs.DeleteReal:
		return absentIsFine(k.handle.DelDestination(s, d))
	case ipvs.DeleteVirtual:
		return absentIsFine(k.handle.DelService(s))
	}
	panic(fmt.Sprintf("unknown action %v", op.Action))
}

// absentIsFine makes success of the two errors that say that there was nothing to delete: no such virtual server
// (ESRCH), no such real server (ENOENT).
func absentIsFine(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
