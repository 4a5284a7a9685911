package failover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/probe"
	"github.com/ironlb/ironlb/test/lab/steady"
	"github.com/ironlb/ironlb/test/rare"
)

// waitForEvent waits for an Event about the VirtualIP or its Service that contains the text.
func waitForEvent(t *testing.T, v vip, text string) {
	t.Helper()
	cluster.Await(t, patience, fmt.Sprintf("an Event of %s has %q", v.service, text), func(ctx context.Context) error {
		obj, err := virtualIP(ctx, v)
		if err != nil {
			return err
		}
		if obj == nil {
			return errors.New("there is no such VirtualIP")
		}
		events, err := cluster.Kube.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var about []string
		for _, e := range events.Items {
			if o := e.InvolvedObject; o.Name == obj.Name || o.Name == v.service {
				about = append(about, e.Reason+": "+e.Message)
				if strings.Contains(e.Message, text) {
					return nil
				}
			}
		}
		return fmt.Errorf("they are %q", about)
	})
}

// TestAddressInUse: an address that another host uses is not announced, and reported; after the host has gone it is
// announced. It is the IPv4 address of one VirtualIP, and the IPv6 address of another.
func TestAddressInUse(t *testing.T) {
	s := watched(t, 2)
	unknown(t, s)
	host, began := cluster.Router, time.Now()
	var leave []func(context.Context) error
	for f, v := range s.vips {
		leave = append(leave, has(t, host, v.addrs[f]))
		s.serve(v)
	}
	for f, v := range s.vips {
		addr := v.addrs[f]
		c := condition(t, v, v1alpha1.ConditionConflict, metav1.ConditionTrue)
		if !strings.Contains(c.Message, host.MAC()) {
			t.Errorf("the condition does not name %s: %+v", host.MAC(), c)
		}
		waitForEvent(t, v, host.MAC())
		probed := slices.ContainsFunc(s.w.Noticed(addr, began), func(n steady.Notice) bool { return n.Kind == steady.Probe })
		if !probed {
			t.Errorf("no node probed for %v: %+v", addr, s.w.Noticed(addr, began))
		}
		// No node uses either address of the unit.
		for _, a := range v.addrs {
			for _, mac := range s.w.Seen(a, began, time.Now()).All {
				if n, err := byMAC(mac); err == nil {
					t.Errorf("%s answers for %v: %+v", n.Name, a, s.w.Noticed(a, began))
				}
			}
		}
	}
	for _, leave := range leave {
		if err := leave(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	gone := time.Now()
	for _, v := range s.vips {
		cluster.Await(t, patience, v.service+" is announced once the other host is gone", func(context.Context) error {
			_, err := s.owner(v)
			return err
		})
		took := time.Since(gone)
		t.Logf("%s is announced %s after the other host was gone", v.service, took.Round(100*time.Millisecond))
		// The address is requested every 3 s, claimed and probed; the watcher requires a single answering station for a
		// while.
		if took > 8*time.Second+calm+busy && len(s.starved()) == 0 {
			t.Errorf("%s is announced only %s after the other host was gone", v.service, took.Round(time.Second))
		}
	}
}

// TestAnotherAddress: a Service without a requested address does not keep one that another host uses. It gets another
// one, with a Warning.
func TestAnotherAddress(t *testing.T) {
	s := watched(t, 3)
	unknown(t, s)
	host, first := cluster.Router, s.vips[0].addrs[0].Prev() // ironlb-ccm assigns it first
	leave := has(t, host, first)
	services := cluster.Kube.CoreV1().Services(metav1.NamespaceDefault)
	const name = "any-address"
	_, err := services.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"}, PublishNotReadyAddresses: true,
			Ports: []corev1.ServicePort{{Port: tcpPort, TargetPort: intstr.FromInt32(probe.PortStream)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := services.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	var had []string
	cluster.Await(t, patience, "another address is announced", func(ctx context.Context) error {
		svc, err := services.Get(ctx, name, metav1.GetOptions{})
		if err != nil || len(svc.Status.LoadBalancer.Ingress) == 0 {
			return fmt.Errorf("it has no address: %w", err)
		}
		now := svc.Status.LoadBalancer.Ingress[0].IP
		if !slices.Contains(had, now) {
			had = append(had, now)
		}
		var vip v1alpha1.VirtualIP
		if err := cluster.Objects.Get(ctx, client.ObjectKey{Name: now}, &vip); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(vip.Status.Conditions, v1alpha1.ConditionAnnounced) || now == first.String() {
			return fmt.Errorf("%s: %+v", now, vip.Status)
		}
		return nil
	})
	t.Logf("it had %v", had)
	cluster.Await(t, patience, "a Warning names the host", func(ctx context.Context) error {
		list, err := cluster.Kube.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
			FieldSelector: "reason=AddressInUse,involvedObject.name=" + name,
		})
		if err != nil || len(list.Items) == 0 || !strings.Contains(list.Items[0].Message, host.MAC()) {
			return fmt.Errorf("the Events are %+v, %w", list, err)
		}
		return nil
	})
	if err := leave(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// has adds an address to a host until the returned function is called, or until the end of the test.
func has(t *testing.T, host *lab.Machine, addr netip.Addr) (leave func(context.Context) error) {
	t.Helper()
	act := func(ctx context.Context, verb string, more ...string) error {
		_, err := host.Exec(ctx, append([]string{"ip", "addr", verb, netip.PrefixFrom(addr, addr.BitLen()).String(), "dev", "eth0"}, more...)...)
		return err
	}
	if err := act(t.Context(), "add", "nodad"); err != nil {
		t.Fatal(err)
	}
	there := true
	leave = func(ctx context.Context) error {
		if !there {
			return nil
		}
		there = false
		return act(ctx, "del")
	}
	t.Cleanup(func() {
		if err := leave(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return leave
}

// TestForeignClaim: a host that claims an owned address is reported. The owner answers with a claim at once, but not
// again within ten seconds (RFC 5227 2.4, DEFEND_INTERVAL).
func TestForeignClaim(t *testing.T) {
	rare.Test(t)
	s, owners := serving(t, 2)
	for f, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) {
			v := s.vips[f]
			holder, addr := owners[v.service], v.addrs[f]
			// The announcements of a new address continue for some seconds. They are not a defense.
			cluster.Await(t, patience, "the first announcements are over", func(context.Context) error {
				if n := s.w.Noticed(addr, time.Now().Add(-5*time.Second)); len(n) > 0 {
					return fmt.Errorf("%+v", n[len(n)-1])
				}
				return nil
			})
			foreign := net.HardwareAddr{0x02, 0, 0, 0, 0xfe, byte(f)}
			began := time.Now()
			defences := func() (out []steady.Notice) {
				for _, n := range s.w.Noticed(addr, began) {
					if n.Kind == steady.Gratuitous && n.MAC == holder.MAC() {
						out = append(out, n)
					}
				}
				return out
			}
			if err := s.w.Send(steady.Claim(addr, foreign)); err != nil {
				t.Fatal(err)
			}
			cluster.Await(t, patience, holder.Name+" defends the address", func(context.Context) error {
				if len(defences()) == 0 {
					return errors.New("it does not")
				}
				return nil
			})
			first := defences()[0]
			t.Logf("defended after %s", first.At.Sub(began).Round(time.Millisecond))
			condition(t, v, v1alpha1.ConditionConflict, metav1.ConditionTrue)
			t.Logf("reported after %s", time.Since(began).Round(time.Millisecond))
			waitForEvent(t, v, foreign.String())

			// One claim a second, for less than ten seconds: no further defense.
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for time.Since(first.At) < 8*time.Second {
				<-tick.C
				if err := s.w.Send(steady.Claim(addr, foreign)); err != nil {
					t.Fatal(err)
				}
			}
			for _, n := range defences()[1:] {
				if early := n.At.Sub(first.At); early < 10*time.Second {
					t.Errorf("defended again after %s", early)
				}
			}
			if now, err := s.owner(v); err != nil || now != holder {
				t.Errorf("the address was not kept: %v, %v", now, err)
			}
		})
	}
}
