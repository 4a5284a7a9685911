package ccm

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/ccm/rig"
	"github.com/ironlb/ironlb/test/rare"
)

// TestRestart restarts ironlb-ccm with many Services that it has assigned. It writes nothing: no Service, no Event, no
// pool. test/bench/ccm measures the time this takes.
func TestRestart(t *testing.T) {
	const pool = `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: restart}
spec: {addresses: ["2001:db8:1::/112"]}
---
# Otherwise each Service gets an Event that no node announces its address.
apiVersion: ironlb.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: restart}
spec: {}
`
	services := rare.Rounds(300, 5000)
	f := use(t, "restart")
	ctx := f.ctx
	f.apply(pool)
	f.must(f.AddNodes(ctx, 3))
	first := f.start(alone)
	f.must(f.Serve(ctx, f.namespace, services, nil))
	before, _, err := f.Settled(ctx)
	f.must(err)
	f.must(first.Kill())
	versions := f.versions()

	second := f.start(alone)
	after, _, err := f.Settled(ctx)
	f.must(err)
	if more := after.Since(before).Of(); len(more) > 0 {
		t.Errorf("a restart with %d assigned Services wrote: %v", services, more)
	}
	changed := 0
	for name, v := range f.versions() {
		if versions[name] != v {
			changed++
		}
	}
	if changed > 0 {
		t.Errorf("%d Services were written to", changed)
	}

	// It serves: a new Service gets a free address.
	_, events, err := f.Follow(ctx, f.namespace)
	f.must(err)
	f.create("one-more", nil)
	_, err = rig.Await(ctx, events, 1, rig.Served)
	f.must(err)
	f.must(f.unique())
	f.stop(second)
}

// versions lists the versions of all Services and Events.
func (f *fixture) versions() map[string]string {
	f.Helper()
	versions := map[string]string{}
	services, err := f.Kube.CoreV1().Services(metav1.NamespaceAll).List(f.ctx, metav1.ListOptions{})
	f.must(err)
	for _, s := range services.Items {
		versions["Service "+s.Namespace+"/"+s.Name] = s.ResourceVersion
	}
	events, err := f.Kube.CoreV1().Events(metav1.NamespaceAll).List(f.ctx, metav1.ListOptions{})
	f.must(err)
	for _, e := range events.Items {
		versions["Event "+e.Namespace+"/"+e.Name] = e.ResourceVersion
	}
	return versions
}

// unique returns an error for Services that have the same address.
func (f *fixture) unique() error {
	list, err := f.Kube.CoreV1().Services(metav1.NamespaceAll).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	holder := map[string]*v1.Service{}
	for i := range list.Items {
		for _, in := range list.Items[i].Status.LoadBalancer.Ingress {
			if other := holder[in.IP]; other != nil {
				return fmt.Errorf("%s is held by %s and %s", in.IP, other.Name, list.Items[i].Name)
			}
			holder[in.IP] = &list.Items[i]
		}
	}
	return nil
}
