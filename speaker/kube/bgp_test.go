package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// bgpFeed is an in-memory API server for the BGP kinds.
type bgpFeed struct {
	feed
	peers, bgpAds, profiles, communities *fcache.FakeControllerSource
	secrets                              *counted
}

// counted counts how often its objects are listed.
type counted struct {
	*fcache.FakeControllerSource
	lists atomic.Int32
}

func (c *counted) List(options metav1.ListOptions) (runtime.Object, error) {
	c.lists.Add(1)
	return c.FakeControllerSource.List(options)
}

func newBGPFeed(t *testing.T) *bgpFeed {
	t.Helper()
	source := fcache.NewFakeControllerSource
	f := &bgpFeed{peers: source(), bgpAds: source(), profiles: source(), communities: source(), secrets: &counted{FakeControllerSource: source()}}
	f.pools, f.triggers = source(), make(chan struct{}, 1000)
	var err error
	f.source, err = newSource(bgpWatches(f.peers, f.bgpAds, f.profiles, f.communities, f.pools, f.secrets), func() { f.triggers <- struct{}{} }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func bgpWatches(peers, ads, profiles, communities, poolSource, secrets cache.ListerWatcher) []watch {
	return []watch{
		{kind: kindBGPPeer, object: &v1alpha1.BGPPeer{}, from: peers, convert: convertPeer, trim: trim, optional: true},
		{kind: kindBGPAdvertisement, object: &v1alpha1.BGPAdvertisement{}, from: ads, convert: convertBGPAdvertisement, trim: trim, optional: true},
		{kind: kindBFDProfile, object: &v1alpha1.BFDProfile{}, from: profiles, convert: convertProfile, trim: trim, optional: true},
		{kind: kindCommunity, object: &v1alpha1.Community{}, from: communities, convert: convertCommunity, trim: trim, optional: true},
		{kind: kindPool, object: &v1alpha1.IPAddressPool{}, from: poolSource, convert: convertPool, trim: trim},
		{kind: kindSecret, object: &corev1.Secret{}, from: secrets, convert: convertSecret, trim: trim, namespace: v1alpha1.PasswordNamespace},
	}
}

// until observes at each trigger until the condition holds. It returns the touched peers, sorted, and whether an
// advertisement was touched.
func (f *bgpFeed) until(t *testing.T, what string, done func(*view.View) bool) (peers []string, ads bool) {
	t.Helper()
	touched := map[string]struct{}{}
	deadline := time.After(patience)
	for {
		v, now, ok := f.source.Observe()
		maps.Copy(touched, now.BGPPeers)
		ads = ads || now.BGPAdvertisements
		if ok && done(v) {
			return slices.Sorted(maps.Keys(touched)), ads
		}
		select {
		case <-f.triggers:
		case <-deadline:
			t.Fatalf("%s: not seen in the View: %+v", what, v)
		}
	}
}

func bgpPeer(name string, spec v1alpha1.BGPPeerSpec) *v1alpha1.BGPPeer {
	if spec.PeerAddress == "" {
		spec.PeerAddress = "192.0.2.1"
	}
	spec.MyASN, spec.PeerASN = 64512, ptr.To[int64](64513)
	return &v1alpha1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}

func password(name, text string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.PasswordNamespace, Name: name}, Type: corev1.SecretTypeBasicAuth,
		Data: map[string][]byte{"username": []byte("bgp"), "password": []byte(text)},
	}
}

func profile(multiplier int32) *v1alpha1.BFDProfile {
	return &v1alpha1.BFDProfile{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Spec: v1alpha1.BFDProfileSpec{ReceiveInterval: 100, TransmitInterval: 50, DetectMultiplier: multiplier}}
}

func community(object string, values ...string) *v1alpha1.Community {
	c := &v1alpha1.Community{ObjectMeta: metav1.ObjectMeta{Name: object}}
	for _, v := range values {
		name, value, _ := strings.Cut(v, "=")
		c.Spec.Communities = append(c.Spec.Communities, v1alpha1.NamedCommunity{Name: name, Value: value})
	}
	return c
}

