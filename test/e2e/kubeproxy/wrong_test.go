package kubeproxy

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
)

// testNotExcluded: kube-proxy in mode ipvs deletes our virtual servers, we put them back, and say what to change.
func testNotExcluded(t *testing.T, svc *corev1.Service) {
	vip := scene.External(t, svc, 0).Addr()
	told(t, vip.String(), "KubeProxyDeletesVirtualServers", "add "+poolCIDR+" to ipvs.excludeCIDRs")
	before := restorations(t, vip)
	scene.Eventually(t, patience, "kube-proxy deletes virtual servers and the speaker restores them", func(context.Context) error {
		if n := restorations(t, vip) - before; n == 0 {
			return errors.New("none yet")
		}
		return nil
	})
}

// testFlush: kube-proxy in mode nftables deletes all virtual servers when it starts (ipvs.md 1.7.3).
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
	before := restorations(t, vip.Addr())
	start()
	scene.Eventually(t, patience, "kube-proxy deletes the virtual servers and the speaker restores them", func(context.Context) error {
		if restorations(t, vip.Addr()) == before {
			return errors.New("none yet")
		}
		return nil
	})
	everywhere(t, svc)
	for name, prober := range streams {
		err := errors.Join(prober.Broken(), prober.WaitAnswers(t.Context(), 40*time.Second, 1))
		s, stopped := prober.Stop()
		t.Logf("the %s connection: %v; %s; %v", name, err, s, stopped)
	}
}

// TestBesideServiceProxy: a kube-proxy where the speaker serves every Service, and what it leaves behind, are told.
func TestBesideServiceProxy(t *testing.T) {
	freshNode(t)
	startCCM(t, "Proxy")
	kubeProxy := startKubeProxy(t, "iptables", nil)
	startSpeaker(t, true)
	svc := scene.Service(t, "both")
	scene.Endpoints(t, "both", "a1", "b1")
	vip := svc.Status.LoadBalancer.Ingress[0].IP
	told(t, vip, "KubeProxyBesideServiceProxy", "set serviceProxy: false", "in mode iptables")
	kubeProxy.stop(t)
	told(t, vip, "KubeProxyLeftOvers", "kube-proxy --cleanup")
	argv, err := node().KubeProxyArgv(t.Context(), "iptables", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := node().Exec(t.Context(), append(argv, "--cleanup")...); err != nil {
		t.Fatal(err)
	}
	told(t, vip, "")
	everywhere(t, svc)
}
