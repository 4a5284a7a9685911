package kube

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// outage is an API server that can be unavailable, fully or for one kind, with a cluster state.
type outage struct {
	feed
	away map[string]*atomic.Bool
}

// gate lets lists pass while the server is available.
type gate struct {
	*fcache.FakeControllerSource
	away *atomic.Bool
}

var errAway = errors.New("connection refused")

func (g gate) List(o metav1.ListOptions) (runtime.Object, error) {
	if g.away.Load() {
		return nil, errAway
	}
	return g.FakeControllerSource.List(o)
}

// newOutage returns an outage whose cluster has a managed Service with all related objects. It must be called in a
// bubble.
func newOutage(t *testing.T) *outage {
	f := &outage{away: map[string]*atomic.Bool{}}
	for _, source := range []**fcache.FakeControllerSource{&f.services, &f.slices, &f.nodes, &f.vips, &f.ads, &f.cidrs, &f.pools} {
		*source = fcache.NewFakeControllerSource()
		t.Cleanup((*source).Broadcaster.Shutdown)
	}
	f.services.Add(ours(nil))
	f.slices.Add(slice("web-1", "192.0.2.10", "192.0.2.11"))
	f.nodes.Add(fullNode(""))
	vip := virtualIP()
	vip.Generation = 7
	vip.Status.Node = "a"
	f.vips.Add(vip)
	f.ads.Add(&v1alpha1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: v1alpha1.L2AdvertisementSpec{
		NodeSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"rack": "1"}}}, Interfaces: []string{"eth0"}}})
	f.pools.Add(&v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "main", Labels: map[string]string{"zone": "x"}}})
	f.cidrs.Add(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"192.0.2.128/25"}}})
	return f
}

func fullNode(heartbeat string) *corev1.Node {
	node := readyNode("a", heartbeat)
	node.Labels = map[string]string{"rack": "1"}
	node.Spec.PodCIDRs = []string{"198.51.100.0/24"}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	return node
}

// process is a running Source, its log, and its stop function.
type process struct {
	*Source
	log  *lines
	stop func()
}

// lines is a log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.buf.Write(b) }

func (l *lines) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.buf.String() }

func head() snapshotHead {
	return snapshotHead{Format: snapshotFormat, Node: "a", Cluster: "c", ServiceProxy: true}
}

// start starts a process on a node while the server is unavailable for these kinds; none: it is available.
func (f *outage) start(t *testing.T, path string, away ...string) *process {
	t.Helper()
	var all []watch
	for _, w := range f.watches(true) {
		if w.kind == kindPool {
			w.convert, w.optional = convertPool, false
		}
		f.away[w.kind] = new(atomic.Bool)
		w.from = gate{w.from.(*fcache.FakeControllerSource), f.away[w.kind]}
		all = append(all, w)
	}
	for _, kind := range away {
		f.away[kind].Store(true)
	}
	p := &process{log: &lines{}}
	log := slog.New(slog.NewTextHandler(p.log, nil))
	var err error
	if p.Source, err = newSource(all, func() {}, log); err != nil {
		t.Fatal(err)
	}
	p.snapshotTo(path, head, all, log)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.stop)
	return p
}

var everyKind = []string{kindService, kindSlice, kindNode, kindVIP, kindAdvertisement, kindPool, kindServiceCIDR}

func (f *outage) back(kinds ...string) {
	for _, kind := range kinds {
		f.away[kind].Store(false)
	}
}

// observed returns a copy of the View.
func (p *process) observed(t *testing.T) (view.View, view.Touched) {
	t.Helper()
	synctest.Wait()
	v, touched, ok := p.Observe()
	if !ok {
		t.Fatalf("no View:\n%s", p.log)
	}
	out := *v
	to := reflect.ValueOf(&out).Elem()
	for i := range to.NumField() {
		if m := to.Field(i); m.Kind() == reflect.Map && !m.IsNil() {
			c := reflect.MakeMap(m.Type())
			for _, key := range m.MapKeys() {
				c.SetMapIndex(key, m.MapIndex(key))
			}
			m.Set(c)
		}
	}
	return out, touched
}

