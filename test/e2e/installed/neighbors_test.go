package installed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/rare"
)

// CVE-2020-8554: the admin of a namespace names another node and the cluster's DNS as external IPs. Both keep answering
// every node, and the admin is informed why the addresses are not used.
func TestNamespaceAdmin(t *testing.T) {
	rare.Test(t)
	cluster.Need(t)
	kubectl(t, "create", "namespace", "tenant")
	defer kubectl(t, "delete", "namespace", "tenant", "--wait=false")
	kubectl(t, "-n", "tenant", "create", "rolebinding", "admin", "--clusterrole=admin", "--serviceaccount=tenant:default")
	dns, err := cluster.Kube.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	victim := cluster.Node(2)
	targets := []netip.AddrPort{netip.AddrPortFrom(victim.Addr, 10250), netip.AddrPortFrom(netip.MustParseAddr(dns.Spec.ClusterIP), 53)}
	// Pods and kube-proxy may still be starting after a test that ended a node.
	cluster.Await(t, time.Minute, "every node reaches the kubelet of another one and the cluster's DNS", func(ctx context.Context) error {
		return untouched(ctx, targets)
	})
	kubectl(t, "-n", "tenant", "--as=system:serviceaccount:tenant:default", "create", "service", "clusterip", "taker", "--tcp=8443:8080")
	kubectl(t, "-n", "tenant", "--as=system:serviceaccount:tenant:default", "patch", "service", "taker", "-p", fmt.Sprintf(
		`{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":"ironlb"}},"spec":{"externalIPs":["%s","%s"]}}`,
		victim.Addr, dns.Spec.ClusterIP))
	var taker *corev1.Service
	cluster.Await(t, 30*time.Second, "the Service names what is refused", func(ctx context.Context) error {
		if taker, err = cluster.Kube.CoreV1().Services("tenant").Get(ctx, "taker", metav1.GetOptions{}); err != nil {
			return err
		}
		c := meta.FindStatusCondition(taker.Status.Conditions, "ironlb.io/Warnings")
		if c == nil || !strings.Contains(c.Message, victim.Addr.String()) || !strings.Contains(c.Message, dns.Spec.ClusterIP) {
			return fmt.Errorf("conditions are %+v", taker.Status.Conditions)
		}
		return nil
	})
	for _, n := range cluster.Nodes {
		// The ClusterIP becomes local together with the external IPs of its Service.
		cluster.Await(t, 30*time.Second, "ironlb-speaker serves the Service on "+n.Name, func(ctx context.Context) error {
			return local(ctx, n, taker.Spec.ClusterIP)
		})
		if local(t.Context(), n, dns.Spec.ClusterIP) == nil || n != victim && local(t.Context(), n, victim.Addr.String()) == nil {
			t.Errorf("%s takes in an address that is not the tenant's", n.Name)
		}
	}
	if err := untouched(t.Context(), targets); err != nil {
		t.Error(err)
	}
}