// Peers are in the View with their profile and password. A change touches only the peers that it affects.
func TestPeersFollowTheirObjects(t *testing.T) {
	f := newBGPFeed(t)
	f.secrets.Add(password("tor", "s3cret"))
	f.peers.Add(bgpPeer("plain", v1alpha1.BGPPeerSpec{}))
	f.peers.Add(bgpPeer("fast", v1alpha1.BGPPeerSpec{BFDProfile: "fast"}))
	f.run(t)
	f.until(t, "first list", func(v *view.View) bool {
		return len(v.BGPPeers) == 2 && v.BGPPeers["fast"].Wrong == routes.NotConfigured && v.BGPPeers["plain"].Wrong == ""
	})
	if n := f.secrets.lists.Load(); n != 0 {
		t.Errorf("Secrets were listed %d times although no BGPPeer names one", n)
	}
	f.profiles.Add(profile(3))
	touched, _ := f.until(t, "profile", func(v *view.View) bool { return v.BGPPeers["fast"].Wrong == "" })
	if bfd := f.source.view.BGPPeers["fast"].BFD; !slices.Equal(touched, []string{"fast"}) || bfd != (view.BFD{Receive: 100 * time.Millisecond, Transmit: 50 * time.Millisecond, Multiplier: 3}) {
		t.Errorf("touched %v, BFD %+v", touched, bfd)
	}
	f.profiles.Modify(profile(5))
	f.until(t, "profile changed", func(v *view.View) bool { return v.BGPPeers["fast"].BFD.Multiplier == 5 })
	f.profiles.Delete(profile(5))
	restarted := bgpPeer("restarted", v1alpha1.BGPPeerSpec{BFDProfile: "slow"}) // as after a restart, when ironlb-ccm has recorded it
	restarted.Status.LastBFDProfile = `{"metadata": {"name": "slow"}, "spec": {"detectMultiplier": 7}}`
	f.peers.Add(restarted)
	renamed := bgpPeer("renamed", v1alpha1.BGPPeerSpec{BFDProfile: "other"})
	renamed.Status = restarted.Status
	f.peers.Add(renamed)
	touched, _ = f.until(t, "profile deleted", func(v *view.View) bool { return len(v.BGPPeers) == 4 && len(f.source.bgp.gone) == 1 })
	if p := f.source.view.BGPPeers; slices.Contains(touched, "fast") || p["fast"].Wrong != "" || p["fast"].BFD.Multiplier != 5 ||
		p["restarted"].BFD.Multiplier != 7 || p["renamed"].Wrong != routes.NotConfigured {
		t.Errorf("touched %v: without the profiles: %+v", touched, p)
	}
	f.peers.Delete(restarted)
	f.peers.Delete(renamed)
	f.until(t, "peers gone", func(v *view.View) bool { return len(v.BGPPeers) == 2 })

	secret := v1alpha1.BGPPeerSpec{PasswordSecret: &v1alpha1.SecretReference{Name: "tor"}}
	f.peers.Modify(bgpPeer("plain", secret))
	f.until(t, "password", func(v *view.View) bool {
		if v.BGPPeers["plain"].Wrong != "" {
			t.Errorf("wrong before the Secrets were read: %+v", v.BGPPeers["plain"])
		}
		return v.BGPPeers["plain"].Password == "s3cret"
	})
	if strings.Contains(fmt.Sprintf("%+v %#v %+v", f.source.view.BGPPeers, f.source.view.BGPPeers, f.source.bgp.secrets["tor"]), "s3cret") {
		t.Error("the password can be printed")
	}
	f.secrets.Modify(password("tor", "other"))
	touched, _ = f.until(t, "password changed", func(v *view.View) bool { return v.BGPPeers["plain"].Password == "other" })
	if !slices.Equal(touched, []string{"plain"}) {
		t.Errorf("touched %v, want the one peer with the password", touched)
	}
	f.secrets.Modify(password("tor", "other\n"))
	f.until(t, "bad password", func(v *view.View) bool { return v.BGPPeers["plain"].Wrong == routes.PasswordMissing })
	f.secrets.Delete(password("tor", ""))
	f.until(t, "no password", func(v *view.View) bool { return strings.Contains(v.BGPPeers["plain"].Message, "has no Secret tor") })
	f.peers.Delete(bgpPeer("plain", secret))
	touched, _ = f.until(t, "peer gone", func(v *view.View) bool { return len(v.BGPPeers) == 1 })
	if !slices.Equal(touched, []string{"plain"}) {
		t.Errorf("touched %v", touched)
	}
}

