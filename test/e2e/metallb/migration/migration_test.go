// Package migration moves Services from MetalLB to IronLB and back with kubectl ironlb import metallb, as
// docs/tasks/migrate-from-metallb.md says, while clients use them. kube-proxy runs on each node.
package migration

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/bench/metallb"
	"github.com/ironlb/ironlb/test/eventually"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/process"
	"github.com/ironlb/ironlb/test/lab/router"
)

var gap = flag.Duration("gap", 2*time.Second, "how long an address may be unreachable")

var cluster *lab.Cluster

const (
	patience           = 2 * time.Minute
	nodeASN, routerASN = 65001, 65002
	every              = 100 * time.Millisecond // between the requests to an address
	theirClass         = "metallb.example/lb"
)

func TestMain(m *testing.M) {
	config := lab.Config{Nodes: 2, Kernel: lab.Native, BGP: true, KubeProxy: true, Programs: metallb.Programs()}
	lab.Main(m, config, func(_ context.Context, c *lab.Cluster) error {
		cluster = c
		return nil
	})
}

// objects of MetalLB: a pool for all, one that must be requested, and one that is announced by BGP.
const objects = `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: lan, namespace: metallb-system, labels: {zone: lan}}
spec: {addresses: [192.0.2.128/28, %[1]q]}
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: named, namespace: metallb-system, labels: {zone: lan}}
spec: {addresses: [192.0.2.144-192.0.2.147], autoAssign: false}
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: routed, namespace: metallb-system}
spec: {addresses: [192.0.2.208/28], autoAssign: false}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: lan, namespace: metallb-system}
spec: {ipAddressPoolSelectors: [{matchLabels: {zone: lan}}], interfaces: [eth0]}
---
apiVersion: metallb.io/v1beta1
kind: Community
metadata: {name: names, namespace: metallb-system}
spec: {communities: [{name: services, value: "65001:1"}]}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: routed, namespace: metallb-system}
spec: {ipAddressPools: [routed], communities: [services]}
---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: bird, namespace: metallb-system}
spec: {myASN: %[2]d, peerASN: %[3]d, peerAddress: %[4]q, passwordSecret: {name: bird}}
---
apiVersion: v1
kind: Secret
metadata: {name: bird, namespace: metallb-system}
type: kubernetes.io/basic-auth
stringData: {password: %[5]q}
`

const password = "between-routers"

// service of MetalLB. Several with a key share an address, each with a port of its own.
type service struct {
	namespace, name string
	port            int
	annotations     string
	spec            string
	routed          bool
}

func services() []service {
	const legacy = "metallb.universe.tf/"
	return []service{
		{name: "plain-1"}, {name: "plain-2"}, {name: "plain-3"},
		{name: "shared-1", annotations: "metallb.io/allow-shared-ip: a, metallb.io/loadBalancerIPs: 192.0.2.136"},
		{name: "shared-2", annotations: "metallb.io/allow-shared-ip: a, metallb.io/loadBalancerIPs: 192.0.2.136", port: 81},
		{name: "shared-3", annotations: "metallb.io/allow-shared-ip: a, metallb.io/loadBalancerIPs: 192.0.2.136", port: 82},
		{name: "apart-1", annotations: "metallb.io/allow-shared-ip: b, metallb.io/loadBalancerIPs: 192.0.2.137"},
		{name: "apart-2", namespace: "other", annotations: "metallb.io/allow-shared-ip: b, metallb.io/loadBalancerIPs: 192.0.2.137", port: 81},
		{name: "dual-1", spec: "ipFamilyPolicy: RequireDualStack"},
		{name: "dual-2", spec: "ipFamilyPolicy: PreferDualStack"},
		{name: "six", spec: "ipFamilies: [IPv6]"},
		{name: "requested-1", annotations: "metallb.io/loadBalancerIPs: 192.0.2.140"},
		{name: "requested-2", spec: "loadBalancerIP: 192.0.2.141"},
		{name: "named", annotations: "metallb.io/address-pool: named"},
		{name: "legacy-1", annotations: legacy + "allow-shared-ip: c, " + legacy + "loadBalancerIPs: 192.0.2.138"},
		{name: "legacy-2", annotations: legacy + "allow-shared-ip: c, " + legacy + "loadBalancerIPs: 192.0.2.138", port: 81},
		{name: "local-1", spec: "externalTrafficPolicy: Local"},
		{name: "local-2", spec: "externalTrafficPolicy: Local"},
		{name: "bgp-1", annotations: "metallb.io/address-pool: routed", routed: true},
		{name: "bgp-2", annotations: "metallb.io/address-pool: routed", spec: "externalTrafficPolicy: Local", routed: true},
	}
}

