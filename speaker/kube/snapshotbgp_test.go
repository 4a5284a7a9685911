package kube

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

const secretText = "t0p-s3cret"

// startBGP starts a process that watches the BGP kinds: one peer without a password, one with a password and BFD, and
// an advertisement with a community. It must be called in a bubble. back makes the API server available.
func startBGP(t *testing.T, path string, isAway bool) (p *process, back func()) {
	t.Helper()
	away := new(atomic.Bool)
	away.Store(isAway)
	var gates [6]gate
	for i := range gates {
		gates[i] = gate{fcache.NewFakeControllerSource(), away}
		t.Cleanup(gates[i].Broadcaster.Shutdown)
	}
	peers, ads, profiles, communities, pools, secrets := gates[0], gates[1], gates[2], gates[3], gates[4], gates[5]
	peers.Add(bgpPeer("plain", v1alpha1.BGPPeerSpec{BFDProfile: "fast"}))
	peers.Add(bgpPeer("locked", v1alpha1.BGPPeerSpec{PeerAddress: "192.0.2.2", RouterID: "192.0.2.77", PasswordSecret: &v1alpha1.SecretReference{Name: "tor"}}))
	profiles.Add(profile(3))
	communities.Add(community("ours", "gold=65000:1"))
	ads.Add(&v1alpha1.BGPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: v1alpha1.BGPAdvertisementSpec{Communities: []string{"gold"}}})
	pools.Add(&v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "main"}})
	secrets.Add(password("tor", secretText))
	p = &process{log: &lines{}}
	log := slog.New(slog.NewTextHandler(p.log, nil))
	watches := bgpWatches(peers, ads, profiles, communities, pools, secrets)
	var err error
	if p.Source, err = newSource(watches, func() {}, log); err != nil {
		t.Fatal(err)
	}
	p.snapshotTo(path, head, watches, log)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	p.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	return p, func() { away.Store(false) }
}

// The snapshot has everything that BGP needs except passwords. A peer with a password is recorded as such: it does not
// appear without one.
func TestSnapshotOfBGP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "snapshot")
		p, _ := startBGP(t, path, false)
		time.Sleep(time.Second)
		was, _ := p.observed(t)
		if locked := was.BGPPeers["locked"]; locked.Password != secretText || locked.Wrong != "" {
			t.Fatalf("peers %+v", was.BGPPeers)
		}
		time.Sleep(2 * snapshotEvery)
		p.stop()
		if plain := unzipped(t, path); bytes.Contains(plain, []byte(secretText)) || !bytes.Contains(plain, []byte("locked")) {
			t.Error("the file has a password, or lacks a peer")
		}

		p, back := startBGP(t, path, true)
		defer p.stop()
		time.Sleep(2 * snapshotAfter)
		v, _ := p.observed(t)
		if !v.FromSnapshot {
			t.Fatalf("no View from the snapshot:\n%s", p.log)
		}
		locked := v.BGPPeers["locked"]
		if locked.Wrong != routes.PasswordUnknown || locked.Password != "" || !strings.Contains(locked.Message, "ironlb-bgp/tor") ||
			locked.RouterID != was.BGPPeers["locked"].RouterID {
			t.Errorf("a peer with a password: %+v", locked)
		}
		if got := v.BGPPeers["plain"]; !reflect.DeepEqual(got, was.BGPPeers["plain"]) || got.BFD.Multiplier != 3 {
			t.Errorf("a peer without: %+v, want %+v", got, was.BGPPeers["plain"])
		}
		if !p.secrets.isNeeded() {
			t.Error("Secrets are not asked for until the peers are listed, which may be never")
		}
		if !reflect.DeepEqual(v.BGPAdvertisements, was.BGPAdvertisements) || len(v.BGPAdvertisements["all"].Attributes.Communities.Communities()) != 1 {
			t.Errorf("advertisements %+v, want %+v", v.BGPAdvertisements, was.BGPAdvertisements)
		}

		back()
		time.Sleep(aMoment)
		v, touched := p.observed(t)
		if v.FromSnapshot || !reflect.DeepEqual(v.BGPPeers, was.BGPPeers) {
			t.Errorf("FromSnapshot %v, peers %+v, want %+v", v.FromSnapshot, v.BGPPeers, was.BGPPeers)
		}
		if !touched.FromSnapshot {
			t.Error("that the View is no longer from the snapshot is no news")
		}
		if !reflect.DeepEqual(touched.BGPPeers, set("locked")) {
			t.Errorf("touched are the peers %v, want that with the password", touched.BGPPeers)
		}
	})
}

// A password that is about to be read is awaited silently, and the known state of the peer stays.
func TestPasswordIsAwaited(t *testing.T) {
	unread := secretsState{namespace: v1alpha1.PasswordNamespace, unread: true}
	touched := func() *view.Touched { return &view.Touched{BGPPeers: map[string]struct{}{}} }
	b, v := newBGPObjects(), view.New()
	b.fold(convertPeer(bgpPeer("was", v1alpha1.BGPPeerSpec{})))
	b.resolve(v, touched(), secretsState{namespace: v1alpha1.PasswordNamespace})
	was := v.BGPPeers["was"]
	for _, name := range []string{"was", "new"} {
		b.fold(convertPeer(bgpPeer(name, v1alpha1.BGPPeerSpec{PasswordSecret: &v1alpha1.SecretReference{Name: "tor"}})))
	}
	got := touched()
	b.resolve(v, got, unread)
	if len(got.BGPPeers) > 0 || len(v.BGPPeers) != 1 || !reflect.DeepEqual(v.BGPPeers["was"], was) {
		t.Errorf("touched %v, peers %+v", got.BGPPeers, v.BGPPeers)
	}
	v.FromSnapshot = true
	b.resolve(v, touched(), unread)
	if v.BGPPeers["new"].Wrong != routes.PasswordUnknown || !reflect.DeepEqual(v.BGPPeers["was"], was) {
		t.Errorf("from a snapshot: %+v", v.BGPPeers)
	}
}

func unzipped(t *testing.T, path string) []byte {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}