// Advertisements have the values of the communities that they name. A name with no value, or with two, is missing.
func TestCommunitiesFollowTheirObjects(t *testing.T) {
	f := newBGPFeed(t)
	f.bgpAds.Add(&v1alpha1.BGPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.BGPAdvertisementSpec{
		AggregationLength: 24, AggregationLengthV6: 64, LocalPref: ptr.To[int64](4294967295),
		Communities: []string{"65000:1", "gold", "large:64512:4294967295:0", "silent"}, Peers: []string{"tor"},
	}})
	f.communities.Add(community("a", "gold=65000:2"))
	f.run(t)
	f.until(t, "first list", func(v *view.View) bool { return slices.Equal(v.BGPAdvertisements["web"].Missing, []string{"silent"}) })
	f.communities.Add(community("b", "silent=large:1:2:3", "gold=65000:2"))
	_, touched := f.until(t, "all there", func(v *view.View) bool { return v.BGPAdvertisements["web"].Missing == nil })
	want := view.BGPAdvertisement{
		Peers: []string{"tor"}, Length4: 24, Length6: 64,
		Attributes: view.Attributes{
			LocalPref: 4294967295, Communities: view.NewCommunitySet(65000<<16|1, 65000<<16|2),
			LargeCommunities: view.NewLargeCommunitySet(view.LargeCommunity{Global: 1, Local1: 2, Local2: 3}, view.LargeCommunity{Global: 64512, Local1: 4294967295}),
		},
	}
	if got := f.source.view.BGPAdvertisements["web"]; !touched || !equalAds(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	f.communities.Add(community("unused", "silver=1:1"))
	f.pools.Add(&v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "lan", Labels: map[string]string{"tier": "front"}}})
	if _, touched := f.until(t, "pool", func(v *view.View) bool { _, is := v.Pools["lan"]; return is }); !touched {
		t.Error("the labels of a pool touch no BGPAdvertisement")
	}
	f.communities.Modify(community("b", "silent=large:1:2:3", "gold=65000:3"))
	f.until(t, "two values", func(v *view.View) bool { return slices.Equal(v.BGPAdvertisements["web"].Missing, []string{"gold"}) })
	f.communities.Delete(community("a"))
	f.until(t, "one value again", func(v *view.View) bool { return v.BGPAdvertisements["web"].Missing == nil })
	f.bgpAds.Delete(&v1alpha1.BGPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
	f.until(t, "gone", func(v *view.View) bool { return len(v.BGPAdvertisements) == 0 })
}

func equalAds(a, b view.BGPAdvertisement) bool {
	return a.Attributes == b.Attributes && a.Length4 == b.Length4 && a.Length6 == b.Length6 && slices.Equal(a.Peers, b.Peers)
}

