package virtualip

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/advertisement"
	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// advertisements parses all L2Advertisements. An Event reports each problem once.
func (p *Placer) advertisements(ctx context.Context, of policies) ([]advertisement.Selection, error) {
	var list v1alpha1.L2AdvertisementList
	if err := p.client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing L2Advertisements from the cache: %w", err)
	}
	known := make(map[string]map[string]string, len(of))
	for name, obj := range of {
		known[name] = obj.Labels
	}
	var ads []advertisement.Selection
	published, conditioned, failed := p.published, p.conditioned, p.failed
	p.published, p.conditioned, p.failed = map[string]string{}, map[string]string{}, map[string]string{}
	for i := range list.Items {
		obj := &list.Items[i]
		ad, err := advertisement.OfL2(obj)
		ads = append(ads, ad)
		want := metav1.Condition{Type: condition.Ready, Status: metav1.ConditionTrue, Reason: condition.ReasonRead, Message: "The advertisement is in use", ObservedGeneration: obj.Generation}
		missing, unknown := ad.Missing(obj.Spec.IPAddressPoolSelectors, known), p.attached.unknown(ad.Interfaces)
		switch {
		case err != nil:
			want.Status, want.Reason = metav1.ConditionFalse, condition.ReasonInvalidSelector
			want.Message = fmt.Sprintf("%v. The selector matches nothing until it is fixed", err)
			if missing != "" {
				want.Message += "; " + missing
			}
		case missing != "":
			want.Status, want.Reason, want.Message = metav1.ConditionFalse, condition.ReasonUnknownPool, missing
		case unknown != "":
			want.Status, want.Reason, want.Message = metav1.ConditionFalse, condition.ReasonUnknownInterface, unknown
		case len(ad.Repeated) > 0:
			want.Status, want.Reason = metav1.ConditionFalse, condition.ReasonRepeatedSelector
			want.Message = strings.Join(ad.Repeated, "; ") + ". The advertisement is in use"
		}
		if want.Status == metav1.ConditionFalse {
			p.published[obj.Name] = want.Message
			if published[obj.Name] != want.Message {
				p.events.Event(obj, v1.EventTypeWarning, want.Reason, want.Message)
			}
		}
		p.condition(ctx, obj, want, conditioned[obj.Name], failed[obj.Name])
	}
	return ads, nil
}

// condition writes the condition Ready of the advertisement. Placement does not wait for it: a failed write is retried
// in the next pass.
func (p *Placer) condition(ctx context.Context, obj *v1alpha1.L2Advertisement, want metav1.Condition, written, failed string) {
	name, version := obj.Name, obj.ResourceVersion
	if !meta.SetStatusCondition(&obj.Status.Conditions, want) {
		return
	}
	p.conditioned[name] = version
	if written == version {
		return // it is not in the cache yet
	}
	patch, err := json.Marshal(map[string]any{"status": obj.Status})
	if err == nil {
		err = client.IgnoreNotFound(p.client.Status().Patch(ctx, obj, client.RawPatch(types.MergePatchType, patch)))
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	delete(p.conditioned, name)
	if p.failed[name] = err.Error(); failed != err.Error() {
		p.log.Warn("condition not written", "advertisement", name, "error", err, "remediation", "apply deploy/ironlb.yaml, or upgrade the Helm release")
	}
}
