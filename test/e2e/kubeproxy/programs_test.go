package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/process"
)

// stopGrace is the time for a program in an emulated guest to stop.
const stopGrace = 20 * time.Second

// patience is the timeout for kube-proxy and the speaker there: a start takes minutes while other guests run.
const patience = 8 * time.Minute

func node() *lab.Node { return cluster.Node(0) }

// freshNode gives node1 a kernel without residual state.
func freshNode(t *testing.T) {
	t.Helper()
	if err := errors.Join(node().PowerOff(t.Context()), node().PowerOn(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, pod := range []string{"a1", "a2"} {
		if _, err := cluster.WaitPod(t.Context(), metav1.NamespaceDefault, pod, true); err != nil {
			t.Fatal(err)
		}
	}
}

// controller is the running ironlb-ccm.
type controller struct{ p *process.Process }

// startCCM starts the controller until the end of the test.
func startCCM(t *testing.T, ipMode string) *controller {
	t.Helper()
	c := &controller{}
	c.start(t, ipMode)
	t.Cleanup(func() { stop(t, c.p) })
	return c
}

func (c *controller) start(t *testing.T, ipMode string) {
	t.Helper()
	p, err := cluster.StartCCM(t.Context(), "--leader-elect=false", "--ip-mode", ipMode)
	if err != nil {
		t.Fatal(err)
	}
	c.p = p
}

// restart replaces the controller by one with another ipMode.
func (c *controller) restart(t *testing.T, ipMode string) {
	t.Helper()
	stop(t, c.p)
	c.start(t, ipMode)
}

func stop(t *testing.T, p *process.Process) {
	t.Helper()
	if err := p.Stop(stopGrace); err != nil {
		t.Error(err)
	}
}

// proxy is node1's kube-proxy.
type proxy struct {
	mode string
	p    *process.Process
}

// startKubeProxy starts it until the end of the test.
func startKubeProxy(t *testing.T, mode string, more lab.KubeProxyConfig) *proxy {
	t.Helper()
	k := &proxy{mode: mode}
	t.Cleanup(func() { k.stop(t) }) // also if it never becomes ready: a program that ends with its node breaks the lab
	k.start(t, more)
	return k
}

func (k *proxy) stop(t *testing.T) {
	t.Helper()
	if k.p != nil && k.p.Running() {
		stop(t, k.p)
	}
}

// start starts it and waits until it has programmed everything. Mode ipvs does a full sync every 15 s, by default every
// 30 s. The others do one every hour, and otherwise program changes.
func (k *proxy) start(t *testing.T, more lab.KubeProxyConfig) {
	t.Helper()
	config := lab.KubeProxyConfig{"ipvs": often()}
	maps.Copy(config, more)
	p, err := node().StartKubeProxy(t.Context(), k.mode, config)
	if err != nil {
		t.Fatal(err)
	}
	k.p = p
	cluster.Await(t, patience, "kube-proxy has programmed the node", func(ctx context.Context) error {
		n, err := syncs(ctx)
		if err == nil && n == 0 {
			err = errors.New("not yet")
		}
		return err
	})
}

func often() map[string]any { return map[string]any{"syncPeriod": "15s", "minSyncPeriod": "1s"} }

// syncs returns the number of completed IPv4 syncs of kube-proxy.
func syncs(ctx context.Context) (int, error) {
	out, err := node().Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://"+lab.KubeProxyMetrics.String()+"/metrics")
	if err != nil {
		return 0, err
	}
	return counter(out, `kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"}`)
}

// synced waits for this many more syncs of kube-proxy, and calls nudge until then. Without a nudge only mode ipvs syncs
// by itself.
func synced(t testing.TB, times int, nudge func()) {
	t.Helper()
	before := -1
	cluster.Await(t, patience, fmt.Sprintf("kube-proxy syncs %d times", times), func(ctx context.Context) error {
		now, err := syncs(ctx)
		if err == nil && before < 0 {
			before = now
		}
		if err == nil && now < before+times {
			err = fmt.Errorf("%d so far", now-before)
			if nudge != nil {
				nudge()
			}
		}
		return err
	})
}

// resync changes the endpoints of a Service until kube-proxy has synced three more times.
func resync(t testing.TB, service string) {
	t.Helper()
	round := 0
	synced(t, 3, func() {
		scene.Endpoints(t, service, []string{"a1", "b1"}[round%2])
		round++
	})
}

// caughtUp waits until kube-proxy has programmed all previous changes, which may take many seconds. A new Service is
// served after these, because kube-proxy receives Services, and slices, in their order. It stays until the end of the
// test.
func caughtUp(t *testing.T, mode string) {
	t.Helper()
	svc := scene.Service(t, "caught-up", scene.OfType(corev1.ServiceTypeClusterIP))
	scene.Endpoints(t, "caught-up", "b1")
	scene.Answered(t, scene.PodMachine(t, "a2"), "tcp", scene.Internal(t, svc, scene.HTTPPort), "b1")
	if mode == "ipvs" {
		synced(t, 1, nil) // it is served before the same sync deletes obsolete state
	}
}

// counter returns the value of one sample: a metric and its labels.
func counter(text, sample string) (int, error) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, sample+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			return int(n), err
		}
	}
	return 0, fmt.Errorf("no metric %s", sample)
}

