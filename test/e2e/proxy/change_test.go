package proxy

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/probe"
	"github.com/ironlb/ironlb/test/rare"
)

// loadbalancer.go:132 and 270: types and ports of a Service change while its address stays.
func TestTypeAndPortsChange(t *testing.T) {
	for network, port := range map[string]uint16{"tcp": httpPort, "udp": udpPort} {
		t.Run(network, func(t *testing.T) {
			if network == "udp" {
				rare.Test(t)
			}
			name, node := "changing-"+network, cluster.Node(0)
			portName := map[string]string{"tcp": "http", "udp": "udp"}[network]
			svc := service(t, name, ofType(corev1.ServiceTypeClusterIP))
			endpoints(t, name, "a1")
			answered(t, podMachine(t, "b1"), network, internal(t, svc, port), "a1")

			svc = edit(t, name, ofType(corev1.ServiceTypeNodePort))
			answered(t, cluster.Client, network, nodePort(t, svc, node, portName), "a1")

			edit(t, name, ofType(corev1.ServiceTypeLoadBalancer))
			svc = withAddress(t, name)
			vip := external(t, svc, port)
			by(t, cluster.Client, vip.Addr(), node)
			answered(t, cluster.Client, network, vip, "a1")

			before := nodePort(t, svc, node, portName)
			svc = edit(t, name, func(svc *corev1.Service) {
				for i := range svc.Spec.Ports {
					if svc.Spec.Ports[i].Name == portName {
						svc.Spec.Ports[i].NodePort, svc.Spec.Ports[i].Port = 0, 1000
					}
				}
			})
			vip = external(t, svc, 1000)
			answered(t, cluster.Client, network, vip, "a1")
			answered(t, cluster.Client, network, nodePort(t, svc, node, portName), "a1")
			if network == "tcp" {
				refused(t, cluster.Client, external(t, svc, port))
				if after := nodePort(t, svc, node, portName); after != before {
					refused(t, cluster.Client, before)
				}
				endpoints(t, name)
				refused(t, cluster.Client, vip)
				endpoints(t, name, "a1")
				answered(t, cluster.Client, network, vip, "a1")
			}
			if now := withAddress(t, name); now.Status.LoadBalancer.Ingress[0].IP != vip.Addr().String() {
				t.Errorf("the address changed from %v to %v", vip.Addr(), now.Status.LoadBalancer.Ingress[0].IP)
			}

			edit(t, name, func(svc *corev1.Service) {
				svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeClusterIP, ""
				for i := range svc.Spec.Ports {
					svc.Spec.Ports[i].NodePort = 0
				}
			})
			cluster.Await(t, programmed, "the status is empty", func(context.Context) error {
				if n := len(get(t, name).Status.LoadBalancer.Ingress); n > 0 {
					return fmt.Errorf("%d addresses", n)
				}
				return nil
			})
			cluster.Await(t, programmed, "the address is closed", func(ctx context.Context) error {
				for _, to := range scene.Each(vip) {
					s, err := cluster.Client.Ask(ctx, lab.Probe{Network: network, Target: to, Count: 3, Every: 20 * time.Millisecond})
					if err == nil && s.Failed < s.Sent {
						err = fmt.Errorf("%v: %s", to, s)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// loadbalancer.go:642.
func TestWithoutNodePorts(t *testing.T) {
	rare.Test(t)
	svc := service(t, "no-nodeports", func(svc *corev1.Service) { svc.Spec.AllocateLoadBalancerNodePorts = ptr.To(false) })
	endpoints(t, "no-nodeports", "a1", "b1")
	for _, p := range svc.Spec.Ports {
		if p.NodePort != 0 {
			t.Fatalf("port %s has NodePort %d", p.Name, p.NodePort)
		}
	}
	vip := external(t, svc, httpPort)
	by(t, cluster.Client, vip.Addr(), cluster.Node(2))
	answered(t, cluster.Client, "tcp", vip, "a1", "b1")
	svc = edit(t, "no-nodeports", func(svc *corev1.Service) { svc.Spec.AllocateLoadBalancerNodePorts = ptr.To(true) })
	answered(t, cluster.Client, "tcp", vip, "a1", "b1")
	answered(t, cluster.Client, "tcp", nodePort(t, svc, cluster.Node(2), "http"), "a1", "b1")
}

// loadbalancer.go:422.
func TestSourceRanges(t *testing.T) {
	svc := service(t, "ranges")
	endpoints(t, "ranges", "a1")
	vip := external(t, svc, httpPort)
	client, pod, node := cluster.Client, podMachine(t, "b1"), cluster.Node(0)
	by(t, client, vip.Addr(), node)
	set := func(ranges ...string) {
		edit(t, "ranges", func(svc *corev1.Service) { svc.Spec.LoadBalancerSourceRanges = ranges })
	}
	only := func(m *lab.Machine) { set(m.Addr.String()+"/32", m.Addr6.String()+"/128") }
	answered(t, client, "tcp", vip, "a1")
	only(client)
	answered(t, client, "tcp", vip, "a1")
	dropped(t, pod, vip)
	dropped(t, &cluster.Node(1).Machine, vip)
	only(pod)
	answered(t, pod, "tcp", vip, "a1")
	dropped(t, client, vip)
	only(&node.Machine) // the node itself is exempt
	answered(t, &node.Machine, "tcp", vip, "a1")
	dropped(t, client, vip)
	set("0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1")
	answered(t, client, "tcp", vip, "a1")
	answered(t, pod, "tcp", vip, "a1")
	set("255.255.255.255/32") // also closes the family without ranges
	dropped(t, client, vip)
	answered(t, pod, "tcp", internal(t, svc, httpPort), "a1") // ranges apply to the LoadBalancer address
	set()
	answered(t, client, "tcp", vip, "a1")
}

// loadbalancer.go:565 to 595.
func TestAffinity(t *testing.T) {
	for _, p := range []corev1.ServiceExternalTrafficPolicy{corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal} {
		t.Run(string(p), func(t *testing.T) {
			if p == corev1.ServiceExternalTrafficPolicyLocal {
				rare.Test(t)
			}
			name := "sticky-" + map[bool]string{true: "local", false: "cluster"}[p == corev1.ServiceExternalTrafficPolicyLocal]
			svc := service(t, name, policy(p), func(svc *corev1.Service) { svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
			endpoints(t, name, "a1", "a2")
			vip := external(t, svc, httpPort)
			by(t, cluster.Client, vip.Addr(), cluster.Node(0))
			same := func() {
				t.Helper()
				cluster.Await(t, programmed, "15 answers in a row of one Pod", func(ctx context.Context) error {
					for _, to := range scene.Each(vip) {
						p := lab.Probe{Network: "tcp", Target: to, Count: 15, Every: 20 * time.Millisecond, Timeout: 3 * time.Second}
						if s, err := cluster.Client.Ask(ctx, p); err != nil {
							return err
						} else if s.Failed > 0 || len(s.ByPod) != 1 {
							return fmt.Errorf("%v: %s", to, s)
						}
					}
					return nil
				})
			}
			same()
			edit(t, name, func(svc *corev1.Service) {
				svc.Spec.SessionAffinity, svc.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
			})
			answered(t, cluster.Client, "tcp", vip, "a1", "a2")
			edit(t, name, func(svc *corev1.Service) { svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
			same()
		})
	}
}

// loadbalancer.go:707, 841; conntrack.go:140 to 481, 673: a client with a fixed port while the endpoints change.
func TestUDPClientRecovers(t *testing.T) {
	svc := service(t, "datagrams")
	endpoints(t, "datagrams", "b1")
	vip := external(t, svc, udpPort)
	by(t, cluster.Client, vip.Addr(), cluster.Node(0))
	for name, to := range map[string]struct {
		client *lab.Machine
		target func() lab.Probe
	}{
		"from outside": {cluster.Client, func() lab.Probe { return lab.Probe{Target: vip} }},
		"from a Pod, IPv6": {podMachine(t, "a1"), func() lab.Probe {
			return lab.Probe{Target: scene.Each(internal(t, svc, udpPort))[1]}
		}},
		"NodePort": {cluster.Client, func() lab.Probe { return lab.Probe{Target: nodePort(t, svc, cluster.Node(0), "udp")} }},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "from outside" {
				rare.Test(t)
			}
			endpoints(t, "datagrams", "b1")
			p := to.target()
			p.Network, p.Serial, p.Port, p.Timeout = "udp", true, 40053, 500*time.Millisecond
			prober, err := to.client.StartProbe(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			for _, now := range [][]string{{"b1"}, {"c1"}, {"a2"}, {}, {"c1"}} { // another node, this node, none, another node again
				endpoints(t, "datagrams", now...)
				if len(now) > 0 {
					lastIs(t, prober, now[0])
				} else {
					lastFails(t, prober)
				}
			}
			if _, err := prober.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

func lastIs(t testing.TB, p *lab.Prober, pod string) {
	t.Helper()
	_, err := p.Wait(t.Context(), programmed, "answers of "+pod, func(s probe.Summary) bool {
		n := len(s.Results)
		return n > 0 && s.Results[n-1].OK() && s.Results[n-1].Pod == pod
	})
	if err != nil {
		t.Fatal(err)
	}
}

func lastFails(t testing.TB, p *lab.Prober) {
	t.Helper()
	_, err := p.Wait(t.Context(), programmed, "no answer", func(s probe.Summary) bool {
		n := len(s.Results)
		return n > 0 && !s.Results[n-1].OK()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// rate is upstream's 100 if the machine is fast enough: 50 occupy an emulated guest completely.
var rate = flag.Int("rate", 10, "requests per second while endpoints change")

// grace is how long a terminating Pod keeps serving; afterwards every request to it fails. Kubernetes gives 30 s; a busy
// machine needs some of them.
const grace = 6 * time.Second

// rollingUpdate is the endpoints after each step of the updates: all Pods are replaced, and replaced again.
func rollingUpdate() [][]string {
	first := [][]string{{"a1", "b1", "a2"}, {"a1=terminating", "b1", "a2"}, {"a1=gone", "b1=terminating", "a2", "c1"}, {"a2", "c1"}}
	second := [][]string{{"a2", "c1", "a1"}, {"a2=terminating", "c1", "a1"}, {"c1=terminating", "a1", "b1"}, {"a1", "b1"}}
	all := slices.Concat(first, second, first, second)
	if dataplane == scene.IPVS {
		return first // in an emulated guest the others take minutes
	}
	return all[:rare.Rounds(len(first), len(all))]
}

// loadbalancer.go:975, 984, stricter: Pods that terminate and then stop cause no failed request (T29).
func TestRollingUpdate(t *testing.T) {
	for _, p := range []corev1.ServiceExternalTrafficPolicy{corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal} {
		t.Run(string(p), func(t *testing.T) {
			name := map[bool]string{true: "rolling-local", false: "rolling-cluster"}[p == corev1.ServiceExternalTrafficPolicyLocal]
			svc := service(t, name, policy(p))
			endpoints(t, name, "a1", "b1")
			vip := external(t, svc, httpPort)
			by(t, cluster.Client, vip.Addr(), cluster.Node(0))
			answered(t, cluster.Client, "tcp", vip, map[bool][]string{true: {"a1"}, false: {"a1", "b1"}}[p == corev1.ServiceExternalTrafficPolicyLocal]...)
			var probers []*lab.Prober
			for _, to := range scene.Each(vip) {
				p := lab.Probe{Network: "tcp", Target: to, Every: time.Second / time.Duration(*rate), Timeout: lab.Lost}
				prober, err := cluster.Client.StartProbe(t.Context(), p)
				if err != nil {
					t.Fatal(err)
				}
				probers = append(probers, prober)
			}
			for _, step := range rollingUpdate() {
				roll(t, probers, name, step)
			}
			for _, prober := range probers {
				s, err := prober.Stop()
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%s", s)
				if s.Failed > 0 {
					t.Errorf("%s, want no failed request", s)
				}
			}
		})
	}
}

// roll sets the Service's endpoints. Ready Pods run before that. Terminating Pods stop after their grace time, and then
// only the others answer.
func roll(t *testing.T, probers []*lab.Prober, service string, step []string) {
	t.Helper()
	for _, pod := range ready(step) {
		refuses(t.Context(), t, pod, false)
	}
	began := time.Now()
	endpoints(t, service, step...)
	for _, e := range step {
		pod, state, _ := strings.Cut(e, "=")
		if state != "terminating" {
			continue
		}
		over := func(probe.Summary) bool { return time.Since(began) > grace }
		_, err := probers[0].Wait(t.Context(), time.Minute, pod+" stops", over)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { refuses(context.Background(), t, pod, false) })
		refuses(t.Context(), t, pod, true)
	}
	for _, prober := range probers {
		onlyReady(t, prober, step)
	}
}

// refuses makes a Pod refuse new connections, or accept them again; existing ones stay.
func refuses(ctx context.Context, t testing.TB, pod string, all bool) {
	t.Helper()
	commands := "add table inet late; delete table inet late"
	if all {
		commands = fmt.Sprintf(`add table inet late; add chain inet late in { type filter hook input priority 0; }
			add rule inet late in tcp dport %d ct state new reject with tcp reset`, probe.PortHTTP)
	}
	if _, err := podMachine(t, pod).Exec(ctx, "nft", commands); err != nil {
		t.Fatal(err)
	}
}

// onlyReady waits until all requests but the last few were answered, those of the last second, at most 30, by ready
// Pods. Then no request to a draining Pod is in progress, and the Pod may end.
func onlyReady(t testing.TB, p *lab.Prober, endpoints []string) {
	t.Helper()
	enough := min(30, *rate)
	_, err := p.Wait(t.Context(), programmed, fmt.Sprintf("answers of the ready among %v only", endpoints), func(s probe.Summary) bool {
		slices.SortFunc(s.Results, func(a, b probe.Result) int { return a.N - b.N })
		full := 0
		for full < len(s.Results) && s.Results[full].N == full+1 {
			full++
		}
		return full >= enough && !slices.ContainsFunc(s.Results[full-enough:full], func(r probe.Result) bool {
			return r.OK() && !slices.Contains(ready(endpoints), r.Pod)
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WaitAnswers(t.Context(), time.Minute, enough); err != nil {
		t.Fatal(err)
	}
}

// An endpoint on this node or another that becomes ready before it listens causes no failed request if it listens
// within 5 s.
func TestReadyBeforeItListens(t *testing.T) {
	svc := service(t, "late")
	endpoints(t, "late", "a1")
	vip := external(t, svc, httpPort)
	by(t, cluster.Client, vip.Addr(), cluster.Node(0))
	for _, late := range []string{"a2", "b1"} {
		t.Run(late, func(t *testing.T) {
			if late == "b1" {
				rare.Test(t)
			}
			for range 10 {
				answered(t, cluster.Client, "tcp", vip, "a1")
				before := checks(t, "late")
				s := joins(t, vip, late)
				t.Logf("%s", s)
				endpoints(t, "late", "a1")
				if checks(t, "late") == before {
					continue // this machine took more than 100 ms to answer, or 5 s until it listened
				}
				if s.Failed > 0 {
					t.Errorf("%s, want no failed request", s)
				}
				return
			}
			t.Fatal("this machine is too slow: ten times no check found that the endpoint refused and then listened")
		})
	}
}

// checks returns the number of endpoint checks on the first node with that result.
func checks(t *testing.T, result string) string {
	t.Helper()
	metrics, err := cluster.Node(0).Exec(t.Context(), "curl", "-fsS", "--max-time", "20", "http://127.0.0.1:7950/metrics")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(metrics, fmt.Sprintf("\nironlb_endpoint_checks_total{result=%q} ", result))
	if !found {
		t.Fatalf("no ironlb_endpoint_checks_total of result %s in the metrics:\n%s", result, metrics)
	}
	n, _, _ := strings.Cut(after, "\n")
	return n
}

// joins adds a Pod that refuses connections as an endpoint next to a1, and lets it listen half a second later. It waits
// for the Pod's answers, and returns all requests.
func joins(t *testing.T, vip netip.AddrPort, pod string) probe.Summary {
	t.Helper()
	t.Cleanup(func() { refuses(context.Background(), t, pod, false) }) // the next test needs the Pod
	refuses(t.Context(), t, pod, true)
	prober, err := cluster.Client.StartProbe(t.Context(), lab.Probe{Network: "tcp", Target: vip, Every: time.Second / time.Duration(*rate), Timeout: lab.Lost})
	if err != nil {
		t.Fatal(err)
	}
	if err := prober.WaitAnswers(t.Context(), time.Minute, 5); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	endpoints(t, "late", "a1", pod)
	_, err = prober.Wait(t.Context(), time.Minute, "requests while it refuses", func(probe.Summary) bool { return time.Since(start) > 500*time.Millisecond })
	if err != nil {
		t.Fatal(err)
	}
	refuses(t.Context(), t, pod, false)
	_, err = prober.Wait(t.Context(), programmed, "answers of "+pod, func(s probe.Summary) bool { return s.ByPod[pod] > 5 })
	if err != nil {
		t.Fatal(err)
	}
	s, err := prober.Stop()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// An open connection stays while its endpoint terminates, and while everything else changes.
func TestConnectionStays(t *testing.T) {
	svc := service(t, "stream")
	endpoints(t, "stream", "b1")
	to := external(t, svc, streamPort)
	by(t, cluster.Client, to.Addr(), cluster.Node(0))
	answered(t, cluster.Client, "tcp", external(t, svc, httpPort), "b1")
	var probers []*lab.Prober
	for _, each := range scene.Each(to) {
		prober, err := cluster.Client.StartProbe(t.Context(), lab.Probe{Network: "stream", Target: each, Timeout: lab.Lost})
		if err != nil {
			t.Fatal(err)
		}
		probers = append(probers, prober)
	}
	for _, step := range [][]string{{"b1", "a1"}, {"b1=terminating", "a1"}, {"b1=gone", "a1", "c1"}, {"b1", "a1"}} {
		endpoints(t, "stream", step...)
		answered(t, cluster.Client, "tcp", external(t, svc, httpPort), ready(step)...)
		for _, prober := range probers {
			if err := errors.Join(prober.Broken(), prober.WaitAnswers(t.Context(), time.Minute, 5)); err != nil {
				t.Fatalf("endpoints %v: %v", step, err)
			}
		}
	}
	for _, prober := range probers {
		if s, err := prober.Stop(); err != nil || s.Failed > 0 || len(s.ByPod) != 1 {
			t.Errorf("%s, %v", s, err)
		}
	}
}
