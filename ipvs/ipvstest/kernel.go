// Package ipvstest contains a fake of the kernel's IPVS and the contract that the fake and the real driver both pass.
package ipvstest

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/ironlb/ironlb/ipvs"
)

// Kernel is an IPVS that forwards nothing and keeps its table in process memory. It behaves as package ipvs/kernel
// does.
type Kernel struct {
	// Fail, if set, is called before each op; its error is that op's error and the op is not carried out.
	Fail func(ipvs.Op) error
	// Schedulers are the schedulers that this kernel has.
	Schedulers []string

	mu    sync.Mutex
	table ipvs.Table
}

// NewKernel returns a kernel without virtual servers.
func NewKernel() *Kernel {
	return &Kernel{Schedulers: []string{"rr", "wrr", "lc", "wlc", "sh", "mh"}, table: make(ipvs.Table)}
}

// Probe returns an error if the scheduler does not exist.
func (k *Kernel) Probe(scheduler string) error {
	if !slices.Contains(k.Schedulers, scheduler) {
		return fmt.Errorf("%w: %s", ipvs.ErrNoScheduler, scheduler)
	}
	return nil
}

// List returns a copy of the full table.
func (k *Kernel) List() (ipvs.Table, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.table.Clone(), nil
}

// ListOf returns a copy of the virtual servers of these addresses.
func (k *Kernel) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.table.Restrict(addrs).Clone(), nil
}

// Virtuals returns the virtual servers without their real servers.
func (k *Kernel) Virtuals() (map[ipvs.Key]ipvs.Settings, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	virtuals := make(map[ipvs.Key]ipvs.Settings, len(k.table))
	for key, vs := range k.table {
		virtuals[key] = vs.Settings
	}
	return virtuals, nil
}

// Apply carries out the ops as [ipvs.Each] describes and returns those done.
func (k *Kernel) Apply(ops []ipvs.Op) ([]ipvs.Op, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return ipvs.Each(ops, k.apply)
}

func (k *Kernel) apply(op ipvs.Op) error {
	if k.Fail != nil {
		if err := k.Fail(op); err != nil {
			return fmt.Errorf("%v: %w", op, err)
		}
	}
	if op.Action == ipvs.AddVirtual || op.Action == ipvs.EditVirtual {
		if err := k.Probe(op.Settings.Scheduler); err != nil {
			return fmt.Errorf("%v: %w", op, err)
		}
	}
	return k.table.Apply(op)
}

// Flush deletes every virtual server, as "ipvsadm -C" by another program does.
func (k *Kernel) Flush() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.table)
}

// Close does nothing.
func (k *Kernel) Close() {}
