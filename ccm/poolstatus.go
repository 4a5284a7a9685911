package ccm

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Condition types of an IPAddressPool.
const (
	conditionReady       = "Ready"
	conditionOverlapping = "Overlapping"
	conditionExhausted   = "Exhausted"
	conditionDraining    = "Draining"
)

// poolStatusInterval is the least time between two writes of a pool's status: counts change with every Service.
const poolStatusInterval = 500 * time.Millisecond

// poolStatus writes the status of pools, when it differs.
type poolStatus struct {
	log    *slog.Logger
	ledger *ledger
	specs  *poolSpecs
	client client.Client
	pulse  *pulse
	kick   chan struct{}
}

// Run returns when ctx ends.
func (p *poolStatus) Run(ctx context.Context) error {
	if p.ledger.waitReady(ctx) != nil {
		return nil
	}
	retry := newBackoff()
	for {
		wait := poolStatusInterval
		if err := p.write(ctx); err != nil && ctx.Err() == nil {
			wait = retry.next()
			p.log.Warn("pool status not written", "error", err, "again in", wait)
			kicked(p.kick)
		} else {
			retry.reset()
		}
		if !sleep(ctx, wait) {
			return nil
		}
		if !p.pulse.wait(ctx, "pool status", p.kick) {
			return nil
		}
	}
}

// write compares every pool with its object and writes the difference.
func (p *poolStatus) write(ctx context.Context) error {
	var list v1alpha1.IPAddressPoolList
	if err := p.client.List(ctx, &list); err != nil {
		return fmt.Errorf("listing IPAddressPools from the cache: %w", err)
	}
	measured := make([]pools.PoolStatus, 0, len(list.Items))
	var failed error
	for i := range list.Items {
		obj := &list.Items[i]
		st, _ := p.ledger.poolStatus(obj.Name) // the zero value for one that was never readable
		st.Name = obj.Name
		measured = append(measured, st)
		want := obj.DeepCopy()
		want.Status = poolStatusOf(obj, st, p.specs.problem(obj.Name))
		if equality.Semantic.DeepEqual(obj.Status, want.Status) {
			continue
		}
		patch, err := json.Marshal(map[string]any{"status": want.Status}) // whole: the counts are required, zero too
		if err != nil {
			return fmt.Errorf("encoding the status of IPAddressPool %s: %w", obj.Name, err)
		}
		err = p.client.Status().Patch(ctx, want, client.RawPatch(types.MergePatchType, patch))
		if client.IgnoreNotFound(err) != nil {
			failed = fmt.Errorf("writing the status of IPAddressPool %s: %w", obj.Name, err)
			if apierrors.IsForbidden(err) {
				failed = fmt.Errorf("%w (apply deploy/rbac-ccm.yaml)", failed)
			}
		}
	}
	measurePools(measured)
	return failed
}

// poolStatusOf is what the object's status should be. Conditions that hold on keep their time.
func poolStatusOf(obj *v1alpha1.IPAddressPool, st pools.PoolStatus, problem string) v1alpha1.IPAddressPoolStatus {
	out := v1alpha1.IPAddressPoolStatus{
		AssignedIPv4:  st.AssignedIPv4,
		AssignedIPv6:  st.AssignedIPv6,
		AvailableIPv4: st.AvailableIPv4,
		AvailableIPv6: st.AvailableIPv6,
		Conditions:    slices.Clone(obj.Status.Conditions),
	}
	set := func(kind string, is bool, reason, message string) {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&out.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: obj.Generation,
		})
	}
	ready, reason, message := st.State == pools.PoolReady, string(st.State), "The pool is in use"
	switch {
	case problem != "":
		ready, reason, message = false, "Invalid", problem
		if st.State == pools.PoolReady {
			message += ". The last good configuration stays in use"
		}
	case st.State == pools.PoolOverlaps:
		message = fmt.Sprintf("Not used: it overlaps the older pool %s. Remove the common addresses from one of them", st.Overlaps)
	case st.State == pools.PoolInvalid:
		message = "Not used: two entries of spec.addresses overlap. Remove the common addresses from one of them"
	}
	set(conditionReady, ready, reason, message)
	if st.State == pools.PoolOverlaps {
		set(conditionOverlapping, true, "Overlapping", message)
	} else {
		set(conditionOverlapping, false, "NoOverlap", "")
	}
	if len(st.Exhausted) > 0 {
		set(conditionExhausted, true, "NoneFree", fmt.Sprintf("No %s address is free. Add addresses, or another pool", join(st.Exhausted, " and no ")))
	} else {
		set(conditionExhausted, false, "SomeFree", "")
	}
	switch {
	case len(st.Draining) > 0:
		set(conditionDraining, true, "HeldOutside", fmt.Sprintf("Held though no pool admits it any more, until it is given up: %s", someOf(st.Draining)))
	case meta.FindStatusCondition(out.Conditions, conditionDraining) != nil:
		set(conditionDraining, false, "NoneHeldOutside", "")
	}
	return out
}

// someOf names the first ten and counts the others.
func someOf(keys []pools.ServiceKey) string {
	const most = 10
	if len(keys) <= most {
		return join(keys, ", ")
	}
	return fmt.Sprintf("%s and %d more", join(keys[:most], ", "), len(keys)-most)
}

func join[T fmt.Stringer](items []T, sep string) string {
	texts := make([]string, len(items))
	for i, it := range items {
		texts[i] = it.String()
	}
	return strings.Join(texts, sep)
}