func (s service) manifest(class string) string {
	fields := []string{fmt.Sprintf("type: LoadBalancer, selector: {app: web}, ports: [{port: %d, targetPort: http}]", s.portOf())}
	if s.spec != "" {
		fields = append(fields, s.spec)
	}
	if class != "" {
		fields = append(fields, "loadBalancerClass: "+class)
	}
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {namespace: %s, name: %s, annotations: {%s}}\nspec: {%s}\n",
		s.namespaceOf(), s.name, s.annotations, strings.Join(fields, ", "))
}

func (s service) portOf() int { return max(s.port, 80) }

func (s service) namespaceOf() string {
	if s.namespace == "" {
		return metav1.NamespaceDefault
	}
	return s.namespace
}

func (s service) get(ctx context.Context) (*v1.Service, error) {
	return cluster.Kube.CoreV1().Services(s.namespaceOf()).Get(ctx, s.name, metav1.GetOptions{})
}

// migration is the state of the test.
type migration struct {
	t        *testing.T
	m        *metallb.MetalLB
	class    string
	plugin   string
	record   string
	services []service
	probers  map[string]*lab.Prober // by Service and address
}

// TestMigration: MetalLB serves 20 Services of every kind. They move to IronLB and back, and keep every address. Each
// address is unreachable for at most -gap.
func TestMigration(t *testing.T) { migrate(t, "") }

// TestClass: the same with MetalLB serving Services of its --lb-class.
func TestClass(t *testing.T) { migrate(t, theirClass) }

func migrate(t *testing.T, class string) {
	cluster.Need(t)
	s := &migration{t: t, class: class, services: services(), record: filepath.Join(t.TempDir(), "record.yaml")}
	ctx := t.Context()
	s.start(ctx)
	before := s.addresses(ctx)

	// To IronLB.
	ccm := s.startIronLB(ctx)
	s.probe(ctx)
	if out, err := s.run(ctx, "--apply"); err == nil || !strings.Contains(err.Error(), "kubectl -n metallb-system scale deployment controller --replicas=0") {
		t.Fatalf("with MetalLB's controller: %v: %s", err, out)
	}
	s.must(s.m.StopController(ctx))
	moved := s.begin(ctx, "--apply")
	if class != "" { // the upgrade that the command asks for: the class of MetalLB once the pools exist
		cluster.Await(t, patience, "the pools are applied", func(ctx context.Context) error {
			var p v1alpha1.IPAddressPool
			return cluster.Objects.Get(ctx, client.ObjectKey{Name: "routed"}, &p)
		})
		s.must(ccm.Stop(patience))
		ccm = s.startCCM(ctx, "--load-balancer-class", class)
	}
	cluster.Await(t, patience, "all Services are adopted", func(ctx context.Context) error {
		return s.each(ctx, func(svc *v1.Service) error {
			for _, a := range servicerecord.IngressOf(svc) {
				if _, ok := servicerecord.RecordedFor(svc, a); !ok {
					return fmt.Errorf("%v is not recorded", a)
				}
			}
			return nil
		})
	})
	s.must(s.m.StopSpeakers(ctx))
	s.must(moved())
	s.compare(ctx, before)
	s.gaps(ctx, "to IronLB")

	// Back to MetalLB.
	s.probe(ctx)
	s.must(ccm.Stop(patience))
	back := s.begin(ctx, "--undo")
	s.must(s.m.CreatePods(ctx))
	s.startSpeakers(ctx)
	s.must(s.m.SetReady(ctx))
	s.must(back())
	s.must(s.m.StartController(ctx))
	cluster.Await(t, patience, "nothing of IronLB is left on the Services", func(ctx context.Context) error {
		return s.each(ctx, func(svc *v1.Service) error {
			c := meta.FindStatusCondition(svc.Status.Conditions, v1alpha1.ConditionAddresses)
			return eventually.Unless(c == nil && len(svc.Finalizers) == 0, "it has %+v and %v", c, svc.Finalizers)
		})
	})
	s.compare(ctx, before)
	s.gaps(ctx, "back to MetalLB")
}

