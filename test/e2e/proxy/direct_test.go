package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/e2e/scene"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/rare"
)

// TestForwardingDirect: any node can be the owner of an address that is forwarded directly, also one without an
// endpoint, and the Pod sees the client's address, with either policy.
func TestForwardingDirect(t *testing.T) {
	rare.Test(t)
	for _, p := range []corev1.ServiceExternalTrafficPolicy{corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal} {
		t.Run(string(p), func(t *testing.T) {
			svc := service(t, "direct", policy(p), func(s *corev1.Service) {
				s.Annotations = map[string]string{v1alpha1.AnnotationForwarding: "direct"}
			})
			endpoints(t, svc.Name, "b1")
			svc = withAddress(t, svc.Name)
			tcp, udp := external(t, svc, httpPort), external(t, svc, udpPort)
			for _, node := range cluster.Nodes {
				by(t, cluster.Client, tcp.Addr(), node)
				direct(t, tcp)
				seen(t, answered(t, cluster.Client, "tcp", tcp, "b1"), cluster.Client.Addr)
				seen(t, answered(t, cluster.Client, "udp", udp, "b1"), cluster.Client.Addr)
			}
		})
	}
}

// direct waits until a Service is forwarded directly: the Pods see the client.
func direct(t *testing.T, to netip.AddrPort) {
	t.Helper()
	cluster.Await(t, scene.Programmed, fmt.Sprintf("Pods of %v see the client", to), func(ctx context.Context) error {
		s, err := cluster.Client.Ask(ctx, lab.Probe{Network: "tcp", Target: to, Count: 1, Every: time.Second, Timeout: 3 * time.Second})
		if err == nil && s.Clients[cluster.Client.Addr.String()] != 1 {
			err = fmt.Errorf("%s, clients %v", s, s.Clients)
		}
		return err
	})
}
