package kubeproxy

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/rare"
)

// modes returns the modes that the lab's kernel supports.
func modes() []string {
	if dataplane == scene.NFTables {
		return []string{"iptables", "nftables"}
	}
	return []string{"iptables", "nftables", "ipvs"}
}

// externalIP is allowed by the speaker's configuration and in no pool.
const externalIP = "192.0.2.151"

// excluded excludes the pool from kube-proxy's mode ipvs; with all also the addresses of Services that IronLB serves
// entirely.
func excluded(all bool) lab.KubeProxyConfig {
	config := often()
	config["strictARP"] = true
	cidrs := []string{poolCIDR}
	if all {
		cidrs = append(cidrs, "203.0.113.0/25", node().Addr.String()+"/32", externalIP+"/32")
	}
	config["excludeCIDRs"] = cidrs
	return lab.KubeProxyConfig{"ipvs": config}
}

// TestModes has a case for each mode of kube-proxy, with a real one.
func TestModes(t *testing.T) {
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			if mode != "nftables" {
				rare.Test(t)
			}
			freshNode(t)
			ccm := startCCM(t, "Proxy")
			config := lab.KubeProxyConfig{}
			if mode == "ipvs" {
				config = excluded(false)
			}
			kubeProxy := startKubeProxy(t, mode, config)
			startSpeaker(t, false)
			svc := scene.Service(t, "web")
			scene.Endpoints(t, "web", "a1", "b1")

			t.Run("ipMode Proxy", func(t *testing.T) { testProxy(t, mode, svc) })
			t.Run("left alone", func(t *testing.T) { testLeftAlone(t, mode, svc) })
			t.Run("policy Local", testLocal)
			switch {
			case mode == "nftables" && dataplane == scene.IPVS:
				t.Run("start flushes", func(t *testing.T) {
					kubeProxy.stop(t)
					testFlush(t, svc, func() { kubeProxy.start(t, config) })
				})
			case mode == "ipvs":
				t.Run("not excluded", func(t *testing.T) {
					kubeProxy.stop(t)
					kubeProxy.start(t, nil)
					testNotExcluded(t, svc)
					kubeProxy.stop(t)
					kubeProxy.start(t, excluded(true))
					waitForReports(t, svc.Status.LoadBalancer.Ingress[0].IP, "")
				})
			}
			t.Run("service-proxy-name", func(t *testing.T) { testLabel(t, mode, svc) })
			t.Run("cleanup", func(t *testing.T) { testCleanup(t, mode, svc) })
			ccm.restart(t, "VIP")
			startSpeaker(t, false)
			t.Run("ipMode VIP", func(t *testing.T) { testAnnounceOnly(t, mode) })
		})
	}
}

// everywhere checks that all addresses of a Service are answered: from outside, from a Pod and from the node itself.
func everywhere(t *testing.T, svc *corev1.Service) {
	t.Helper()
	pod, process := scene.PodMachine(t, "a2"), &node().Machine
	for _, network := range []string{"tcp", "udp"} {
		port := map[string]uint16{"tcp": scene.HTTPPort, "udp": scene.UDPPort}[network]
		scene.Answered(t, cluster.Client, network, scene.External(t, svc, port), "a1", "b1")
	}
	for _, from := range []*lab.Machine{pod, process} {
		scene.Answered(t, from, "tcp", scene.External(t, svc, scene.HTTPPort), "a1", "b1")
		scene.Answered(t, from, "tcp", scene.Internal(t, svc, scene.HTTPPort), "a1", "b1")
	}
	scene.Answered(t, cluster.Client, "tcp", scene.NodePort(t, svc, node(), "http"), "a1", "b1")
}

func testProxy(t *testing.T, mode string, svc *corev1.Service) {
	everywhere(t, svc)
	vip, clusterIP := scene.External(t, svc, 0).Addr(), scene.Internal(t, svc, 0).Addr()
	servers(t, mode, vip, server{speaker: true})
	servers(t, mode, clusterIP, server{kubeProxy: true})
	waitForReports(t, vip.String(), "")
	// kube-proxy serves NodePorts at every local address, including IronLB's.
	scene.Refused(t, cluster.Client, netip.AddrPortFrom(vip, scene.NodePort(t, svc, node(), "http").Port()))
}

