package paused

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/probe"
	"github.com/ironlb/ironlb/test/lab/steady"
)

const (
	service = "web"
	udpPort = 53
	tcpPort = 90

	patience = time.Minute // timeout on a busy or emulated machine
	calm     = time.Second // time with one answering station

	fences = "ironlb_liveness_fences_total"
)

// scene is one dual-stack Service, with observations of its addresses on the LAN.
type scene struct {
	t       *testing.T
	addrs   []netip.Addr // IPv4, IPv6
	w       *steady.Watcher
	frames  *capture
	clients []*steady.Client // one for each address
	fences  map[*lab.Node]int

	// paused is the start of the pause, taken the first answer of the next owner. gaveUp is when the resumed node
	// had logged that its clock had stopped.
	paused, taken, resumed, gaveUp time.Time
}

// serving creates the Service, with owner as its owner and others as candidates.
func serving(t *testing.T, owner *lab.Node, others []*lab.Node) *scene {
	t.Helper()
	cluster.Need(t)
	s := &scene{t: t, fences: map[*lab.Node]int{}}
	s.addrs = []netip.Addr{lab.FreeRange.Addr().Next(), lab.FreeRange6.Addr().Next()}
	s.listen()
	if err := label(t.Context(), `"may-answer"`, owner); err != nil {
		t.Fatal(err)
	}
	s.serve()
	s.owned("at the start", owner)
	if err := label(t.Context(), `"may-answer"`, others...); err != nil {
		t.Fatal(err)
	}
	cluster.Await(s.t, patience, "every node may answer", func(ctx context.Context) error {
		var list v1alpha1.VirtualIPList
		if err := cluster.Objects.List(ctx, &list); err != nil {
			return err
		}
		if len(list.Items) != 1 || len(list.Items[0].Spec.Nodes) != len(cluster.Nodes) {
			return fmt.Errorf("VirtualIPs are %+v", list.Items)
		}
		return nil
	})
	for _, n := range cluster.Nodes {
		s.standby(n, len(cluster.Nodes)-1)
		s.fences[n] = s.metric(n, fences)
	}
	s.owned("with other candidates", owner)
	s.connect()
	return s
}