// written returns the path of a snapshot of the cluster, and its View.
func written(t *testing.T) (path string, was view.View) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "state", "snapshot")
	p := newOutage(t).start(t, path)
	time.Sleep(time.Second)
	was, _ = p.observed(t)
	time.Sleep(snapshotEvery)
	p.stop()
	if p.Snapshot().IsZero() {
		t.Fatalf("no snapshot is written:\n%s", p.log)
	}
	return path, was
}

// aMoment is longer than a reflector waits before it retries.
const aMoment = 2 * time.Minute

// Without the API server the View equals the snapshot. When all lists have come only the differences are touched.
func TestSnapshotIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, was := written(t)
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
			t.Errorf("the file is %v, %v", info, err)
		}
		f := newOutage(t)
		f.nodes.Add(readyNode("b", ""))
		f.slices.Modify(slice("web-1", "192.0.2.10"))
		f.ads.Delete(&v1alpha1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "all"}})
		p := f.start(t, path, everyKind...)
		p.SetLinks(map[string]view.Link{"eth0": {Name: "eth0"}})
		time.Sleep(snapshotAfter - time.Millisecond)
		if _, _, ok := p.Observe(); ok {
			t.Error("a View before the lists had their time")
		}
		time.Sleep(time.Second)
		v, _ := p.observed(t)
		if len(v.Links) != 1 || !v.FromSnapshot {
			t.Errorf("FromSnapshot %v, links %v", v.FromSnapshot, v.Links)
		}
		v.FromSnapshot, v.Links = false, was.Links
		vip := was.VIPs["203.0.113.4"]
		if vip.ReportedOwner != "a" {
			t.Errorf("the status names %q", vip.ReportedOwner)
		}
		vip.ReportedOwner = "" // so that it is probed
		was.VIPs["203.0.113.4"] = vip
		if !reflect.DeepEqual(v, was) {
			t.Errorf("from the snapshot\n%+v\nwant\n%+v", v, was)
		}
		if _, fromSnapshot := p.FromSnapshot(); !fromSnapshot || !strings.Contains(p.log.String(), "using the on-disk snapshot") {
			t.Errorf("the log lacks that:\n%s", p.log)
		}

		f.back(kindService, kindSlice, kindNode, kindVIP, kindAdvertisement)
		time.Sleep(aMoment)
		p.SetLinks(map[string]view.Link{})
		v, touched := p.observed(t)
		if !v.FromSnapshot || len(v.Nodes) != 1 || len(touched.Nodes)+len(touched.Services) > 0 || len(touched.Links) != 1 {
			t.Errorf("half the lists: %+v, touched %+v", v, touched)
		}
		file, _ := os.ReadFile(path)
		f.back(everyKind...)
		time.Sleep(aMoment)
		v, touched = p.observed(t)
		if v.FromSnapshot || len(v.Nodes) != 2 || len(v.Advertisements) != 0 || len(v.Slices[web]["web-1"].Endpoints) != 1 || v.VIPs["203.0.113.4"].ReportedOwner != "a" {
			t.Errorf("every list: %+v", v)
		}
		want := view.Touched{Nodes: set("b"), VIPs: set("203.0.113.4"), Services: set(web), Advertisements: true}
		if !same(touched, want) {
			t.Errorf("touched %+v, want %+v", touched, want)
		}
		if _, fromSnapshot := p.FromSnapshot(); !fromSnapshot {
			t.Error("no longer from the snapshot before what the lists brought was planned")
		}
		over := false
		p.snapshot.over = func() { over = true }
		if _, touched := p.observed(t); touched.Any() || !over {
			t.Errorf("touched again: %+v; over: %v", touched, over)
		}
		if _, fromSnapshot := p.FromSnapshot(); fromSnapshot {
			t.Error("still from the snapshot")
		}
		time.Sleep(2 * snapshotAgain)
		if now, err := os.ReadFile(path); err != nil || bytes.Equal(file, now) {
			t.Errorf("the file is as before: %v", err)
		}
	})
}

