package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/rare"
)

// restoredWithin limits the time without service after kube-proxy deleted the virtual servers of an address. It
// includes the time that an emulated guest needs.
const restoredWithin = 10 * time.Second

// served sends requests to the Service's address until the test stops it. The longest outage must be within
// restoredWithin.
func served(t *testing.T, svc *corev1.Service) (stop func()) {
	t.Helper()
	vip := scene.External(t, svc, scene.HTTPPort)
	prober, err := cluster.Client.StartProbe(t.Context(), lab.Probe{Network: "tcp", Target: vip})
	if err != nil {
		t.Fatal(err)
	}
	if err := prober.WaitAnswers(t.Context(), time.Minute, 3); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := prober.WaitAnswers(t.Context(), restoredWithin, 3); err != nil {
			t.Error(err)
		}
		s, err := prober.Stop()
		t.Logf("%s, %v", s, err)
		if err != nil || s.Outage > restoredWithin {
			t.Errorf("%s, %v; want an outage of %s at most", s, err, restoredWithin)
		}
	}
}

// testNotExcluded: kube-proxy in mode ipvs deletes IronLB's virtual servers at each sync. The speaker restores them
// each time, within seconds, and reports the fix.
func testNotExcluded(t *testing.T, svc *corev1.Service) {
	vip := scene.External(t, svc, scene.HTTPPort)
	waitForReports(t, vip.Addr().String(), "KubeProxyDeletesVirtualServers", "add "+poolCIDR+" to ipvs.excludeCIDRs")
	scene.Answered(t, cluster.Client, "tcp", vip, "a1", "b1")
	stop := served(t, svc)
	before := len(restorations(t, vip))
	const syncs = 3
	synced(t, syncs, nil)
	cluster.Await(t, restoredWithin, "the speaker restores what each sync deleted", func(context.Context) error {
		if n := len(restorations(t, vip)) - before; n < syncs {
			return fmt.Errorf("%d times in %d syncs", n, syncs)
		}
		return nil
	})
	stop()
}

// testFlush: kube-proxy in mode nftables deletes all virtual servers when it starts: they are restored
// within seconds. A connection continues or ends with a reset, not in silence: a busy one in the gap, an idle one with
// its next packet, because the kernel deletes connections to a missing real server (ip_vs_expire_nodest_conn_flush).
func testFlush(t *testing.T, svc *corev1.Service, start func()) {
	vip := scene.External(t, svc, scene.StreamPort)
	scene.Answered(t, cluster.Client, "tcp", scene.External(t, svc, scene.HTTPPort), "a1", "b1")
	streams := map[string]*lab.Prober{}
	for name, every := range map[string]time.Duration{"busy": 100 * time.Millisecond, "idle": 15 * time.Second} {
		prober, err := cluster.Client.StartProbe(t.Context(), lab.Probe{Network: "stream", Target: vip, Every: every, Timeout: lab.Lost})
		if err != nil {
			t.Fatal(err)
		}
		if err := prober.WaitAnswers(t.Context(), time.Minute, 1); err != nil {
			t.Fatal(err)
		}
		streams[name] = prober
	}
	stop := served(t, svc)
	before := len(restorations(t, vip))
	start()
	var restored time.Time
	cluster.Await(t, patience, "kube-proxy deletes the virtual servers and the speaker restores them", func(context.Context) error {
		times := restorations(t, vip)
		if len(times) == before {
			return errors.New("none yet")
		}
		restored = times[len(times)-1]
		return nil
	})
	everywhere(t, svc)
	stop()
	for name, prober := range streams {
		err := errors.Join(prober.Broken(), prober.WaitAnswers(t.Context(), 40*time.Second, 1))
		s, stopped := prober.Stop()
		t.Logf("the %s connection: %v; %s; %v", name, err, s, stopped)
		if len(s.Results) == 0 {
			t.Fatalf("the %s connection: %v", name, stopped)
		}
		last := s.Results[len(s.Results)-1]
		gap := restored.Sub(last.Sent)
		switch {
		case err == nil:
		case !strings.Contains(last.Error, "reset") && !strings.Contains(last.Error, "EOF"):
			t.Errorf("the %s connection ended with %q, want a reset", name, last.Error)
		case name == "busy" && (gap < 0 || gap > restoredWithin):
			t.Errorf("the busy connection broke by what it sent %s before the virtual servers were restored", gap)
		}
	}
}

// TestAlongsideServiceProxy: with serviceProxy, a running kube-proxy and its residual state are reported.
func TestAlongsideServiceProxy(t *testing.T) {
	rare.Test(t)
	freshNode(t)
	startCCM(t, "Proxy")
	kubeProxy := startKubeProxy(t, "iptables", nil)
	startSpeaker(t, true)
	svc := scene.Service(t, "both")
	scene.Endpoints(t, "both", "a1", "b1")
	vip := svc.Status.LoadBalancer.Ingress[0].IP
	waitForReports(t, vip, "KubeProxyAlongsideServiceProxy", "set serviceProxy: false", "in mode iptables")
	cluster.AwaitExplained(t, patience, svc.Name, "Problem KubeProxyAlongsideServiceProxy",
		`kube-proxy +`+node().Name+` +Problem +KubeProxyAlongsideServiceProxy: .*set serviceProxy: false`)
	kubeProxy.stop(t)
	waitForReports(t, vip, "KubeProxyResidualRules", "kube-proxy --cleanup")
	argv, err := node().KubeProxyArgv(t.Context(), "iptables", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := node().Exec(t.Context(), append(argv, "--cleanup")...); err != nil {
		t.Fatal(err)
	}
	waitForReports(t, vip, "")
	everywhere(t, svc)
}
