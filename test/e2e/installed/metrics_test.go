package installed

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/rare"
)

// TestSecureMetrics: with metrics.secure, a ServiceAccount of metrics.readers reads the metrics of all programs at the
// addresses of their Pods, those of nodes for speaker and ironlb-bgpd. No other client does. The Secret of the
// certificate may come later.
func TestSecureMetrics(t *testing.T) {
	rare.Test(t)
	cluster.Need(t)
	serve(t)
	t.Cleanup(func() {
		if err := start(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	const secure = "metrics.secure=true,metrics.readers[0].namespace=default,metrics.readers[0].name=reader"
	install := func(values string) {
		t.Helper()
		if err := cluster.Install(t.Context(), "--values", "test/lab/demo/values.yaml", "--set", "speaker.minReadySeconds=0,bgpd.minReadySeconds=0", "--set", values); err != nil {
			t.Fatal(err)
		}
		settled(t)
	}
	install(secure)
	targets := metricsOf(t)
	reader, other := token(t, "reader"), token(t, "other")
	for target, metric := range targets {
		nobody := "401"
		if metric == ccmMetric {
			nobody = "403" // as for every program with Kubernetes' library: it is system:anonymous
		}
		for name, client := range map[string]struct{ token, want string }{
			"the reader": {reader, "200"}, "another": {other, "403"}, "an invalid token": {"x.y.z", "401"}, "no token": {"", nobody},
		} {
			// ironlb-bgpd may restart, and a client has few handshakes a second.
			cluster.Await(t, time.Minute, target+" for "+name, func(ctx context.Context) error {
				status, body := scrape(ctx, target, client.token)
				if status != client.want || strings.Contains(body, "\n"+metric) != (client.want == "200") {
					return fmt.Errorf("status %s, %.300s", status, body)
				}
				return nil
			})
		}
	}
	// All Pods become Ready without the Secret of the certificate, and use it when it is there.
	install(secure + ",metrics.tlsSecret=later")
	certificate := secret(t, "later")
	for target := range metricsOf(t) {
		cluster.Await(t, 5*time.Minute, target+" with the certificate", func(ctx context.Context) error { // the kubelet and ironlb-ccm look once a minute
			if status, body := scrape(ctx, target, reader, "-w", "%{certs}\n%{http_code}"); status != "200" || !strings.Contains(body, certificate) {
				return fmt.Errorf("status %s, ...%s", status, body[max(0, len(body)-1500):])
			}
			return nil
		})
	}
}

// secret creates a Secret with a new certificate, which it returns as PEM.
func secret(t *testing.T, name string) string {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("ironlb", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	secrets := cluster.Kube.CoreV1().Secrets(lab.SystemNamespace)
	if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := secrets.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	first, _, _ := strings.Cut(string(certificate), "-----END") // its issuer follows
	return strings.TrimSpace(first)
}

// ccmMetric is a metric of each replica of ironlb-ccm. Only the leader has others of its own.
const ccmMetric = "kubernetes_build_info"

// metricsOf returns where the Pods serve metrics, with the beginning of a metric that is there.
func metricsOf(t *testing.T) map[string]string {
	t.Helper()
	pods, err := cluster.Kube.CoreV1().Pods(lab.SystemNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name in (ironlb-ccm, ironlb-speaker)"})
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]string{}
	for _, p := range pods.Items {
		if p.DeletionTimestamp != nil {
			continue
		}
		switch p.Labels["app.kubernetes.io/name"] {
		case "ironlb-ccm":
			targets["https://"+net.JoinHostPort(p.Status.PodIP, "10258")+"/metrics"] = ccmMetric
		default:
			if p.Status.PodIP != p.Status.HostIP {
				t.Errorf("%s has the address %s, not that of its node, %s", p.Name, p.Status.PodIP, p.Status.HostIP)
			}
			base := "https://" + net.JoinHostPort(p.Status.HostIP, "7950") + "/metrics"
			targets[base], targets[base+"/bgpd"] = "ironlb_speaker_", "ironlb_bgp_"
		}
	}
	if len(targets) != 2+2*len(cluster.Nodes) {
		t.Fatalf("targets %v", targets)
	}
	return targets
}

// token returns one of a new ServiceAccount.
func token(t *testing.T, name string) string {
	t.Helper()
	accounts := cluster.Kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := accounts.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	answer, err := accounts.CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status.Token
}

// scrape returns the status and the body of an answer, as a Pod on the first node gets it.
func scrape(ctx context.Context, target, token string, more ...string) (status, body string) {
	argv := append([]string{"curl", "-sSk", "--max-time", "5", "-w", "\n%{http_code}", target}, more...)
	if token != "" {
		argv = append(argv, "-H", "Authorization: Bearer "+token)
	}
	out, err := cluster.Node(0).Exec(ctx, argv...)
	if err != nil {
		return err.Error(), out
	}
	end := strings.LastIndex(out, "\n")
	return out[end+1:], out[:end]
}