func set[K comparable](keys ...K) map[K]struct{} {
	out := map[K]struct{}{}
	for _, key := range keys {
		out[key] = struct{}{}
	}
	return out
}

func same(a, b view.Touched) bool {
	return maps.Equal(a.Nodes, b.Nodes) && maps.Equal(a.VIPs, b.VIPs) && maps.Equal(a.Services, b.Services) &&
		a.Advertisements == b.Advertisements && a.ServiceNetworks == b.ServiceNetworks && a.All == b.All
}

// The View waits until the API server has responded about every optional kind. If it refuses one, the snapshot's
// content stays until it no longer refuses. Meanwhile no snapshot without that kind replaces the file.
func TestSnapshotOfWhatComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, _ := written(t)
		before, _ := os.ReadFile(path)
		f := newOutage(t)
		p := f.start(t, path, everyKind...)
		time.Sleep(snapshotAfter + time.Second)
		p.observed(t)
		f.back(everyKind[:len(everyKind)-1]...)
		time.Sleep(aMoment)
		if v, _ := p.observed(t); !v.FromSnapshot {
			t.Error("no longer from the snapshot before every initial list is complete")
		}
		for _, o := range p.optional {
			o.refused.record(apierrors.NewNotFound(schema.GroupResource{Resource: kindServiceCIDR}, ""))
		}
		time.Sleep(aMoment)
		v, touched := p.observed(t)
		if v.FromSnapshot || len(v.ServiceNetworks) != 1 || touched.ServiceNetworks {
			t.Errorf("%+v, touched %+v", v, touched)
		}
		f.nodes.Add(readyNode("b", ""))
		time.Sleep(aMoment)
		if v, _ := p.observed(t); len(v.Nodes) != 2 || len(v.ServiceNetworks) != 1 {
			t.Errorf("it does not follow: %+v", v)
		}
		if now, _ := os.ReadFile(path); !bytes.Equal(before, now) {
			t.Error("the snapshot is replaced by one that lacks a kind")
		}
		f.back(kindServiceCIDR)
		time.Sleep(aMoment)
		if v, touched := p.observed(t); len(v.ServiceNetworks) != 1 || touched.ServiceNetworks {
			t.Errorf("%+v, touched %+v", v, touched)
		}
		time.Sleep(aMoment)
		if now, _ := os.ReadFile(path); bytes.Equal(before, now) {
			t.Error("no snapshot is written any more")
		}
	})
}

// A server that is available in time takes precedence over the file.
func TestSnapshotIsNotNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, _ := written(t)
		f := newOutage(t)
		f.nodes.Add(readyNode("b", ""))
		p := f.start(t, path)
		time.Sleep(aMoment)
		if v, _ := p.observed(t); v.FromSnapshot || len(v.Nodes) != 2 || p.log.String() != "" {
			t.Errorf("%+v\n%s", v, p.log)
		}
	})
}

// Changes are written within five seconds, and at least five seconds apart. Without a change nothing is written, and a
// last change is written at the end.
func TestSnapshotIsWrittenSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "snapshot")
		f := newOutage(t)
		p := f.start(t, path)
		time.Sleep(time.Minute)
		var writes []time.Time
		record := func() {
			if at := p.Snapshot(); len(writes) == 0 || !at.Equal(writes[len(writes)-1]) {
				writes = append(writes, at)
			}
		}
		record()
		for i := range 300 {
			f.nodes.Modify(fullNode(fmt.Sprint(i))) // a heartbeat
			time.Sleep(100 * time.Millisecond)
			record()
		}
		if len(writes) != 1 {
			t.Errorf("written %v without a change", writes)
		}
		for i := range 300 {
			f.slices.Modify(slice("web-1", fmt.Sprintf("192.0.2.%d", i%200+1)))
			time.Sleep(100 * time.Millisecond)
			record()
		}
		for i := 2; i < len(writes); i++ {
			if d := writes[i].Sub(writes[i-1]); d < snapshotEvery {
				t.Errorf("written after %v again", d)
			}
		}
		if len(writes) < 5 {
			t.Errorf("written %d times in half a minute of changes", len(writes))
		}
		time.Sleep(aMoment)
		f.slices.Modify(slice("web-1", "192.0.2.250"))
		time.Sleep(time.Second)
		p.stop()
		p = newOutage(t).start(t, path, everyKind...)
		time.Sleep(aMoment)
		if v, _ := p.observed(t); v.Slices[web]["web-1"].Endpoints[0].Addr.String() != "192.0.2.250" {
			t.Errorf("the last change is lost: %+v", v.Slices)
		}
	})
}