// A Pod's hostPort, by the CNI plugin portmap, keeps its own address and takes no traffic of a Service's address, in
// either order of creation.
func TestHostPort(t *testing.T) {
	cluster.Need(t)
	service := serve(t)
	pod := func(name string) *lab.Node {
		t.Helper()
		manifest := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"nodeName":%q,
			"terminationGracePeriodSeconds":0,"containers":[{"name":"server","image":"localhost/lab/labpod:1","imagePullPolicy":"Never",
			"args":["serve",%[1]q],"ports":[{"containerPort":8080,"hostPort":80}]}]}}`, name, ownerOf(t, service.Addr()).Name)
		if err := cluster.ApplyYAML(t.Context(), manifest); err != nil {
			t.Fatal(err)
		}
		kubectl(t, "wait", "--for=condition=Ready", "--timeout=60s", "pod/"+name)
		p, err := cluster.Kube.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return cluster.NodeByName(p.Spec.NodeName)
	}
	check := func(name string, n *lab.Node) {
		t.Helper()
		for range 20 {
			if got := get(t, cluster.Client, service); !strings.HasPrefix(got, "web-") {
				t.Errorf("%v: answer of %q, want one of the Pods of Service web", service, got)
			}
		}
		if own := netip.AddrPortFrom(n.Addr, 80); get(t, cluster.Client, own) != name {
			t.Errorf("%v: no answer of the Pod with the hostPort", own)
		}
	}
	first := pod("hostport-after")
	check("hostport-after", first)
	// The speaker recreates its rules, after those of the hostPort.
	deletePod(t, first, "ironlb-speaker")
	ownerOf(t, service.Addr())
	check("hostport-after", first)
	kubectl(t, "delete", "pod", "hostport-after", "--wait")
}

// A Service of another controller stays unchanged, whatever happens to ironlb-ccm.
func TestForeignController(t *testing.T) {
	rare.Test(t)
	cluster.Need(t)
	serve(t)
	const manifest = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"foreign","finalizers":["service.kubernetes.io/load-balancer-cleanup"]},
		"spec":{"type":"LoadBalancer","loadBalancerClass":"example.com/lb","ports":[{"port":80,"targetPort":8080}]}}`
	if err := cluster.ApplyYAML(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
	services := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault)
	defer func() {
		_, err := services.Patch(context.WithoutCancel(t.Context()), "foreign", types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		kubectl(t, "delete", "service", "foreign")
		if err != nil {
			t.Error(err)
		}
	}()
	kubectl(t, "patch", "service", "foreign", "--subresource=status", "-p",
		fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q}]}}}`, cluster.Node(2).Addr))
	before, err := services.Get(t.Context(), "foreign", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rollOut(t, "deployment/ironlb-ccm")
	// When a new Service has received an address and released it, the controllers have processed all earlier objects.
	kubectl(t, "create", "service", "loadbalancer", "barrier", "--tcp=80:8080")
	cluster.Await(t, time.Minute, "Service barrier to get an address", func(ctx context.Context) error {
		s, err := services.Get(ctx, "barrier", metav1.GetOptions{})
		if err == nil && len(s.Status.LoadBalancer.Ingress) == 0 {
			err = errors.New("it has none")
		}
		return err
	})
	kubectl(t, "delete", "service", "barrier", "--wait")
	after, err := services.Get(t.Context(), "foreign", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if before.ResourceVersion != after.ResourceVersion {
		t.Errorf("written: was %+v, is %+v", before, after)
	}
	if err := untouched(t.Context(), []netip.AddrPort{netip.AddrPortFrom(cluster.Node(2).Addr, 10250)}); err != nil {
		t.Error(err)
	}
}

// untouched returns an error unless every node connects to each target.
func untouched(ctx context.Context, targets []netip.AddrPort) error {
	var failures []error
	for _, n := range cluster.Nodes {
		for _, to := range targets {
			command := fmt.Sprintf("exec 3<>/dev/tcp/%s/%d", to.Addr(), to.Port())
			if _, err := n.Kubelet().Exec(ctx, "timeout", "5", "bash", "-c", command); err != nil {
				failures = append(failures, fmt.Errorf("%s to %v: %w", n.Name, to, err))
			}
		}
	}
	return errors.Join(failures...)
}

// local returns an error unless an address is a local one of the node.
func local(ctx context.Context, n *lab.Node, addr string) error {
	routes, err := n.Kubelet().Exec(ctx, "ip", "route", "show", "table", "local", addr)
	if err == nil && !strings.Contains(routes, "local "+addr) {
		err = errors.New("no local route")
	}
	return err
}

// get returns the name of the Pod that answers a request.
func get(t *testing.T, from *lab.Machine, to netip.AddrPort) string {
	t.Helper()
	out, err := from.Exec(t.Context(), "curl", "-fsS", "--max-time", "5", fmt.Sprintf("http://%v/", to))
	if err != nil {
		t.Errorf("%v: %v", to, err)
	}
	name, _, _ := strings.Cut(strings.TrimSpace(out), " ")
	return name
}