// startSpeaker starts node1's speaker until the end of the test and waits until it is ready.
func startSpeaker(t *testing.T, serviceProxy bool) {
	t.Helper()
	file := filepath.Join(cluster.Dir, fmt.Sprintf("speaker-%t.yaml", serviceProxy))
	// The size of conntrack's table belongs to the initial network namespace.
	text := fmt.Sprintf("serviceProxy: %t\nexternalIPCIDRs: [%s/32]\ndataplane: %s\nconntrack: {maxPerCore: 0, min: 0}\n", serviceProxy, externalIP, dataplane)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := node().StartSpeaker(t.Context(), "--config", file); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopSpeaker(t) })
	ready(t)
}

// ready waits until node1's speaker reports ready.
func ready(t *testing.T) {
	t.Helper()
	cluster.Await(t, patience, "the speaker is ready", func(ctx context.Context) error {
		_, err := readyz(ctx)
		return err
	})
}

func stopSpeaker(t *testing.T) {
	t.Helper()
	if p := node().Speaker(); p != nil && p.Running() {
		if err := node().StopSpeaker(); err != nil {
			t.Error(err)
		}
	}
}

func readyz(ctx context.Context) (string, error) {
	message, err := node().Exec(ctx, "curl", "--fail-with-body", "-sS", "--max-time", "5", "http://127.0.0.1:7950/readyz")
	if err != nil {
		err = fmt.Errorf("%w: %s", err, message)
	}
	return message, err
}

// waitForReports waits until all reports of incompatible combinations name exactly this reason, and contain message; ""
// is none.
func waitForReports(t *testing.T, vip, reason string, message ...string) {
	t.Helper()
	what := "the pairing is reported as compatible"
	if reason != "" {
		what = "the pairing is reported as incompatible: " + reason
	}
	cluster.Await(t, patience, what, func(ctx context.Context) error {
		metrics, err := node().Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://127.0.0.1:7950/metrics")
		if err != nil {
			return err
		}
		for line := range strings.Lines(metrics) {
			if name, is := strings.CutSuffix(strings.TrimSpace(line), "} 1"); is && strings.HasPrefix(name, "ironlb_kube_proxy_problem{") {
				if want := fmt.Sprintf("ironlb_kube_proxy_problem{reason=%q", reason); name != want {
					return fmt.Errorf("metric %s", line)
				}
			}
		}
		if reason != "" && !strings.Contains(metrics, fmt.Sprintf("ironlb_kube_proxy_problem{reason=%q} 1\n", reason)) {
			return errors.New("no metric reports it")
		}
		var v v1alpha1.VirtualIP
		if err := cluster.Objects.Get(ctx, types.NamespacedName{Name: vip}, &v); err != nil {
			return err
		}
		i := slices.IndexFunc(v.Status.Conditions, func(c metav1.Condition) bool { return c.Type == v1alpha1.ConditionKubeProxyConflict })
		if reason == "" {
			if i >= 0 {
				return fmt.Errorf("VirtualIP %s has %+v", vip, v.Status.Conditions[i])
			}
			return nil
		}
		if i < 0 || v.Status.Conditions[i].Reason != reason || v.Status.Conditions[i].Status != metav1.ConditionTrue {
			return fmt.Errorf("VirtualIP %s has %+v", vip, v.Status.Conditions)
		}
		events, err := cluster.Kube.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + node().Name + ",type=Warning,reason=" + reason})
		if err != nil {
			return err
		}
		if len(events.Items) == 0 {
			return errors.New("no Event of the Node")
		}
		ready, err := readyz(ctx)
		if err != nil && reason != "KubeProxyDeletesVirtualServers" && reason != "KubeProxyAlongsideServiceProxy" {
			return err
		}
		for _, text := range message {
			logged := slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, text) })
			if !logged || !strings.Contains(v.Status.Conditions[i].Message, text) || err == nil && !strings.Contains(ready, text) {
				return fmt.Errorf("%q is not reported everywhere: condition %q, /readyz %q, %d Events", text, v.Status.Conditions[i].Message, ready, len(events.Items))
			}
		}
		return nil
	})
}