func (s *migration) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// start starts everything but IronLB, until every address answers.
func (s *migration) start(ctx context.Context) {
	s.t.Helper()
	s.must(cluster.Tools().Own(ctx, "cmd/kubectl-ironlb"))
	s.plugin = cluster.Program("kubectl-ironlb")
	var ranges []string
	for _, r := range lab.PodRanges {
		ranges = append(ranges, r.String())
	}
	bird := router.Config{ASN: routerASN, ID: cluster.Router.Addr}
	for _, n := range cluster.Nodes {
		proxy, err := n.StartKubeProxy(ctx, "nftables", lab.KubeProxyConfig{"clusterCIDR": strings.Join(ranges, ",")})
		s.must(err)
		s.t.Cleanup(func() { _ = proxy.Kill() })
		bird.Neighbors = append(bird.Neighbors, router.Neighbor{Name: n.Name, Address: n.Addr, ASN: nodeASN, Password: password})
		pod := "web-" + n.Name
		_, err = cluster.AddPod(ctx, lab.PodSpec{Name: pod, Node: n, Labels: map[string]string{"app": "web"}})
		s.must(err)
		s.t.Cleanup(func() { s.must(cluster.RemovePod(context.WithoutCancel(ctx), metav1.NamespaceDefault, pod)) })
	}
	tor, err := router.StartBIRD(ctx, router.Place{Host: cluster.Router.Host(), Namespace: "/run/netns/" + cluster.Router.Namespace, Logs: cluster.Dir}, bird)
	s.must(err)
	s.t.Cleanup(func() { _ = tor.Stop() })
	s.m = metallb.New(cluster, metallb.Config{Nodes: cluster.Nodes, Class: s.class,
		Objects: fmt.Sprintf(objects, lab.FreeRange6, nodeASN, routerASN, cluster.Router.Addr, password)})
	s.must(s.m.Install(ctx))
	s.t.Cleanup(func() {
		_ = s.m.Kill()
		_, err := cluster.Kubectl(context.WithoutCancel(ctx), "delete", "pods", "-n", "metallb-system", "--all", "--now")
		s.must(err)
	})
	s.must(s.m.StartController(ctx))
	s.startSpeakers(ctx)
	_, err = cluster.Kubectl(ctx, "create", "namespace", "other")
	if err != nil && !strings.Contains(err.Error(), "already exists") {
		s.t.Fatal(err)
	}
	s.must(cluster.WaitNamespace(ctx, "other"))
	_, err = cluster.AddPod(ctx, lab.PodSpec{Namespace: "other", Name: "web", Node: cluster.Node(0), Labels: map[string]string{"app": "web"}})
	s.must(err)
	s.t.Cleanup(func() { s.must(cluster.RemovePod(context.WithoutCancel(ctx), "other", "web")) })
	var text strings.Builder
	for _, svc := range s.services {
		text.WriteString(svc.manifest(s.class))
	}
	s.must(cluster.ApplyYAML(ctx, text.String()))
	s.t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		for _, svc := range s.services {
			_ = cluster.Kube.CoreV1().Services(svc.namespaceOf()).Delete(ctx, svc.name, metav1.DeleteOptions{})
		}
	})
	cluster.Await(s.t, patience, "MetalLB serves all Services", func(ctx context.Context) error {
		return s.each(ctx, func(svc *v1.Service) error {
			return eventually.Unless(len(svc.Status.LoadBalancer.Ingress) > 0, "it has no address")
		})
	})
}

func (s *migration) startSpeakers(ctx context.Context) {
	s.t.Helper()
	for _, n := range cluster.Nodes {
		s.must(s.m.StartSpeaker(ctx, n))
	}
	for _, n := range cluster.Nodes {
		cluster.Await(s.t, patience, "MetalLB's speaker is ready", func(ctx context.Context) error { return s.m.Ready(ctx, n) })
	}
}

// startIronLB starts IronLB as it is installed, without objects.
func (s *migration) startIronLB(ctx context.Context) *process.Process {
	s.t.Helper()
	ccm := s.startCCM(ctx)
	s.must(cluster.StartSpeakers(ctx))
	s.t.Cleanup(func() {
		for _, n := range cluster.Nodes {
			_ = n.StopSpeaker()
			_ = n.StopBGP()
		}
	})
	for _, n := range cluster.Nodes {
		cluster.Await(s.t, patience, "IronLB's speaker is ready", n.SpeakerReady)
	}
	return ccm
}

