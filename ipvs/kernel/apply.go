package kernel

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// batchMost is how many requests are sent at once. Of each, only a failure is answered; the last one is always
// answered.
const batchMost = 256

// Apply carries out the ops in order and returns those done. Adding an existing object edits it in place, deleting an
// absent one succeeds, editing an absent one fails. Nothing is ever deleted to be added again, so connections stay.
// Apply continues after an error. Ops on a virtual server that could not be added are not in the result.
func (k *Kernel) Apply(ops []ipvs.Op) ([]ipvs.Op, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := batch{kernel: k, ops: ops, errs: map[int]error{}, objects: map[object]struct{}{}}
	for i, op := range ops {
		if err := op.Validate(); err != nil {
			b.errs[i] = err
			continue
		}
		b.add(i)
	}
	b.flush()
	return b.result()
}

// batch collects requests that are sent together.
type batch struct {
	kernel *Kernel
	ops    []ipvs.Op
	// errs are the failures by the index of their op.
	errs map[int]error
	// pending are the indices of the unsent ops; objects are their objects.
	pending []int
	objects map[object]struct{}
}

// object is the object of an op: a virtual server, or a real server of it.
type object struct {
	virtual ipvs.Key
	real    netip.AddrPort
}

// add puts an op into the batch. The ops on one object stay in order even if an add has to become an edit, in a second
// request. Therefore no batch has two ops on one object, or the deletion of a virtual server together with
// other ops on it.
func (b *batch) add(i int) {
	op := b.ops[i]
	o := object{virtual: op.Virtual, real: op.Real}
	_, twice := b.objects[o]
	if twice || op.Action == ipvs.DeleteVirtual && b.touches(op.Virtual) || len(b.pending) == batchMost {
		b.flush()
	}
	b.objects[o] = struct{}{}
	b.pending = append(b.pending, i)
}

// touches reports whether an op on the virtual server or one of its real servers is pending.
func (b *batch) touches(key ipvs.Key) bool {
	for _, i := range b.pending {
		if b.ops[i].Virtual == key {
			return true
		}
	}
	return false
}

// flush sends the pending ops: several in one message, and then by themselves those that must become edits or whose
// responses were lost.
func (b *batch) flush() {
	alone := b.pending
	if len(b.pending) > 1 {
		alone = b.send(b.pending)
	}
	for _, i := range alone {
		b.fail(i, b.kernel.one(b.ops[i]))
	}
	b.pending = b.pending[:0]
	clear(b.objects)
}

// fail records a failure, unless there was nothing to delete.
func (b *batch) fail(i int, err error) {
	action := b.ops[i].Action
	deletes := action == ipvs.DeleteReal || action == ipvs.DeleteVirtual
	if err == nil || deletes && (errors.Is(err, ipvs.ErrNoVirtual) || errors.Is(err, ipvs.ErrNoReal)) {
		return
	}
	b.errs[i] = err
}

// send sends ops in one message and records those that the kernel refused. It returns the ops that are still to be
// carried out: additions of existing objects; all ops if responses are lost.
func (b *batch) send(pending []int) (again []int) {
	c := b.kernel.conn
	var first uint32
	for n, i := range pending {
		flags := uint16(0)
		if n == len(pending)-1 {
			flags = unix.NLM_F_ACK
		}
		if seq := c.request(b.ops[i], flags); n == 0 {
			first = seq
		}
	}
	refused := map[int]unix.Errno{}
	err := c.exchange(nil, func(seq uint32, errno unix.Errno) { refused[pending[seq-first]] = errno })
	if err != nil {
		c.drain()
		return pending
	}
	for _, i := range pending {
		errno, is := refused[i]
		switch {
		case errno == unix.EEXIST:
			again = append(again, i)
		case is:
			b.fail(i, explainOp(b.ops[i], errno))
		}
	}
	return again
}

// request appends the request of an op to the buffer.
func (c *conn) request(op ipvs.Op, flags uint16) uint32 {
	start := len(c.out)
	seq := c.begin(commands[op.Action], flags)
	switch op.Action {
	case ipvs.AddVirtual, ipvs.EditVirtual:
		c.out = appendService(c.out, op.Virtual, &op.Settings)
	case ipvs.AddReal, ipvs.EditReal:
		c.out = appendService(c.out, op.Virtual, nil)
		c.out = appendDest(c.out, op.Real, &op.RealServer)
	case ipvs.DeleteReal:
		c.out = appendService(c.out, op.Virtual, nil)
		c.out = appendDest(c.out, op.Real, nil)
	case ipvs.DeleteVirtual:
		c.out = appendService(c.out, op.Virtual, nil)
	}
	endRequest(c.out, start)
	return seq
}

var commands = map[ipvs.Action]uint8{
	ipvs.AddVirtual: cmdNewService, ipvs.EditVirtual: cmdSetService, ipvs.DeleteVirtual: cmdDelService,
	ipvs.AddReal: cmdNewDest, ipvs.EditReal: cmdSetDest, ipvs.DeleteReal: cmdDelDest,
}

// result returns the ops done, and the errors of the others. Of the ops that follow the failed adding of their own
// virtual server, only that one has an error.
func (b *batch) result() ([]ipvs.Op, error) {
	if len(b.errs) == 0 {
		return b.ops, nil
	}
	var done []ipvs.Op
	var errs []error
	missing := map[ipvs.Key]bool{}
	for i, op := range b.ops {
		if missing[op.Virtual] {
			continue
		}
		if err, ok := b.errs[i]; ok {
			missing[op.Virtual] = op.Action == ipvs.AddVirtual
			errs = append(errs, fmt.Errorf("%v: %w", op, err))
			continue
		}
		done = append(done, op)
	}
	return done, errors.Join(errs...)
}
