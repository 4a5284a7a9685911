package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// pollEvery is the polling interval of --wait.
const pollEvery = 200 * time.Millisecond

func (t *tool) rebalanceCommand() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "rebalance [POOL | ADDRESS | VIRTUALIP]...",
		Short: "Move addresses to the nodes that a new placement would choose",
		Long: `rebalance requests moves of addresses to preferred and less loaded nodes: of the addresses of the pools, or of the named
ones. Without arguments it applies to all pools. ironlb-ccm moves one address at a time, and the old owner announces it
until the new one does. An address moves only to a better node.

The request is the annotation ` + v1alpha1.AnnotationRebalance + ` on the object. Write ippool/NAME or vip/NAME for an ambiguous name.`,
		Example: `  kubectl ironlb rebalance
  kubectl ironlb rebalance web --wait 5m
  kubectl ironlb rebalance 192.0.2.10`,
		RunE: t.connected(func(ctx context.Context, args []string) error { return t.rebalance(ctx, args, wait) }),
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "Wait for completion, at most this long. 0: do not wait.")
	return cmd
}

// request is one object with a request.
type request struct {
	object client.Object
	name   string // as the user writes it
	done   func(client.Object) bool
}

func (t *tool) rebalance(ctx context.Context, names []string, wait time.Duration) error {
	value := t.now().UTC().Format(time.RFC3339Nano)
	requests, err := t.requests(ctx, names, value)
	if err != nil {
		return err
	}
	for _, r := range requests {
		if err := t.annotate(ctx, r.object, v1alpha1.AnnotationRebalance, value); err != nil {
			return fmt.Errorf("annotating %s: %w", r.name, err)
		}
		fmt.Fprintf(t.out, "%s: rebalance requested\n", r.name)
	}
	if wait <= 0 {
		return nil
	}
	deadline := t.now().Add(wait)
	for _, r := range requests {
		err := every(ctx, pollEvery, deadline.Sub(t.now()), func(ctx context.Context) (bool, error) {
			switch err := t.client.Get(ctx, client.ObjectKeyFromObject(r.object), r.object); {
			case apierrors.IsNotFound(err):
				return true, nil
			case err != nil:
				return false, fmt.Errorf("reading %s: %w", r.name, err)
			}
			return r.done(r.object), nil
		})
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("%s is not done yet: set a longer --wait, and see kubectl ironlb status and the log of ironlb-ccm", r.name)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(t.out, "%s: done\n", r.name)
	}
	return nil
}

// requests resolves the names to objects; no names mean all pools.
func (t *tool) requests(ctx context.Context, names []string, value string) (out []request, err error) {
	var vips v1alpha1.VirtualIPList
	var pools v1alpha1.IPAddressPoolList
	if err := errors.Join(t.list(ctx, &vips), t.list(ctx, &pools)); err != nil {
		return nil, err
	}
	pool := func(i int) request {
		return request{&pools.Items[i], "ippool/" + pools.Items[i].Name, func(o client.Object) bool {
			return o.(*v1alpha1.IPAddressPool).Status.Rebalanced == value
		}}
	}
	vip := func(i int) request {
		return request{&vips.Items[i], "vip/" + vips.Items[i].Name, func(o client.Object) bool {
			return o.GetAnnotations()[v1alpha1.AnnotationRebalance] != value
		}}
	}
	if len(names) == 0 {
		for i := range pools.Items {
			out = append(out, pool(i))
		}
		if len(out) == 0 {
			return nil, errors.New("there is no IPAddressPool: nothing to rebalance")
		}
		return out, nil
	}
	for _, name := range names {
		var found []request
		for i := range vips.Items {
			v := &vips.Items[i]
			if name == "vip/"+v.Name || name == v.Name || has(v, name) {
				found = append(found, vip(i))
			}
		}
		for i := range pools.Items {
			if p := pools.Items[i].Name; name == "ippool/"+p || name == p {
				found = append(found, pool(i))
			}
		}
		switch len(found) {
		case 0:
			return nil, fmt.Errorf("%s is neither an IPAddressPool nor an address of a VirtualIP: see kubectl get ippool,vip", name)
		case 1:
			out = append(out, found[0])
		default:
			var both []string
			for _, r := range found {
				both = append(both, r.name)
			}
			return nil, fmt.Errorf("%s is ambiguous: use %s", name, strings.Join(both, " or "))
		}
	}
	return out, nil
}
