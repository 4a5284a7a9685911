package kube

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/view"
)

// The View after any sequence of changes equals the one built at once from the objects, and touched names exactly what
// differs from before.
func TestChangesMakeTheFullView(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 7))
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	value := func(kind string) any {
		if random.IntN(4) == 0 {
			return nil
		}
		switch kind {
		case kindBGPPeer:
			return peerObject{peer: view.BGPPeer{MyASN: 1, PeerASN: uint32(1 + random.IntN(2)), MultiHop: random.IntN(2) == 0}, secret: pick("", "a", "b"), profile: pick("", "a", "b")}
		case kindBFDProfile:
			return profileObject{bfd: view.BFD{Multiplier: uint8(2 + random.IntN(2))}, hops: uint8(random.IntN(2))}
		case kindSecret:
			return secretObject{view.Secret(pick("", "one", "two", "bad\n"))}
		case kindBGPAdvertisement:
			return adObject{ad: view.BGPAdvertisement{Length4: 24 + random.IntN(2)}, names: []string{pick("gold", "silver"), pick("bronze", "tin")}}
		}
		out := map[string]v1alpha1.CommunityValue{}
		for range random.IntN(4) {
			out[pick("gold", "silver", "bronze", "tin")] = v1alpha1.CommunityValue{Large: random.IntN(2) == 0, Parts: [3]uint32{1, uint32(random.IntN(2))}}
		}
		return out
	}
	states := []secretsState{{namespace: v1alpha1.PasswordNamespace}, {namespace: v1alpha1.PasswordNamespace, unread: true}, {namespace: v1alpha1.PasswordNamespace, refused: "forbidden"}}

	objects, v := newBGPObjects(), view.New()
	have := map[ref]any{}
	for step := range 3000 {
		for range 1 + random.IntN(3) {
			r := ref{kind: pick(kindBGPPeer, kindBFDProfile, kindSecret, kindBGPAdvertisement, kindCommunity), key: pools.ServiceKey{Name: pick("a", "b", "c")}}
			v := value(r.kind)
			if objects.fold(r, v); v == nil {
				delete(have, r)
			} else {
				have[r] = v
			}
		}
		secrets := states[0]
		if random.IntN(4) == 0 {
			secrets = states[random.IntN(3)]
		}
		before, beforeAds := maps.Clone(v.BGPPeers), maps.Clone(v.BGPAdvertisements)
		touched := view.Touched{BGPPeers: map[string]struct{}{}}
		objects.resolve(v, &touched, secrets)

		differ := map[string]struct{}{}
		for _, name := range []string{"a", "b", "c"} {
			was, had := before[name]
			is, has := v.BGPPeers[name]
			if had != has || !reflect.DeepEqual(was, is) {
				differ[name] = struct{}{}
			}
		}
		if !maps.Equal(differ, touched.BGPPeers) || touched.BGPAdvertisements == reflect.DeepEqual(beforeAds, v.BGPAdvertisements) {
			t.Fatalf("step %d: touched %v and %v; the peers that differ are %v", step, touched.BGPPeers, touched.BGPAdvertisements, differ)
		}
		if secrets.unread { // what waits for Secrets stays unchanged
			continue
		}
		full, want := newBGPObjects(), view.New()
		full.gone = maps.Clone(objects.gone) // deleted while a peer named them
		for r, v := range have {
			full.fold(r, v)
		}
		full.resolve(want, &view.Touched{BGPPeers: map[string]struct{}{}}, secrets)
		if !reflect.DeepEqual(v.BGPPeers, want.BGPPeers) || !reflect.DeepEqual(v.BGPAdvertisements, want.BGPAdvertisements) {
			t.Fatalf("step %d: the View is\n%s\nand from scratch it is\n%s", step, text(v), text(want))
		}
	}
}

func text(v *view.View) string { return fmt.Sprintf("%+v\n%+v", v.BGPPeers, v.BGPAdvertisements) }
