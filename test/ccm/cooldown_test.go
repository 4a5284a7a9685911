package ccm

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/ccm/rig"
	"github.com/ironlb/ironlb/test/eventually"
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
		eventually.Nil(t, patience, fmt.Sprintf("Service %s to have %s", name, want), func(context.Context) error {
			svc, err := services.Get(ctx, name, metav1.GetOptions{})
			must(err)
			in := svc.Status.LoadBalancer.Ingress
			return eventually.Unless(len(in) == 1 && in[0].IP == want, "it has %v", svc.Status)
		})
	}
	end := func(name string) {
		t.Helper()
		must(services.Delete(ctx, name, metav1.DeleteOptions{}))
		eventually.True(t, patience, "Service "+name+" to go", func() bool {
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
	eventually.Nil(t, patience, "two addresses to cool down", func(context.Context) error {
		data, err := r.Kube.Discovery().RESTClient().Get().AbsPath("/apis/ironlb.io/v1alpha1/ipaddresspools/web").DoRaw(ctx)
		must(err)
		var obj v1alpha1.IPAddressPool
		must(json.Unmarshal(data, &obj))
		return eventually.Unless(len(obj.Status.CoolingDown) == 2, "the pool's status is %+v", obj.Status)
	})
	must(second.Kill())
	start()
	serve("c", "2001:db8:1::6")
	serve("a", "2001:db8:1::4")
}