// TestPeerObject covers every field of a BGPPeer.
func TestPeerObject(t *testing.T) {
	second := func(n int) *metav1.Duration { return &metav1.Duration{Duration: time.Duration(n) * time.Second} }
	got := peerObjectOf(&v1alpha1.BGPPeerSpec{
		MyASN: 4294967295, DynamicASN: v1alpha1.DynamicExternal, LocalASN: ptr.To[int64](4200000000), PeerAddress: "2001:db8::1", PeerPort: 65535, SourceAddress: "2001:db8::2",
		HoldTime: second(9), KeepaliveTime: second(3), ConnectTime: second(5), RouterID: "192.0.2.9", NodeSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"rack": "a"}}},
		PasswordSecret: &v1alpha1.SecretReference{Name: "tor"}, BFDProfile: "fast", EBGPMultiHop: true, TTLSecurity: true, GracefulRestart: true, RestartTime: second(30), DualStackAddressFamily: true,
		MaxReceivedPrefixes: 20_000,
	})
	want := peerObject{secret: "tor", profile: "fast", peer: view.BGPPeer{
		Address: netip.MustParseAddr("2001:db8::1"), Port: 65535, MyASN: 4294967295, LocalASN: 4200000000, Dynamic: view.AnyExternal,
		Source: netip.MustParseAddr("2001:db8::2"), RouterID: netip.MustParseAddr("192.0.2.9"),
		HoldTime: 9 * time.Second, KeepaliveTime: 3 * time.Second, ConnectTime: 5 * time.Second, DualStack: true, MultiHop: true, TTLSecurity: true,
		GracefulRestart: true, RestartTime: 30 * time.Second, MaxReceivedPrefixes: 20_000,
		Nodes: []pools.Selector{{{Key: "rack", Operator: pools.In, Values: []string{"a"}}}},
	}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(peerObject{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	small := peerObjectOf(&v1alpha1.BGPPeerSpec{MyASN: 1, PeerASN: ptr.To[int64](2), PeerAddress: "fe80::1%eth0", GracefulRestart: true}).peer
	if small.Address.Zone() != "eth0" || small.Port != 179 || small.RestartTime != time.Minute || small.PeerASN != 2 || small.Source.IsValid() || small.RouterID.IsValid() {
		t.Errorf("got %+v", small)
	}
}

// Whether a BFD session is multihop: for an external peer by its own field, for an internal one by its profile. With
// ttlSecurity it may use the multihop port for a single hop.
func TestBFDHops(t *testing.T) {
	for _, tt := range []struct {
		what string
		peer view.BGPPeer
		hops uint8
		want uint8
	}{
		{"external", view.BGPPeer{MyASN: 1, PeerASN: 2}, 0, 0},
		{"external, a profile with minimumTtl", view.BGPPeer{MyASN: 1, PeerASN: 2}, 250, 0},
		{"multihop", view.BGPPeer{MyASN: 1, PeerASN: 2, MultiHop: true}, 0, 254},
		{"multihop with minimumTtl", view.BGPPeer{MyASN: 1, Dynamic: view.AnyExternal, MultiHop: true}, 250, 250},
		{"internal", view.BGPPeer{MyASN: 1, PeerASN: 1}, 0, 0},
		{"internal with minimumTtl", view.BGPPeer{MyASN: 1, PeerASN: 1}, 250, 250},
		{"internal, link-local", view.BGPPeer{MyASN: 1, PeerASN: 1, Address: netip.MustParseAddr("fe80::1%eth0")}, 250, 0},
		{"internal, dynamic, with minimumTtl", view.BGPPeer{MyASN: 1, Dynamic: view.AnyInternal}, 250, 250},
		{"external, ttlSecurity", view.BGPPeer{MyASN: 1, PeerASN: 2, TTLSecurity: true}, 0, 0},
		{"external, ttlSecurity, with minimumTtl", view.BGPPeer{MyASN: 1, PeerASN: 2, TTLSecurity: true}, 250, 255},
		{"internal, ttlSecurity, with minimumTtl", view.BGPPeer{MyASN: 1, PeerASN: 1, TTLSecurity: true}, 250, 255},
		{"link-local, ttlSecurity", view.BGPPeer{MyASN: 1, PeerASN: 2, TTLSecurity: true, Address: netip.MustParseAddr("fe80::1%eth0")}, 250, 0},
	} {
		if got := (profileObject{hops: tt.hops}).minimumTTL(tt.peer); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.what, got, tt.want)
		}
	}
}

func TestBadPasswords(t *testing.T) {
	for text, message := range map[string]string{
		"": "has no key password", "with a line feed\n": "line feed", "tab\t": "control character", strings.Repeat("x", 81): "TCP MD5 takes 80",
		strings.Repeat("x", 80): "", "pass phrase": "", "passwört": "",
	} {
		if got := badPassword(view.Secret(text)); (got == "") != (message == "") || !strings.Contains(got, message) {
			t.Errorf("%q: %q, want %q", text, got, message)
		}
	}
}

// answers is an API server that responds to every list with an error.
type answers struct{ err atomic.Pointer[error] }

func (a *answers) List(metav1.ListOptions) (runtime.Object, error) {
	if err := a.err.Load(); *err != nil {
		return nil, *err
	}
	return &metav1.PartialObjectMetadataList{}, nil
}

func (a *answers) Watch(metav1.ListOptions) (apiwatch.Interface, error) {
	return nil, errors.New("no watch")
}

// The first View waits for a response of the API server about the BGP kinds. A missing kind, or one that stays
// forbidden, blocks nothing.
func TestFirstViewWaitsForBGP(t *testing.T) {
	resource := v1alpha1.GroupVersion.WithResource("bgppeers").GroupResource()
	for _, tt := range []struct {
		what    string
		err     error
		settled bool
	}{
		{"no such kind", apierrors.NewNotFound(resource, ""), true},
		{"forbidden", apierrors.NewForbidden(resource, "", errors.New("no role")), true},
		{"away", errors.New("connection refused"), false},
		{"starting", apierrors.NewServiceUnavailable("not yet"), false},
	} {
		synctest.Test(t, func(t *testing.T) {
			from := &answers{}
			from.err.Store(&tt.err)
			pools := fcache.NewFakeControllerSource()
			defer pools.Shutdown()
			s, err := newSource(bgpWatches(from, from, from, from, pools, from), func() {}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx) }()
			defer func() { stop(); <-done }()
			synctest.Wait()
			if _, _, ok := s.Observe(); ok {
				t.Errorf("%s: accepted with the first list", tt.what)
			}
			time.Sleep(time.Minute)
			if _, _, ok := s.Observe(); ok != tt.settled {
				t.Errorf("%s: after a minute there is a View: %v, want %v", tt.what, ok, tt.settled)
			}
		})
	}
}

