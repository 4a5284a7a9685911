// Package addresspool connects the IPAddressPools to the allocator, in both directions.
//
// Specs passes the pools to the allocator after every change. An invalid pool counts with its last valid
// configuration, which its status keeps across restarts. Once after the start Specs passes on the cool-downs that the
// status of pools records, then the addresses that Services hold, and only then is an address assigned. Status writes
// the counts, the cool-downs and the conditions of each pool, at most twice a second, and an Event per cause while a
// pool is not in use.
package addresspool

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/advertisement"
	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/loop"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// statusSource is where the status of pools comes from.
type statusSource interface {
	// WaitReady returns once recorded addresses have been adopted.
	WaitReady(ctx context.Context) error
	// PoolStatus returns the state and counts of a pool. False: no such pool.
	PoolStatus(name string) (pools.PoolStatus, bool)
}

// Status writes the status of pools if it differs.
type Status struct {
	Log       *slog.Logger
	Ledger    statusSource
	Specs     *Specs
	Client    client.Client
	Liveness  *loop.Liveness
	Trigger   chan struct{}
	Events    record.EventRecorder
	mu        sync.Mutex           // one write at a time: by Run, or at the end of the process
	Published map[types.UID]string // the causes for which there is an Event
}

// Condition types of an IPAddressPool.
const (
	conditionOverlapping = "Overlapping"
	conditionExhausted   = "Exhausted"
	conditionDraining    = "Draining"
	conditionWithheld    = "Withheld"
)

// poolStatusInterval is the minimum interval between two writes of a pool's status: counts change with every Service.
const poolStatusInterval = 500 * time.Millisecond

// Run returns when ctx ends.
func (p *Status) Run(ctx context.Context) error {
	if p.Ledger.WaitReady(ctx) != nil {
		return nil
	}
	retry := loop.NewBackoff()
	for {
		wait := poolStatusInterval
		if err := p.Write(ctx); err != nil && ctx.Err() == nil {
			wait = retry.Step()
			p.Log.Warn("pool status not written", "error", err, "retryIn", wait)
			loop.Trigger(p.Trigger)
		} else {
			retry = loop.NewBackoff()
		}
		if !loop.Sleep(ctx, wait) {
			return nil
		}
		if !p.Liveness.Wait(ctx, "pool status", p.Trigger) {
			return nil
		}
	}
}

// Write compares every pool with its object and writes the difference.
func (p *Status) Write(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list v1alpha1.IPAddressPoolList
	if err := p.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("listing IPAddressPools from the cache: %w", err)
	}
	measured := make([]pools.PoolStatus, 0, len(list.Items))
	ready := make(map[string]bool, len(list.Items))
	var failed error
	for i := range list.Items {
		obj := &list.Items[i]
		st, known := p.Ledger.PoolStatus(obj.Name) // the zero value for one that was never valid
		problem, lastGood := p.Specs.problem(obj.Name)
		if !known && problem == "" {
			continue // not read yet; reading it triggers the next pass
		}
		st.Name = obj.Name
		measured = append(measured, st)
		want := obj.DeepCopy()
		want.Status = poolStatusOf(obj, st, problem, lastGood)
		ready[obj.Name] = meta.IsStatusConditionTrue(want.Status.Conditions, condition.Ready)
		p.publish(obj, want.Status)
		if equality.Semantic.DeepEqual(obj.Status, want.Status) {
			continue
		}
		patch, err := statusPatch(want.Status)
		if err != nil {
			return fmt.Errorf("encoding the status of IPAddressPool %s: %w", obj.Name, err)
		}
		err = p.Client.Status().Patch(ctx, want, client.RawPatch(types.MergePatchType, patch))
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
		repeated := append(advertisement.Repeats("serviceAllocation.namespaceSelectors", a.NamespaceSelectors),
			advertisement.Repeats("serviceAllocation.serviceSelectors", a.ServiceSelectors)...)
		if len(repeated) > 0 {
			message += ". " + strings.Join(repeated, "; ")
		}
	}
	set(condition.Ready, ready, reason, message)
	if st.State == pools.PoolOverlaps {
		set(conditionOverlapping, true, "Overlapping", overlapText(st))
	} else {
		set(conditionOverlapping, false, "NoOverlap", "")
	}
	if len(st.Exhausted) > 0 {
		set(conditionExhausted, true, "NoneFree", fmt.Sprintf("No %s address is free. Add addresses, or another pool", condition.Join(st.Exhausted, " and no ")))
	} else {
		set(conditionExhausted, false, "SomeFree", "")
	}
	switch {
	case len(st.Draining) > 0:
		set(conditionDraining, true, "HeldOutside", fmt.Sprintf("Held by Services that no pool accepts any more: %s", condition.Some(st.Draining)))
	case meta.FindStatusCondition(out.Conditions, conditionDraining) != nil:
		set(conditionDraining, false, "NoneHeldOutside", "")
	}
	switch {
	case len(st.Withheld) > 0:
		set(conditionWithheld, true, "InUseElsewhere", fmt.Sprintf("Not allocated: %s", condition.Some(withheld(st.Withheld))))
	case meta.FindStatusCondition(out.Conditions, conditionWithheld) != nil:
		set(conditionWithheld, false, "NoneInUseElsewhere", "")
	}
	meta.RemoveStatusCondition(&out.Conditions, "NodeAddresses") // of earlier versions
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

