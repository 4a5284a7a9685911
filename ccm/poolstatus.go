package ccm

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
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
	conditionNodes       = "NodeAddresses"
)

// poolStatusInterval is the minimum interval between two writes of a pool's status: counts change with every Service.
const poolStatusInterval = 500 * time.Millisecond

// poolStatus writes the status of pools if it differs.
type poolStatus struct {
	log       *slog.Logger
	ledger    *ledger
	specs     *poolSpecs
	client    client.Client
	liveness  *liveness
	trigger   chan struct{}
	events    record.EventRecorder
	mu        sync.Mutex           // one write at a time: by Run, or at the end of the process
	published map[types.UID]string // the causes for which there is an Event
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
			wait = retry.Step()
			p.log.Warn("pool status not written", "error", err, "retryIn", wait)
			trigger(p.trigger)
		} else {
			retry = newBackoff()
		}
		if !sleep(ctx, wait) {
			return nil
		}
		if !p.liveness.wait(ctx, "pool status", p.trigger) {
			return nil
		}
	}
}

// write compares every pool with its object and writes the difference.
func (p *poolStatus) write(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list v1alpha1.IPAddressPoolList
	if err := p.client.List(ctx, &list); err != nil {
		return fmt.Errorf("listing IPAddressPools from the cache: %w", err)
	}
	measured := make([]pools.PoolStatus, 0, len(list.Items))
	ready := make(map[string]bool, len(list.Items))
	var failed error
	for i := range list.Items {
		obj := &list.Items[i]
		st, known := p.ledger.poolStatus(obj.Name) // the zero value for one that was never valid
		problem, lastGood := p.specs.problem(obj.Name)
		if !known && problem == "" {
			continue // not read yet; reading it triggers the next pass
		}
		st.Name = obj.Name
		measured = append(measured, st)
		want := obj.DeepCopy()
		want.Status = poolStatusOf(obj, st, problem, lastGood)
		ready[obj.Name] = meta.IsStatusConditionTrue(want.Status.Conditions, conditionReady)
		p.publish(obj, want.Status)
		if equality.Semantic.DeepEqual(obj.Status, want.Status) {
			continue
		}
		patch, err := statusPatch(want.Status)
		if err != nil {
			return fmt.Errorf("encoding the status of IPAddressPool %s: %w", obj.Name, err)
		}
		err = p.client.Status().Patch(ctx, want, client.RawPatch(types.MergePatchType, patch))
		if client.IgnoreNotFound(err) != nil {
			failed = fmt.Errorf("writing the status of IPAddressPool %s: %w", obj.Name, err)
			if apierrors.IsForbidden(err) {
				failed = fmt.Errorf("%w (apply deploy/ironlb.yaml, or upgrade the Helm release)", failed)
			}
		}
	}
	measurePools(measured, ready)
	return failed
}

// statusPatch is the merge patch that sets the full status: counts are required, even if zero, and absent fields are
// removed.
func statusPatch(status v1alpha1.IPAddressPoolStatus) ([]byte, error) {
	full := struct {
		v1alpha1.IPAddressPoolStatus
		LastGood    *string                   `json:"lastGood"`             // null when there is none
		Rebalanced  *string                   `json:"rebalanced,omitempty"` // placement writes it
		CoolingDown []v1alpha1.CoolingAddress `json:"coolingDown"`          // null when there are none
	}{IPAddressPoolStatus: status, CoolingDown: status.CoolingDown}
	if status.LastGood != "" {
		full.LastGood = &status.LastGood
	}
	return json.Marshal(map[string]any{"status": full})
}

// poolStatusOf returns the expected status of the object. Unchanged conditions keep their time.
func poolStatusOf(obj *v1alpha1.IPAddressPool, st pools.PoolStatus, problem, lastGood string) v1alpha1.IPAddressPoolStatus {
	out := v1alpha1.IPAddressPoolStatus{
		AssignedIPv4:  st.AssignedIPv4,
		AssignedIPv6:  st.AssignedIPv6,
		AvailableIPv4: st.AvailableIPv4,
		AvailableIPv6: st.AvailableIPv6,
		LastGood:      lastGood,
		Rebalanced:    obj.Status.Rebalanced,
		CoolingDown:   coolingDown(st.CoolDowns),
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
	ready, reason, message := readyOf(st, problem, lastGood)
	if a := obj.Spec.ServiceAllocation; a != nil && ready {
		repeated := append(repeats("serviceAllocation.namespaceSelectors", a.NamespaceSelectors),
			repeats("serviceAllocation.serviceSelectors", a.ServiceSelectors)...)
		if len(repeated) > 0 {
			message += ". " + strings.Join(repeated, "; ")
		}
	}
	set(conditionReady, ready, reason, message)
	if st.State == pools.PoolOverlaps {
		set(conditionOverlapping, true, "Overlapping", overlapText(st))
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
		set(conditionDraining, true, "HeldOutside", fmt.Sprintf("Held by Services that no pool accepts any more: %s", someOf(st.Draining)))
	case meta.FindStatusCondition(out.Conditions, conditionDraining) != nil:
		set(conditionDraining, false, "NoneHeldOutside", "")
	}
	switch {
	case len(st.OfNodes) > 0:
		set(conditionNodes, true, "AddressOfNode", fmt.Sprintf("Withheld because nodes have them: %s. Remove them from spec.addresses", someOf(ofNodes(st.OfNodes))))
	case meta.FindStatusCondition(out.Conditions, conditionNodes) != nil:
		set(conditionNodes, false, "NoneOfNodes", "")
	}
	return out
}

// readyOf returns the condition Ready.
func readyOf(st pools.PoolStatus, problem, lastGood string) (ready bool, reason, message string) {
	switch {
	case problem != "" && lastGood != "" && st.State == pools.PoolReady:
		return false, "Invalid", problem + ". The last good configuration stays in use (status.lastGood)"
	case problem != "" && lastGood != "":
		return false, "Invalid", problem + ". The last good configuration (status.lastGood) is not used either: it overlaps the older pool " + st.Overlaps
	case problem != "":
		return false, "Invalid", problem + ". Until then it assigns no addresses; Services keep the ones that they hold"
	case st.State == pools.PoolOverlaps:
		return false, string(st.State), overlapText(st)
	case st.State == pools.PoolInvalid:
		return false, string(st.State), "Not used: two entries of spec.addresses overlap. Remove the common addresses from one of them"
	}
	return st.State == pools.PoolReady, string(st.State), "The pool is in use"
}

func overlapText(st pools.PoolStatus) string {
	return fmt.Sprintf("Not used: it overlaps the older pool %s. Remove the common addresses from one of them", st.Overlaps)
}

// text is a Stringer.
type text string

func (t text) String() string { return string(t) }

// ofNodes describes which nodes have each address.
func ofNodes(all []pools.NodeAddress) []text {
	out := make([]text, len(all))
	for i, n := range all {
		has := "node " + strings.Join(n.Nodes, " and node ")
		if len(n.Holders) > 0 {
			has += ", still held by " + join(n.Holders, " and ")
		}
		out[i] = text(fmt.Sprintf("%s (%s)", n.Addr, has))
	}
	return out
}

// someOf names the first ten and counts the others.
func someOf[T fmt.Stringer](keys []T) string {
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