// The age of a BGPPeer selects which of two has a session: trim keeps it.
func TestPeerKeepsItsAge(t *testing.T) {
	o := bgpPeer("tor", v1alpha1.BGPPeerSpec{})
	o.CreationTimestamp = metav1.NewTime(time.Unix(1700000000, 0))
	trimmed, err := trim(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, got := convertPeer(trimmed); got.(peerObject).peer.Created != 1700000000 {
		t.Errorf("got %+v, want it created at 1700000000", got)
	}
}

// A View is consistent: it has every peer, with the password, or waits.
func TestFirstViewHasPasswords(t *testing.T) {
	peer := bgpPeer("tor", v1alpha1.BGPPeerSpec{PasswordSecret: &v1alpha1.SecretReference{Name: "tor"}})
	for _, tt := range []struct {
		what          string
		before, while func(*Source)
	}{
		{"Secrets come meanwhile", func(s *Source) { s.put(convertPeer(peer)) }, func(*Source) {}},
		{"a peer that needs them comes meanwhile", func(*Source) {}, func(s *Source) { s.put(convertPeer(peer)) }},
	} {
		s := newBGPFeed(t).source
		s.synced, s.optional = nil, nil
		tt.before(s)
		asked := false
		s.secrets.synced = func() bool {
			if asked {
				return true
			}
			asked = true
			tt.while(s)
			s.put(convertSecret(password("tor", "s3cret")))
			return false // the state at the time of the call
		}
		for range 2 {
			v, _, ok := s.Observe()
			if ok && v.BGPPeers["tor"].Password != "s3cret" {
				t.Errorf("%s: a View with the peers %+v", tt.what, v.BGPPeers)
			}
			if ok {
				break
			}
		}
		if !s.begun {
			t.Errorf("%s: no View although all is there", tt.what)
		}
	}
}

// A refusal counts after several in a row, except that of a built-in kind, which an API server either has or lacks.
func TestRefusalMustLast(t *testing.T) {
	resource := v1alpha1.GroupVersion.WithResource("bgppeers").GroupResource()
	none, forbidden := apierrors.NewNotFound(resource, ""), apierrors.NewForbidden(resource, "", errors.New("no role"))
	away := errors.New("connection refused")
	for _, tt := range []struct {
		what    string
		errs    []error
		builtIn bool
		counts  bool
	}{
		{"three times", []error{none, none, none}, false, false},
		{"four times", []error{none, none, none, none}, false, true},
		{"one or the other", []error{forbidden, none, forbidden, none}, false, true},
		{"away in between", []error{none, none, away, none, none}, false, false},
		{"there is none of Kubernetes' own", []error{none}, true, true},
		{"one of Kubernetes' own is forbidden once", []error{forbidden}, true, false},
	} {
		changes := 0
		r := &refusal{changed: func() { changes++ }, builtIn: tt.builtIn}
		for _, err := range tt.errs {
			r.record(err)
		}
		if got := r.why() != ""; got != tt.counts || (changes > 0) != tt.counts {
			t.Errorf("%s: counts: %v, reported %d times, want %v", tt.what, got, changes, tt.counts)
		}
	}
}

// A refused kind is reported until it has been listed, but not a built-in one, which an older Kubernetes lacks.
func TestRefusedKinds(t *testing.T) {
	listed := false
	kind := func(builtIn bool, err error) optionalKind {
		r := &refusal{changed: func() {}, builtIn: builtIn}
		for range refusedFor {
			r.record(err)
		}
		return optionalKind{func() bool { return listed }, r}
	}
	resource := v1alpha1.GroupVersion.WithResource("bgppeers").GroupResource()
	s := &Source{optional: []optionalKind{
		kind(false, apierrors.NewForbidden(resource, "", errors.New("no role"))), kind(false, errors.New("connection refused")),
		kind(true, apierrors.NewNotFound(resource, "")),
	}}
	if got := s.Refused(); len(got) != 1 || !strings.Contains(got[0], "bgppeers.ironlb.io is forbidden") {
		t.Errorf("refused: %q", got)
	}
	listed = true
	if got := s.Refused(); len(got) > 0 {
		t.Errorf("refused once it is listed: %q", got)
	}
}