// A file that is damaged or foreign is reported and not used.
func TestSnapshotIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, file []byte) []byte
		want   string
	}{
		"none":         {func(*testing.T, []byte) []byte { return nil }, "there is no snapshot"},
		"empty":        {func(*testing.T, []byte) []byte { return []byte{} }, "damaged"},
		"cut":          {func(_ *testing.T, f []byte) []byte { return f[:len(f)-1] }, "damaged"},
		"longer":       {func(_ *testing.T, f []byte) []byte { return append(f, 0) }, "damaged"},
		"a bit":        {func(_ *testing.T, f []byte) []byte { f[len(f)/2] ^= 4; return f }, "damaged"},
		"text":         {func(*testing.T, []byte) []byte { return []byte("none\n") }, "damaged"},
		"format":       {rehead(func(h *snapshotHead) { h.Format++ }), "of format 4"},
		"node":         {rehead(func(h *snapshotHead) { h.Node = "b" }), `of node \"b\"`},
		"cluster":      {rehead(func(h *snapshotHead) { h.Cluster = "d" }), "of a cluster with another certificate authority"},
		"proxy":        {rehead(func(h *snapshotHead) { h.ServiceProxy = false }), "serviceProxy: false"},
		"another kind": {rehead(func(h *snapshotHead) { h.Kinds[2].Kind = "secrets" }), "in place of nodes"},
		"fewer kinds":  {rehead(func(h *snapshotHead) { h.Kinds = h.Kinds[1:] }), "kinds of objects"},
		"fewer":        {rehead(func(h *snapshotHead) { h.Kinds[6].Count-- }), "more after its end"},
		"more":         {rehead(func(h *snapshotHead) { h.Kinds[6].Count++ }), "damaged"},
		"new field": {replain(func(plain []byte) []byte {
			return bytes.Replace(plain, []byte(`"interfaces"`), []byte(`"interfacez"`), 1)
		}), `unknown field \"spec.interfacez\"`},
		"long line": {replain(func([]byte) []byte { return make([]byte, lineMost+1) }), "token too long"},
		"no end":    {replain(func(plain []byte) []byte { return plain[:len(plain)/2] }), "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path, _ := written(t)
				file, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if file = c.change(t, file); file == nil {
					err = os.Remove(path)
				} else {
					err = os.WriteFile(path, file, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
				f := newOutage(t)
				p := f.start(t, path, everyKind...)
				time.Sleep(time.Minute)
				if _, _, ok := p.Observe(); ok {
					t.Error("it is used")
				}
				if log := p.log.String(); strings.Count(log, c.want) != 1 || !strings.Contains(log, path) {
					t.Errorf("got log\n%swant %s", log, c.want)
				}
				f.back(everyKind...)
				time.Sleep(aMoment)
				if v, _ := p.observed(t); v.FromSnapshot || len(v.Services) != 1 {
					t.Errorf("with the server back %+v", v)
				}
				if _, _, err := readSnapshot(path, head(), p.snapshot.watches); err != nil {
					t.Errorf("it is not replaced: %v", err)
				}
			})
		})
	}
}