// listen starts the observers of the addresses.
func (s *scene) listen() {
	s.t.Helper()
	port, err := cluster.AddPort(s.t.Context(), "watch")
	if err != nil {
		s.t.Fatal(err)
	}
	s.w, err = steady.Watch(s.t.Context(), steady.WatchConfig{
		Namespace: port.Namespace, Interface: port.Interface, From4: lab.AskFrom, From6: lab.AskFrom6, Addrs: s.addrs,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.closes(s.w.Close)
	if s.frames, err = newCapture(port, s.addrs); err != nil {
		s.t.Fatal(err)
	}
	s.closes(s.frames.close)
}

func (s *scene) closes(f func() error) {
	s.t.Cleanup(func() {
		if err := f(); err != nil {
			s.t.Error(err)
		}
	})
}

// serve creates the Service.
func (s *scene) serve() {
	s.t.Helper()
	services := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault)
	_, err := services.Create(s.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: service, Annotations: map[string]string{
			v1alpha1.AnnotationAddresses: fmt.Sprintf("%v,%v", s.addrs[0], s.addrs[1]),
		}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"},
			IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyRequireDualStack),
			Ports: []corev1.ServicePort{
				{Name: "udp", Port: udpPort, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(probe.PortUDP)},
				{Name: "tcp", Port: tcpPort, TargetPort: intstr.FromInt32(probe.PortStream)},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
}

// connect starts a client of each address and waits until it is served.
func (s *scene) connect() {
	s.t.Helper()
	for _, a := range s.addrs {
		c, err := steady.Start(cluster.Client.Namespace, steady.Target{
			UDP: netip.AddrPortFrom(a, udpPort), TCP: netip.AddrPortFrom(a, tcpPort),
		})
		if err != nil {
			s.t.Fatal(err)
		}
		s.clients = append(s.clients, c)
		s.closes(c.Stop)
		cluster.Await(s.t, patience, fmt.Sprintf("a client of %v is served", a), func(context.Context) error {
			if now := time.Now(); !c.Steady(now, calm, calm/2) {
				return errors.New(c.Report(now.Add(-calm), now).String())
			}
			return nil
		})
	}
}

// owned waits until one of the nodes alone has answered for both addresses for a while, and returns it.
func (s *scene) owned(when string, among ...*lab.Node) (owner *lab.Node) {
	s.t.Helper()
	cluster.Await(s.t, patience, "the address has an owner "+when, func(context.Context) error {
		now := time.Now()
		macs := []string{s.w.Owner(s.addrs[0], now, calm), s.w.Owner(s.addrs[1], now, calm)}
		i := slices.IndexFunc(among, func(n *lab.Node) bool { return n.MAC() == macs[0] && macs[0] == macs[1] })
		if i < 0 {
			return fmt.Errorf("%q answer", macs)
		}
		owner = among[i]
		return nil
	})
	return owner
}

// lasts waits until a moment while the lab's programs run. The test needs this time itself: for the length of a pause,
// and for the time without moves.
func (s *scene) lasts(until time.Time) {
	s.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ; time.Now().Before(until); <-tick.C {
		cluster.Need(s.t)
	}
}

// firstAnswer returns the time of the node's first answer or announcement since the pause.
func (s *scene) firstAnswer(n *lab.Node) time.Time {
	s.t.Helper()
	all := s.frames.given(n.MAC(), s.paused)
	if len(all) == 0 {
		s.t.Fatalf("nothing came from %s", n.Name)
	}
	return all[0].at
}

// standby waits until the node's speaker is an ordinary candidate: no observer, and it receives that many others.
func (s *scene) standby(n *lab.Node, peers int) {
	s.t.Helper()
	cluster.Await(s.t, patience, n.Name+" is a standby", func(context.Context) error {
		observer, alive := s.metric(n, "ironlb_liveness_observer"), s.metric(n, "ironlb_liveness_peers_alive")
		if observer != 0 || alive != peers {
			return fmt.Errorf("observer %d, peers alive %d of %d", observer, alive, peers)
		}
		return nil
	})
}

// metric of the node's speaker, without labels.
func (s *scene) metric(n *lab.Node, name string) (value int) {
	s.t.Helper()
	out, err := n.Exec(s.t.Context(), "curl", "-fsS", "--max-time", "20", "http://127.0.0.1:7950/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		if _, err := fmt.Sscanf(lines.Text(), name+" %d", &value); err == nil {
			return value
		}
	}
	s.t.Fatalf("%s has no metric %s", n.Name, name)
	return 0
}

// uptime of the node by CLOCK_BOOTTIME, which is never behind CLOCK_MONOTONIC.
func (s *scene) uptime(n *lab.Node) time.Duration {
	s.t.Helper()
	out, err := n.Exec(s.t.Context(), "cat", "/proc/uptime")
	if err != nil {
		s.t.Fatal(err)
	}
	var seconds float64
	if _, err := fmt.Sscanf(out, "%f", &seconds); err != nil {
		s.t.Fatalf("uptime of %s: %q: %v", n.Name, out, err)
	}
	return time.Duration(seconds * float64(time.Second))
}

// neighbor returns the client's neighbor table entry for an address.
func (s *scene) neighbor(addr netip.Addr) string {
	s.t.Helper()
	out, err := cluster.Client.Exec(s.t.Context(), "ip", "neigh", "show", addr.String(), "dev", "eth0")
	if err != nil {
		s.t.Fatal(err)
	}
	fields := strings.Fields(out) // 192.0.2.129 lladdr 02:00:c0:00:02:0b REACHABLE
	if i := slices.Index(fields, "lladdr"); i >= 0 && i+1 < len(fields) {
		return fields[i+1]
	}
	return out
}