// withheld describes what has each address.
func withheld(all []pools.WithheldAddress) []condition.Name {
	out := make([]condition.Name, len(all))
	for i, w := range all {
		by := condition.Join(w.By, " and ")
		if len(w.Holders) > 0 {
			by += "; still held by " + condition.Join(w.Holders, " and ")
		}
		out[i] = condition.Name(fmt.Sprintf("%s (%s)", w.Addr, by))
	}
	return out
}

// publish writes an Event about a pool that is not in use as specified, once per cause: the condition lets the next
// leader skip a reported one.
func (p *Status) publish(obj *v1alpha1.IPAddressPool, want v1alpha1.IPAddressPoolStatus) {
	ready := meta.FindStatusCondition(want.Conditions, condition.Ready)
	if ready == nil || ready.Status != metav1.ConditionFalse {
		delete(p.Published, obj.UID)
		return
	}
	before := p.Published[obj.UID]
	had := meta.FindStatusCondition(obj.Status.Conditions, condition.Ready)
	if had != nil && had.Status == metav1.ConditionFalse {
		before = had.Message
	}
	if p.Published[obj.UID] = ready.Message; before != ready.Message {
		p.Events.Event(obj, v1.EventTypeWarning, ready.Reason, ready.Message)
	}
}

// coolingDown returns the cool-downs for a pool's status: the latest ones, up to the limit of the status.
func coolingDown(all []pools.CoolDown) []v1alpha1.CoolingAddress {
	var out []v1alpha1.CoolingAddress
	for _, c := range all[:min(len(all), v1alpha1.MaxCoolingDown)] {
		freed := c.Freed.Truncate(time.Second)
		if freed.Before(c.Freed) {
			freed = freed.Add(time.Second) // round up: never too early
		}
		by := ""
		if c.By != (pools.ServiceKey{}) {
			by = c.By.String()
		}
		out = append(out, v1alpha1.CoolingAddress{Address: c.Addr.String(), Freed: metav1.NewTime(freed), FreedBy: by})
	}
	return out
}

// coolDownsIn parses the cool-downs in a pool's status. Entries that a leader would not have written are left out, each
// with an error that names the field.
func coolDownsIn(obj *v1alpha1.IPAddressPool) (out []pools.CoolDown, wrong []error) {
	for i, e := range obj.Status.CoolingDown {
		c, err := readCoolDown(e)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("status.coolingDown[%d].%w", i, err))
			continue
		}
		out = append(out, c)
	}
	return out, wrong
}

func readCoolDown(e v1alpha1.CoolingAddress) (pools.CoolDown, error) {
	addr, err := netip.ParseAddr(e.Address)
	if err != nil || addr.Zone() != "" || addr.Unmap().String() != e.Address {
		return pools.CoolDown{}, fmt.Errorf("address: %q is not an IP address in its usual form", e.Address)
	}
	if e.Freed.IsZero() {
		return pools.CoolDown{}, fmt.Errorf("freed: missing time")
	}
	c := pools.CoolDown{Addr: addr, Freed: e.Freed.Time}
	if e.FreedBy == "" {
		return c, nil
	}
	ns, name, ok := strings.Cut(e.FreedBy, "/")
	if !ok || len(validation.IsDNS1123Label(ns)) > 0 || len(validation.IsDNS1123Label(name)) > 0 {
		return pools.CoolDown{}, fmt.Errorf("freedBy: %q is not the namespace/name of a Service", e.FreedBy)
	}
	c.By = pools.ServiceKey{Namespace: ns, Name: name}
	return c, nil
}

var poolAddresses = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name:           "ironlb_pool_addresses",
	Help:           "Addresses of a pool, by family and state (assigned, available).",
	StabilityLevel: metrics.ALPHA,
}, []string{"pool", "family", "state"})

var poolReady = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name:           "ironlb_pool_ready",
	Help:           "1 while a pool is in use as specified, 0 while it is invalid or overlaps an older one.",
	StabilityLevel: metrics.ALPHA,
}, []string{"pool"})

// Metrics are all metrics of this package. They are registered when the first of them is measured.
var Metrics = []metrics.Registerable{poolAddresses, poolReady}

var register = sync.OnceFunc(func() { legacyregistry.MustRegister(Metrics...) })

// measurePools sets the gauges of all pools.
func measurePools(all []pools.PoolStatus, ready map[string]bool) {
	register()
	poolAddresses.Reset()
	poolReady.Reset()
	for name, is := range ready {
		n := 0.
		if is {
			n = 1
		}
		poolReady.WithLabelValues(name).Set(n)
	}
	for _, p := range all {
		poolAddresses.WithLabelValues(p.Name, "IPv4", "assigned").Set(float64(p.AssignedIPv4))
		poolAddresses.WithLabelValues(p.Name, "IPv6", "assigned").Set(float64(p.AssignedIPv6))
		poolAddresses.WithLabelValues(p.Name, "IPv4", "available").Set(float64(p.AvailableIPv4))
		poolAddresses.WithLabelValues(p.Name, "IPv6", "available").Set(float64(p.AvailableIPv6))
	}
}