// rehead changes the head of a file.
func rehead(change func(*snapshotHead)) func(*testing.T, []byte) []byte {
	return replain(func(plain []byte) []byte {
		line, objects, _ := bytes.Cut(plain, []byte("\n"))
		var h snapshotHead
		if err := json.Unmarshal(line, &h); err != nil {
			panic(err)
		}
		change(&h)
		line, err := json.Marshal(h)
		if err != nil {
			panic(err)
		}
		return slices.Concat(line, []byte("\n"), objects)
	})
}

// replain changes the uncompressed content of a file.
func replain(change func([]byte) []byte) func(*testing.T, []byte) []byte {
	return func(t *testing.T, file []byte) []byte {
		z, err := gzip.NewReader(bytes.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		changed := change(bytes.Clone(plain))
		if bytes.Equal(changed, plain) {
			t.Fatal("nothing is changed")
		}
		out := &bytes.Buffer{}
		if err := compress(out, func(to io.Writer) error { _, err := to.Write(changed); return err }); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
}

// A watch of Secrets, for whatever purpose, never writes them to a disk.
func TestSnapshotHasNoSecrets(t *testing.T) {
	s := &Source{}
	convert := func(any) (ref, any) { return ref{}, nil }
	s.snapshotTo("", head, []watch{{kind: "secrets", object: &corev1.Secret{}, convert: convert}, {kind: kindNode, object: &corev1.Node{}, convert: convert}}, nil)
	if len(s.snapshot.watches) != 1 || s.snapshot.watches[0].kind != kindNode {
		t.Errorf("it has %v", kindsOf(s.snapshot.watches))
	}
}

// A failed write of the file is logged once, and retried.
func TestSnapshotCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		if err := os.WriteFile(dir, nil, 0o600); err != nil { // in the way
			t.Fatal(err)
		}
		f := newOutage(t)
		p := f.start(t, filepath.Join(dir, "snapshot"))
		time.Sleep(10 * snapshotAgain)
		if log := p.log.String(); strings.Count(log, "cannot write the snapshot") != 1 || !p.Snapshot().IsZero() {
			t.Errorf("got log\n%s", log)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * snapshotAgain)
		if log := p.log.String(); strings.Count(log, "is written again") != 1 || p.Snapshot().IsZero() {
			t.Errorf("got log\n%s", log)
		}
		left, err := os.ReadDir(dir)
		if err != nil || len(left) != 1 {
			t.Errorf("in the directory: %v, %v", left, err)
		}
	})
}

// Nothing is written to the API on the basis of a snapshot.
func TestReporterFromSnapshotWritesNothing(t *testing.T) {
	writes, fromSnapshot := 0, true
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	if err := store.Add(virtualIP()); err != nil {
		t.Fatal(err)
	}
	r := newReporter(store, func(context.Context, string, []byte) error { writes++; return nil }, slog.New(slog.DiscardHandler))
	r.fromSnapshot = func() bool { return fromSnapshot }
	r.Report(map[string]report.VIPStatus{"203.0.113.4": {Reason: view.NodeNotAlive}})
	if r.write(t.Context()); writes != 0 {
		t.Error("written by a snapshot")
	}
	fromSnapshot = false
	if r.write(t.Context()); writes != 1 {
		t.Errorf("written %d times", writes)
	}
}

// A cluster is identified by its certificate authority, in any form of configuration, and else by its address.
func TestClusterOf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	of := func(c rest.Config) string {
		t.Helper()
		name, err := clusterOf(&c)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	one := of(rest.Config{Host: "https://192.0.2.1", TLSClientConfig: rest.TLSClientConfig{CAFile: file}})
	if of(rest.Config{Host: "https://192.0.2.2", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("one")}}) != one {
		t.Error("another address is another cluster")
	}
	if of(rest.Config{Host: "https://192.0.2.1", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("two")}}) == one {
		t.Error("another authority is the same cluster")
	}
	if of(rest.Config{Host: "https://192.0.2.1"}) == of(rest.Config{Host: "https://192.0.2.2"}) {
		t.Error("without an authority all clusters are one")
	}
	if _, err := clusterOf(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: file + "-none"}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is missing: %v", err)
	}
}