func (s *migration) startCCM(ctx context.Context, flags ...string) *process.Process {
	s.t.Helper()
	p, err := cluster.StartCCM(ctx, append([]string{"--leader-elect=false"}, flags...)...)
	s.must(err)
	s.t.Cleanup(func() { _ = p.Kill() })
	return p
}

// run runs kubectl ironlb import metallb.
func (s *migration) run(ctx context.Context, args ...string) (string, error) {
	return cluster.Management.Exec(ctx, append([]string{s.plugin, "--kubeconfig", cluster.Kubeconfig(), "import", "metallb", "--record", s.record}, args...)...)
}

// begin is run in the background. The returned function waits for its end.
func (s *migration) begin(ctx context.Context, args ...string) (end func() error) {
	var group errgroup.Group
	group.Go(func() error {
		out, err := s.run(ctx, args...)
		if err != nil {
			return fmt.Errorf("%s: %w: %s", args, err, out)
		}
		return nil
	})
	return group.Wait
}

// each calls check with every Service.
func (s *migration) each(ctx context.Context, check func(*v1.Service) error) error {
	for _, of := range s.services {
		svc, err := of.get(ctx)
		if err == nil {
			err = check(svc)
		}
		if err != nil {
			return fmt.Errorf("Service %s: %w", of.name, err)
		}
	}
	return nil
}

func (s *migration) addresses(ctx context.Context) map[string][]netip.Addr {
	s.t.Helper()
	out := map[string][]netip.Addr{}
	s.must(s.each(ctx, func(svc *v1.Service) error {
		out[svc.Namespace+"/"+svc.Name] = servicerecord.IngressOf(svc)
		return nil
	}))
	return out
}

// compare compares the addresses with those before, and with what the command reports.
func (s *migration) compare(ctx context.Context, before map[string][]netip.Addr) {
	s.t.Helper()
	for name, now := range s.addresses(ctx) {
		if !slices.Equal(now, before[name]) {
			s.t.Errorf("Service %s: %v before, now %v", name, before[name], now)
		}
	}
	if out, err := s.run(ctx, "--check"); err != nil || !strings.Contains(out, fmt.Sprintf("%d of %[1]d Services", len(s.services))) {
		s.t.Errorf("--check: %v: %s", err, out)
	}
}

// probe starts a client of each address and port, and waits until each is answered.
func (s *migration) probe(ctx context.Context) {
	s.t.Helper()
	s.probers = map[string]*lab.Prober{}
	for _, of := range s.services {
		svc, err := of.get(ctx)
		s.must(err)
		from := cluster.Client
		if of.routed {
			from = cluster.Remote
		}
		for _, a := range servicerecord.IngressOf(svc) {
			p, err := from.StartProbe(ctx, lab.Probe{Network: "tcp", Target: netip.AddrPortFrom(a, uint16(of.portOf())), Every: every, Timeout: 5 * every})
			s.must(err)
			s.probers[fmt.Sprintf("%s %v", of.name, a)] = p
		}
	}
	for name, p := range s.probers {
		if err := p.WaitAnswers(ctx, patience, 3); err != nil {
			s.t.Fatalf("%s: %v", name, err)
		}
	}
}

// gaps waits until every address answers again, ends the clients, and prints the largest gap of each address.
func (s *migration) gaps(ctx context.Context, what string) {
	s.t.Helper()
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(s.probers)) {
		p := s.probers[name]
		if err := p.WaitAnswers(ctx, patience, 10); err != nil {
			s.t.Errorf("%s, %s: %v", what, name, err)
		}
		sum, err := p.Stop()
		if err != nil {
			s.t.Errorf("%s, %s: %v", what, name, err)
			continue
		}
		lines = append(lines, fmt.Sprintf("%8s  %s (%d of %d requests failed)", sum.Outage.Round(time.Millisecond), name, sum.Failed, sum.Sent))
		if sum.Outage > *gap {
			s.t.Errorf("%s: %s was unreachable for %v, at most %v wanted: %v", what, name, sum.Outage, *gap, sum.Errors())
		}
	}
	s.t.Logf("gaps %s:\n%s", what, strings.Join(lines, "\n"))
}