// testLeftAlone: while both run, neither changes the other's state.
func testLeftAlone(t *testing.T, mode string, svc *corev1.Service) {
	caughtUp(t, mode)
	vip := scene.External(t, svc, scene.HTTPPort)
	before, beforeTheirs, restored := output(t, ours), output(t, theirs[mode]), len(restorations(t, vip))
	var probers []*lab.Prober
	for _, p := range []struct {
		from *lab.Machine
		to   netip.AddrPort
	}{
		{cluster.Client, scene.External(t, svc, scene.HTTPPort)},
		{scene.PodMachine(t, "a2"), scene.Internal(t, svc, scene.HTTPPort)},
		{cluster.Client, scene.NodePort(t, svc, node(), "http")},
	} {
		prober, err := p.from.StartProbe(t.Context(), lab.Probe{Network: "tcp", Target: p.to, Every: 500 * time.Millisecond, Timeout: lab.Lost})
		if err != nil {
			t.Fatal(err)
		}
		probers = append(probers, prober)
	}
	t.Run("another Service", func(t *testing.T) {
		other := scene.Service(t, "other")
		scene.Endpoints(t, "other", "b1")
		scene.Answered(t, cluster.Client, "tcp", scene.External(t, other, scene.HTTPPort), "b1")
		scene.Answered(t, scene.PodMachine(t, "a2"), "tcp", scene.Internal(t, other, scene.HTTPPort), "b1")
		resync(t, "other")
	})
	same(t, "what the speaker made", ours, before)
	same(t, "what kube-proxy made", theirs[mode], beforeTheirs)
	for _, p := range probers {
		s, err := p.Stop()
		if err != nil || s.Failed > 0 || s.Sent == 0 {
			t.Errorf("%s, %v: want no failed request", s, err)
		}
	}
	if n := len(restorations(t, vip)) - restored; n > 0 {
		t.Errorf("virtual servers had to be put back %d times", n)
	}
}

// testLocal: the client's address is kept, and the health check port is kube-proxy's.
func testLocal(t *testing.T) {
	svc := scene.Service(t, "local", scene.Policy(corev1.ServiceExternalTrafficPolicyLocal))
	scene.Endpoints(t, "local", "a1", "b1")
	s := scene.Answered(t, cluster.Client, "tcp", scene.External(t, svc, scene.HTTPPort), "a1")
	scene.Seen(t, s, cluster.Client.Addr)
	scene.Answered(t, scene.PodMachine(t, "a2"), "tcp", scene.External(t, svc, scene.HTTPPort), "a1", "b1")
	scene.Answered(t, &node().Machine, "tcp", scene.External(t, svc, scene.HTTPPort), "a1", "b1")
	healthPort(t, svc.Spec.HealthCheckNodePort, "kube-proxy", nil)
	ready(t)

	mark(t, "local", true)
	healthPort(t, svc.Spec.HealthCheckNodePort, "ironlb-speaker", nil)
	mark(t, "local", false)
	// kube-proxy tries once to open the port, which the speaker may still hold, and again after a change.
	rounds := 0
	healthPort(t, svc.Spec.HealthCheckNodePort, "kube-proxy", func() {
		scene.Endpoints(t, "local", [][]string{{"a1"}, {"a1", "b1"}}[rounds%2]...)
		rounds++
	})
}

// mark adds or removes the label of a Service and its slice that makes IronLB their service proxy.
func mark(t *testing.T, name string, full bool) {
	t.Helper()
	scene.Edit(t, name, func(svc *corev1.Service) {
		delete(svc.Labels, "service.kubernetes.io/service-proxy-name")
		if full {
			svc.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "ironlb"}
		}
	})
}

