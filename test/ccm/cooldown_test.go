package ccm

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/ccm/rig"
)

// TestCoolDown: the next leader does not give a freed address of a pool with reuseAfter to another Service, whether the
// previous leader was stopped right after it freed the address, or was killed.
func TestCoolDown(t *testing.T) {
	const namespace = "cooldown"
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	r := rig.Start(t, rig.Config{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	services := r.Kube.CoreV1().Services(namespace)
	serve := func(name, want string) {
		t.Helper()
		_, err := services.Create(ctx, rig.Service(namespace, name, nil), metav1.CreateOptions{})
		must(err)
		var svc *v1.Service
		state := func() string { return fmt.Sprintf("Service %s has %v, want %s", name, svc.Status, want) }
		until(ctx, t, state, func() bool {
			svc, err = services.Get(ctx, name, metav1.GetOptions{})
			must(err)
			return len(svc.Status.LoadBalancer.Ingress) == 1 && svc.Status.LoadBalancer.Ingress[0].IP == want
		})
	}
	end := func(name string) {
		t.Helper()
		must(services.Delete(ctx, name, metav1.DeleteOptions{}))
		until(ctx, t, func() string { return "Service " + name + " does not go" }, func() bool {
			_, err := services.Get(ctx, name, metav1.GetOptions{})
			return err != nil
		})
	}
	start := func() *rig.CCM {
		t.Helper()
		c, err := r.StartCCM(ctx, firstPort, "--leader-elect=false")
		must(err)
		must(c.WaitReady(ctx, time.Minute))
		return c
	}
	must(r.Namespace(ctx, namespace))
	must(r.AddNodes(ctx, 1))
	must(r.Apply(ctx, `{apiVersion: ironlb.io/v1alpha1, kind: IPAddressPool, metadata: {name: web},
		spec: {addresses: ["2001:db8:1::4/126"], reuseAfter: 1h}}`))

	first := start()
	serve("a", "2001:db8:1::4")
	end("a")
	must(first.Stop(10 * time.Second))
	second := start()
	serve("b", "2001:db8:1::5")
	end("b")
	var obj v1alpha1.IPAddressPool
	until(ctx, t, func() string { return fmt.Sprintf("the pool's status is %+v", obj.Status) }, func() bool {
		data, err := r.Kube.Discovery().RESTClient().Get().AbsPath("/apis/ironlb.io/v1alpha1/ipaddresspools/web").DoRaw(ctx)
		must(err)
		obj = v1alpha1.IPAddressPool{}
		must(json.Unmarshal(data, &obj))
		return len(obj.Status.CoolingDown) == 2
	})
	must(second.Kill())
	start()
	serve("c", "2001:db8:1::6")
	serve("a", "2001:db8:1::4")
}
