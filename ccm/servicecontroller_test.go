package ccm

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/cloud-provider/controllers/service"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// TestServiceController runs cloud-provider's own service controller on our Cloud: a Service that waits is left alone,
// served when its turn comes, and nothing is done twice. The API is client-go's fake, the controller is the real one.
func TestServiceController(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	api := fake.NewClientset(node("n"))
	core := informers.NewSharedInformerFactory(api, 0)
	events := record.NewFakeRecorder(100)
	c := &Cloud{log: slog.New(slog.DiscardHandler), core: core, events: events, settings: DefaultSettings()}
	c.prepare(api.CoreV1(), 2)
	l := c.ledger
	r, err := pools.ParseRanges([]string{"203.0.113.4"})
	if err != nil {
		t.Fatal(err)
	}
	l.setPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
	l.adopt(nil)
	c.waker.Start(ctx)

	controller, err := service.New(c, quiet{api}, c.waker, core.Core().V1().Nodes(), "", utilfeature.DefaultFeatureGate)
	if err != nil {
		t.Fatal(err)
	}
	core.Start(ctx.Done())
	core.WaitForCacheSync(ctx.Done())
	go controller.Run(ctx, 2, controllersmetrics.NewControllerManagerMetrics("test"))

	services := api.CoreV1().Services("default")
	create(t, services, serviceFor("s1"))
	await(t, services, "s1 has the address", func(all map[string]v1.Service) bool { return ip(all["s1"]) == "203.0.113.4" })
	awaitEvent(t, events, "Normal Allocated The Service holds 203.0.113.4 of pool web")
	create(t, services, serviceFor("s2"))
	awaitEvent(t, events, "Warning PoolExhausted default/s2")

	if _, err := services.Patch(ctx, "s1", types.MergePatchType, []byte(`{"spec":{"type":"ClusterIP"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	all := await(t, services, "s2 has the address", func(all map[string]v1.Service) bool { return ip(all["s2"]) == "203.0.113.4" })
	await(t, services, "s1 is clean", func(all map[string]v1.Service) bool {
		s1 := all["s1"]
		return ip(s1) == "" && len(s1.Finalizers) == 0 && s1.Annotations[v1alpha1.AnnotationAllocatedFrom] == ""
	})
	if got := all["s2"].Annotations[v1alpha1.AnnotationAllocatedFrom]; got != "web" {
		t.Errorf("s2 is allocated from %q", got)
	}
	awaitEvent(t, events, "Normal Allocated")

	// A label matters to pools, not to the controller: it must come through. The echo of our annotation must not.
	if _, err := services.Patch(ctx, "s2", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, services, "the label matters to nobody", func(all map[string]v1.Service) bool { return all["s2"].Labels["a"] == "b" })
	awaitSaid(t, api, nil)
	if len(events.Events) > 0 {
		t.Errorf("said too: %q", <-events.Events)
	}
}

func ip(svc v1.Service) string {
	if len(svc.Status.LoadBalancer.Ingress) == 0 {
		return ""
	}
	return svc.Status.LoadBalancer.Ingress[0].IP
}

func create(t *testing.T, services corev1.ServiceInterface, svc *v1.Service) {
	t.Helper()
	svc.UID = types.UID(svc.Name)
	svc.Annotations = nil // as the API server has it when there are none
	if _, err := services.Create(t.Context(), svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func await(t *testing.T, services corev1.ServiceInterface, what string, cond func(map[string]v1.Service) bool) map[string]v1.Service {
	t.Helper()
	var all map[string]v1.Service
	eventually(t, what, func() bool {
		list, err := services.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all = map[string]v1.Service{}
		for _, s := range list.Items {
			all[s.Name] = s
		}
		return cond(all)
	})
	return all
}

func awaitEvent(t *testing.T, events *record.FakeRecorder, want string) {
	t.Helper()
	select {
	case got := <-events.Events:
		if !strings.HasPrefix(got, want) {
			t.Fatalf("said %q, want %q", got, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("not said within 20 s: %q", want)
	}
}

// awaitSaid waits until the service controller has said exactly this, with how often.
func awaitSaid(t *testing.T, api *fake.Clientset, want []string) {
	t.Helper()
	var said []string
	defer func() {
		if t.Failed() {
			t.Logf("the controller said %q, want %q", said, want)
		}
	}()
	eventually(t, "the Events of the service controller", func() bool {
		list, err := api.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		said = nil
		for _, e := range list.Items {
			said = append(said, fmt.Sprintf("%s %s %d", e.InvolvedObject.Name, e.Reason, e.Count))
		}
		slices.Sort(said)
		return slices.Equal(said, want)
	})
}