// testLabel: with the label IronLB serves the entire Service; without it, kube-proxy does again.
func testLabel(t *testing.T, mode string, svc *corev1.Service) {
	external := netip.MustParseAddr(externalIP)
	scene.Edit(t, "web", func(svc *corev1.Service) { svc.Spec.ExternalIPs = []string{external.String()} })
	clusterIP := scene.Internal(t, svc, 0).Addr()
	check := func(full bool) {
		t.Helper()
		mark(t, "web", full)
		for _, addr := range []netip.Addr{clusterIP, external} {
			servers(t, mode, addr, server{speaker: full, kubeProxy: !full})
		}
		servers(t, mode, scene.External(t, svc, 0).Addr(), server{speaker: true})
		everywhere(t, svc)
		scene.Answered(t, scene.PodMachine(t, "a2"), "tcp", netip.AddrPortFrom(external, scene.HTTPPort), "a1", "b1")
	}
	scene.By(t, cluster.Client, external, node())
	check(true)
	scene.Answered(t, cluster.Client, "tcp", netip.AddrPortFrom(external, scene.HTTPPort), "a1", "b1")
	if mode == "ipvs" {
		synced(t, 2, nil) // now it has deleted everything it would delete
	}
	waitForReports(t, svc.Status.LoadBalancer.Ingress[0].IP, "")
	check(false)
	scene.Edit(t, "web", func(svc *corev1.Service) { svc.Spec.ExternalIPs = nil })
	servers(t, mode, external, server{})
	if mode == "ipvs" {
		// kube-proxy does not touch addresses in excludeCIDRs, its own included (docs/tasks/kube-proxy.md).
		left := output(t, "ipvsadm -Sn | grep -o -- '^-A -[tu] "+external.String()+":[0-9]*'")
		for line := range strings.Lines(left) {
			if _, err := node().Exec(t.Context(), append([]string{"ipvsadm", "-D"}, strings.Fields(line)[1:]...)...); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// testCleanup: removing the speaker leaves kube-proxy's work in place.
func testCleanup(t *testing.T, mode string, svc *corev1.Service) {
	stopSpeaker(t)
	caughtUp(t, mode)
	before := output(t, theirs[mode])
	if _, err := node().Exec(t.Context(), cluster.Program("ironlb-speaker"), "cleanup"); err != nil {
		t.Fatal(err)
	}
	nothing(t, "left of ours", ours)
	same(t, "what kube-proxy made", theirs[mode], before)
	scene.Answered(t, scene.PodMachine(t, "a2"), "tcp", scene.Internal(t, svc, scene.HTTPPort), "a1", "b1")
}

// testAnnounceOnly: kube-proxy serves the address, the speaker only answers ARP for it.
func testAnnounceOnly(t *testing.T, mode string) {
	svc := scene.Service(t, "announced")
	scene.Endpoints(t, "announced", "a1", "b1")
	ingress := svc.Status.LoadBalancer.Ingress[0]
	if ingress.IPMode == nil || *ingress.IPMode != corev1.LoadBalancerIPModeVIP {
		t.Fatalf("ipMode is %v, want VIP", ingress.IPMode)
	}
	everywhere(t, svc)
	vip := scene.External(t, svc, 0).Addr()
	servers(t, mode, vip, server{kubeProxy: true})
	nothing(t, "the address is local by us", "ip route show table local | grep -F 'local "+vip.String()+" dev lo'")
	if mode != "ipvs" {
		nothing(t, "there are virtual servers", "ipvsadm -Sn | grep -F "+vip.String()+":")
	}
	scene.By(t, cluster.Client, vip, node()) // its ARP requests will have no answer
	stopSpeaker(t)
	scene.Answered(t, cluster.Client, "tcp", scene.External(t, svc, scene.HTTPPort), "a1", "b1")
	scene.Endpoints(t, "announced", "b1")
	scene.Answered(t, cluster.Client, "tcp", scene.External(t, svc, scene.HTTPPort), "b1")
}
