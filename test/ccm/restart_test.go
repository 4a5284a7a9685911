package ccm

import (
	"context"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/ccm/rig"
	"github.com/ironlb/ironlb/test/rare"
)

// TestRestart restarts ironlb-ccm with many Services that it has assigned. It writes nothing: no Service, no Event, no
// pool. test/bench/ccm measures the time this takes.
func TestRestart(t *testing.T) {
	const (
		namespace = "restart"
		pool      = `
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
	)
	services := rare.Rounds(300, 5000)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	r := rig.Start(t, rig.Config{Audit: true})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	start := func() *rig.CCM {
		t.Helper()
		c, err := r.StartCCM(ctx, firstPort, "--leader-elect=false")
		must(err)
		must(c.WaitReady(ctx, time.Minute))
		return c
	}
	must(r.Apply(ctx, pool))
	must(r.AddNodes(ctx, 3))
	first := start()
	must(r.Serve(ctx, namespace, services, nil))
	before, _, err := r.Settled(ctx)
	must(err)
	must(first.Kill())
	versions := versionsOf(ctx, t, r)

	second := start()
	after, _, err := r.Settled(ctx)
	must(err)
	if more := after.Since(before).Of(); len(more) > 0 {
		t.Errorf("a restart with %d assigned Services wrote: %v", services, more)
	}
	changed := 0
	for name, v := range versionsOf(ctx, t, r) {
		if versions[name] != v {
			changed++
		}
	}
	if changed > 0 {
		t.Errorf("%d Services were written to", changed)
	}

	// It serves: a new Service gets a free address.
	_, events, err := r.Follow(ctx, namespace)
	must(err)
	_, err = r.Kube.CoreV1().Services(namespace).Create(ctx, rig.Service(namespace, "one-more", nil), metav1.CreateOptions{})
	must(err)
	_, err = rig.Await(ctx, events, 1, rig.Served)
	must(err)
	must(unique(ctx, r))
	must(second.Stop(10 * time.Second))
}

// versionsOf lists the versions of all Services and Events.
func versionsOf(ctx context.Context, t *testing.T, r *rig.Rig) map[string]string {
	t.Helper()
	versions := map[string]string{}
	services, err := r.Kube.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range services.Items {
		versions["Service "+s.Namespace+"/"+s.Name] = s.ResourceVersion
	}
	events, err := r.Kube.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events.Items {
		versions["Event "+e.Namespace+"/"+e.Name] = e.ResourceVersion
	}
	return versions
}

// unique returns an error for Services that have the same address.
func unique(ctx context.Context, r *rig.Rig) error {
	list, err := r.Kube.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
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
