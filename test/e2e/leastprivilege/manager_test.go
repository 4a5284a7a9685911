package leastprivilege

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/eventually"
	"github.com/ironlb/ironlb/test/lab"
)

// managerChecks are the checks of ironlb-ccm.
var managerChecks = []check{
	{"a Service gets an address", append(reads("services"), "patch services/status"), func(ctx context.Context, f *fixture) error {
		name := ""
		return f.each(ctx, func(i int) error {
			name = f.name("web")
			class := ""
			if i%2 == 1 {
				class = "loadBalancerClass: ironlb.io/lb"
			}
			return f.service(ctx, name, "", class)
		}, func(ctx context.Context, _ int) error { return f.hasAddress(ctx, metav1.NamespaceDefault, name) })
	}},
	{"a deleted Service releases its finalizer and address", nil, func(ctx context.Context, f *fixture) error {
		name := f.name("web")
		if err := f.service(ctx, name, "", ""); err != nil {
			return err
		}
		if err := f.soon(ctx, func(ctx context.Context) error { return f.hasAddress(ctx, metav1.NamespaceDefault, name) }); err != nil {
			return err
		}
		if err := f.Objects.Delete(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}}); err != nil {
			return err
		}
		return f.soon(ctx, func(ctx context.Context) error { return f.gone(ctx, &corev1.Service{}, name) })
	}},
	{"a namespace's labels select its pool", reads("namespaces"), func(ctx context.Context, f *fixture) error {
		pool, namespace := f.name("team"), ""
		if err := f.own(ctx, "IPAddressPool", pool, "{addresses: [%q, %q], serviceAllocation: {namespaceSelectors: [{matchLabels: {pool: %s}}]}}",
			f.addresses(), f.addresses(), pool); err != nil {
			return err
		}
		return f.each(ctx, func(int) error {
			namespace = f.name("team") + "-" + strings.ToLower(fmt.Sprintf("%x", time.Now().UnixNano()))
			if err := f.create(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {pool: %s}}}", namespace, pool); err != nil {
				return err
			}
			return f.create(ctx, "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: %s, annotations: {ironlb.io/ip-pool: %s}}, "+
				"spec: {type: LoadBalancer, ports: [{port: 80}]}}", namespace, pool)
		}, func(ctx context.Context, _ int) error { return f.hasAddress(ctx, namespace, "web") })
	}},
	{"no Service gets the address of a node", reads("nodes"), func(ctx context.Context, f *fixture) error {
		addr := lab.FreeRange.Addr().Next()
		return f.each(ctx, func(int) error {
			addr = addr.Next()
			return f.addNode(ctx, f.name("other"), addr.String())
		}, func(ctx context.Context, _ int) error {
			var pool v1alpha1.IPAddressPool
			if err := f.get(ctx, &pool, "lan"); err != nil {
				return err
			}
			return conditionIs(pool.Status.Conditions, "Withheld", metav1.ConditionTrue, addr.String())
		})
	}},
	{"a Service with an address in a new ServiceCIDR gets an Event", reads("servicecidrs"), func(ctx context.Context, f *fixture) error {
		name := ""
		return f.each(ctx, func(int) error {
			addresses := f.addresses()
			name = f.name("covered")
			return errors.Join(f.own(ctx, "IPAddressPool", name, "{addresses: [%q], autoAssign: false}", addresses),
				f.service(ctx, name, "ironlb.io/ip-pool: "+name, ""),
				f.create(ctx, "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: %s}, spec: {cidrs: [%q]}}", name, addresses))
		}, func(ctx context.Context, _ int) error {
			var o corev1.Service
			if err := f.Objects.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}, &o); err != nil {
				return err
			}
			return conditionIs(o.Status.Conditions, "ironlb.io/Warnings", metav1.ConditionTrue, "(rule ServiceCIDR)")
		})
	}},
	{"IPAddressPools have status", append(reads("ipaddresspools"), "patch ipaddresspools/status"), func(ctx context.Context, f *fixture) error {
		name := ""
		return f.each(ctx, func(int) error {
			name = f.name("pool")
			return f.own(ctx, "IPAddressPool", name, "{addresses: [%q]}", f.addresses())
		}, func(ctx context.Context, _ int) error {
			var o v1alpha1.IPAddressPool
			if err := f.get(ctx, &o, name); err != nil {
				return err
			}
			return conditionIs(o.Status.Conditions, "Ready", metav1.ConditionTrue, "")
		})
	}},
	{"L2Advertisements have status", append(reads("l2advertisements"), "patch l2advertisements/status"), func(ctx context.Context, f *fixture) error {
		name := ""
		return f.each(ctx, func(int) error {
			name = f.name("l2")
			return f.own(ctx, "L2Advertisement", name, "{ipAddressPools: [lan]}")
		}, func(ctx context.Context, _ int) error {
			var o v1alpha1.L2Advertisement
			if err := f.get(ctx, &o, name); err != nil {
				return err
			}
			return conditionIs(o.Status.Conditions, "Ready", metav1.ConditionTrue, "")
		})
	}},
	{"BGPPeers have status", append(reads("bgppeers"), "patch bgppeers/status"), func(ctx context.Context, f *fixture) error {
		name := ""
		return f.each(ctx, func(int) error {
			name = f.name("peer")
			return f.own(ctx, "BGPPeer", name, "%s", idlePeer(f))
		}, func(ctx context.Context, _ int) error {
			return f.peerIs(ctx, name, "Ready", metav1.ConditionTrue, "")
		})
	}},
	{"BGPAdvertisements have status", append(reads("bgpadvertisements"), "patch bgpadvertisements/status"), func(ctx context.Context, f *fixture) error {
		name := ""
		return f.each(ctx, func(int) error {
			name = f.name("bgp")
			return f.own(ctx, "BGPAdvertisement", name, "{ipAddressPools: [lan]}")
		}, func(ctx context.Context, _ int) error {
			return f.advertisementIs(ctx, name, metav1.ConditionTrue)
		})
	}},
	{"a BGPPeer reports whether its BFDProfile exists", reads("bfdprofiles"), func(ctx context.Context, f *fixture) error {
		peer, profile := f.name("peer"), f.name("profile")
		if err := f.own(ctx, "BGPPeer", peer, "{bfdProfile: %s, %s", profile, strings.TrimPrefix(idlePeer(f), "{")); err != nil {
			return err
		}
		return f.each(ctx, func(i int) error {
			return f.toggle(ctx, i, &v1alpha1.BFDProfile{ObjectMeta: named(profile)}, "BFDProfile", "{}")
		},
			func(ctx context.Context, i int) error { return f.peerIs(ctx, peer, "Ready", existing(i), "") })
	}},
	{"a BGPAdvertisement reports whether its community exists", reads("communities"), func(ctx context.Context, f *fixture) error {
		ad, community := f.name("bgp"), f.name("community")
		if err := f.own(ctx, "BGPAdvertisement", ad, "{ipAddressPools: [lan], communities: [%s]}", community); err != nil {
			return err
		}
		return f.each(ctx, func(i int) error {
			return f.toggle(ctx, i, &v1alpha1.Community{ObjectMeta: named(community)}, "Community", "{communities: [{name: "+community+", value: '65000:1'}]}")
		}, func(ctx context.Context, i int) error { return f.advertisementIs(ctx, ad, existing(i)) })
	}},
	{"a BGPPeer reports the sessions of nodes", reads("speakerstatuses"), func(ctx context.Context, f *fixture) error {
		peer, node := f.name("peer"), f.name("other")
		if err := errors.Join(f.addNode(ctx, node, "192.0.2.99"), f.own(ctx, "BGPPeer", peer, "%s", idlePeer(f)),
			f.patch(ctx, &v1alpha1.BGPPeer{ObjectMeta: named(peer)}, "{spec: {nodeSelectors: [{matchLabels: {name: "+node+"}}]}}"),
			f.create(ctx, "{apiVersion: ironlb.io/v1alpha1, kind: SpeakerStatus, metadata: {name: %s}}", node)); err != nil {
			return err
		}
		return f.each(ctx, func(i int) error {
			return f.patch(ctx, &v1alpha1.SpeakerStatus{ObjectMeta: named(node)}, fmt.Sprintf(
				"{status: {dataPlane: {healthy: true}, virtualIPs: 0, alive: 1/1, bgp: {established: 0/1, sessions: [{peer: %s, state: Idle, reason: Round%d, prefixes: 0}]}}}", peer, i), "status")
		}, func(ctx context.Context, i int) error {
			return f.peerIs(ctx, peer, "Established", metav1.ConditionFalse, fmt.Sprintf("Round%d", i))
		})
	}},
	{"a BGPAdvertisement lists addresses without an endpoint", reads("endpointslices"), func(ctx context.Context, f *fixture) error {
		name, peer, names := f.name("bgp"), f.name("peer"), make([]string, rounds)
		unserved := func(ctx context.Context, want int32) error {
			var o v1alpha1.BGPAdvertisement
			if err := f.get(ctx, &o, name); err != nil {
				return err
			}
			var got int32
			for _, u := range o.Status.Unserved {
				if u.Reason == "NoEndpoint" {
					got = u.Count
				}
			}
			if got != want {
				return fmt.Errorf("%d addresses without an endpoint, want %d: %+v", got, want, o.Status.Unserved)
			}
			return nil
		}
		if err := errors.Join(f.addNode(ctx, name, "192.0.2.98"), f.own(ctx, "BGPPeer", peer, "%s", idlePeer(f)),
			f.own(ctx, "IPAddressPool", name, "{addresses: [%q, %q], autoAssign: false}", f.addresses(), f.addresses()),
			f.create(ctx, "{apiVersion: ironlb.io/v1alpha1, kind: SpeakerStatus, metadata: {name: %s}}", name),
			f.patch(ctx, &v1alpha1.SpeakerStatus{ObjectMeta: named(name)}, fmt.Sprintf("{status: {dataPlane: {healthy: true}, virtualIPs: 0, "+
				"bgp: {sessions: [{peer: %s, state: Idle, families: [IPv4], prefixes: 0}]}}}", peer), "status"),
			f.own(ctx, "BGPAdvertisement", name, "{ipAddressPools: [%s], nodeSelectors: [{matchLabels: {name: %s}}]}", name, name)); err != nil {
			return err
		}
		for i := range names {
			names[i] = f.name("idle")
			if err := f.create(ctx, "{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: default, annotations: {ironlb.io/ip-pool: %s}}, "+
				"spec: {type: LoadBalancer, ports: [{port: 80}]}}", names[i], name); err != nil {
				return err
			}
		}
		// They count after ten seconds.
		if err := eventually.Poll(ctx, pause, 40*time.Second, "the unserved Services", func(ctx context.Context) error { return unserved(ctx, rounds) }); err != nil {
			return err
		}
		return f.each(ctx, func(i int) error {
			return f.create(ctx, "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %s, namespace: default, labels: {kubernetes.io/service-name: %s}}, "+
				"addressType: IPv4, ports: [{port: 80}], endpoints: [{addresses: [192.0.2.97]}]}", names[i], names[i])
		}, func(ctx context.Context, i int) error { return unserved(ctx, int32(rounds-1-i)) })
	}},
	{"an address gets a VirtualIP", []string{"create virtualips", "list virtualips"}, func(ctx context.Context, f *fixture) error {
		_, err := f.virtualIP(ctx, "")
		return err
	}},
	{"a deleted VirtualIP is recreated", []string{"watch virtualips"}, func(ctx context.Context, f *fixture) error {
		name, err := f.virtualIP(ctx, "")
		if err != nil {
			return err
		}
		if err := f.soon(ctx, func(ctx context.Context) error { return f.owned(ctx, name) }); err != nil {
			return err
		}
		return f.each(ctx, func(int) error { return f.Objects.Delete(ctx, &v1alpha1.VirtualIP{ObjectMeta: named(name)}) },
			func(ctx context.Context, _ int) error { return f.owned(ctx, name) })
	}},
	{"a VirtualIP lists the nodes that may answer", []string{"patch virtualips"}, func(ctx context.Context, f *fixture) error {
		return f.withoutNode(ctx, func(ctx context.Context, vip *v1alpha1.VirtualIP) error {
			if len(vip.Spec.Nodes) > 0 {
				return fmt.Errorf("it lists %v, though no node matches", vip.Spec.Nodes)
			}
			return nil
		})
	}},
	{"a VirtualIP reports that no node may answer", []string{"patch virtualips/status"}, func(ctx context.Context, f *fixture) error {
		return f.withoutNode(ctx, func(_ context.Context, vip *v1alpha1.VirtualIP) error {
			return conditionIs(vip.Status.Conditions, v1alpha1.ConditionNoEligibleNode, metav1.ConditionTrue, "")
		})
	}},
	{"a VirtualIP is deleted with its Service", []string{"delete virtualips"}, func(ctx context.Context, f *fixture) error {
		service := f.name("web")
		vip, err := f.virtualIP(ctx, service)
		if err != nil {
			return err
		}
		if err := f.Objects.Delete(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: service, Namespace: metav1.NamespaceDefault}}); err != nil {
			return err
		}
		return f.soon(ctx, func(ctx context.Context) error { return f.gone(ctx, &v1alpha1.VirtualIP{}, vip) })
	}},
	{"an Event explains what is wrong", []string{"create events"}, func(ctx context.Context, f *fixture) error {
		_, err := f.wrongAdvertisement(ctx)
		return err
	}},
	{"a repeated Event is counted", []string{"patch events"}, func(ctx context.Context, f *fixture) error {
		name, err := f.wrongAdvertisement(ctx)
		if err != nil {
			return err
		}
		ad := &v1alpha1.L2Advertisement{ObjectMeta: named(name)}
		if err := f.patch(ctx, ad, "{spec: {ipAddressPools: [lan]}}"); err != nil {
			return err
		}
		if err := f.soon(ctx, func(ctx context.Context) error {
			var o v1alpha1.L2Advertisement
			if err := f.get(ctx, &o, name); err != nil {
				return err
			}
			return conditionIs(o.Status.Conditions, "Ready", metav1.ConditionTrue, "")
		}); err != nil {
			return err
		}
		if err := f.patch(ctx, ad, "{spec: {ipAddressPools: [absent]}}"); err != nil {
			return err
		}
		return f.soon(ctx, func(ctx context.Context) error { return f.event(ctx, ccm, name, "UnknownPool", 2) })
	}},
	{"the leader renews its Lease", []string{"create leases", "get leases", "update leases"}, func(ctx context.Context, f *fixture) error {
		var times []time.Time
		return f.soon(ctx, func(ctx context.Context) error {
			var lease coordinationv1.Lease
			if err := f.get(ctx, &lease, ccm); err != nil {
				return err
			}
			if at := lease.Spec.RenewTime; at != nil && !slices.Contains(times, at.Time) {
				times = append(times, at.Time)
			}
			if len(times) < 3 {
				return fmt.Errorf("renewed at %v", times)
			}
			return nil
		})
	}},
	{"/metrics is served to an account that may read it, and to no other", []string{"system:auth-delegator"}, func(ctx context.Context, f *fixture) error {
		allowed, err := f.scraper(ctx, true)
		if err != nil {
			return err
		}
		denied, err := f.scraper(ctx, false)
		if err != nil {
			return err
		}
		return f.soon(ctx, func(ctx context.Context) error {
			return cmp.Or(f.scrape(ctx, "200", "-H", "Authorization: Bearer "+allowed), f.scrape(ctx, "403", "-H", "Authorization: Bearer "+denied))
		})
	}},
	{"/metrics is served to a holder of a client certificate of the cluster", []string{"extension-apiserver-authentication-reader"}, func(ctx context.Context, f *fixture) error {
		if _, err := f.scraper(ctx, true); err != nil { // covers the name of the certificate, too
			return err
		}
		return f.soon(ctx, func(ctx context.Context) error {
			return f.scrape(ctx, "200", "--cert", f.ca.clientCert, "--key", f.ca.clientKey)
		})
	}},
	{"a second replica takes over", nil, func(ctx context.Context, f *fixture) error {
		holder := func(ctx context.Context) (string, error) {
			var lease coordinationv1.Lease
			if err := f.get(ctx, &lease, ccm); err != nil {
				return "", err
			}
			if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
				return "", errors.New("the Lease has no holder")
			}
			return *lease.Spec.HolderIdentity, nil
		}
		before := ""
		if err := f.soon(ctx, func(ctx context.Context) (err error) { before, err = holder(ctx); return err }); err != nil {
			return err
		}
		second, err := f.StartCCM(ctx, "--probe-bind-address=127.0.0.1:7475", "--secure-port=10259")
		if err != nil {
			return err
		}
		second.Expect()
		err = f.soon(ctx, func(ctx context.Context) error {
			_, err := f.Management.Exec(ctx, "curl", "-sS", "--fail", "--max-time", "2", "http://127.0.0.1:7475/livez")
			return err
		})
		if err := errors.Join(err, f.manager.Stop(10*time.Second)); err != nil {
			return err
		}
		f.manager = second
		if err := f.soon(ctx, func(ctx context.Context) error {
			now, err := holder(ctx)
			if err == nil && now == before {
				err = fmt.Errorf("%s still holds the Lease", now)
			}
			return err
		}); err != nil {
			return err
		}
		name := f.name("web")
		if err := f.service(ctx, name, "", ""); err != nil {
			return err
		}
		return f.soon(ctx, func(ctx context.Context) error { return f.hasAddress(ctx, metav1.NamespaceDefault, name) })
	}},
}

// idlePeer returns the spec of a BGPPeer that selects no node.
func idlePeer(f *fixture) string {
	return fmt.Sprintf("{myASN: %d, peerASN: %d, peerAddress: 192.0.2.%d, nodeSelectors: [{matchLabels: {none: here}}]}", nodeASN, routerASN, 200+f.seq%50)
}

// existing returns the expected status of a condition in round i, if toggle creates in the even rounds.
func existing(i int) metav1.ConditionStatus {
	if i%2 == 0 {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// toggle creates the object in even rounds and deletes it in odd ones.
func (f *fixture) toggle(ctx context.Context, i int, o client.Object, kind, spec string) error {
	if i%2 == 0 {
		return f.own(ctx, kind, o.GetName(), "%s", spec)
	}
	return f.Objects.Delete(ctx, o)
}

func (f *fixture) hasAddress(ctx context.Context, namespace, name string) error {
	svc, err := f.Kube.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err == nil && len(svc.Status.LoadBalancer.Ingress) == 0 {
		err = fmt.Errorf("Service %s has no address: %v", name, svc.Status.Conditions)
	}
	return err
}

// conditionIs checks a condition and that its message or reason contains a text.
func conditionIs(all []metav1.Condition, kind string, status metav1.ConditionStatus, text string) error {
	c := meta.FindStatusCondition(all, kind)
	if c == nil {
		return fmt.Errorf("there is no condition %s", kind)
	}
	if c.Status != status || !strings.Contains(c.Reason+" "+c.Message, text) {
		return fmt.Errorf("condition %s is %s (%s: %s), want %s with %q", kind, c.Status, c.Reason, c.Message, status, text)
	}
	return nil
}

func (f *fixture) peerIs(ctx context.Context, name, condition string, status metav1.ConditionStatus, text string) error {
	var o v1alpha1.BGPPeer
	if err := f.get(ctx, &o, name); err != nil {
		return err
	}
	return conditionIs(o.Status.Conditions, condition, status, text)
}

func (f *fixture) advertisementIs(ctx context.Context, name string, status metav1.ConditionStatus) error {
	var o v1alpha1.BGPAdvertisement
	if err := f.get(ctx, &o, name); err != nil {
		return err
	}
	return conditionIs(o.Status.Conditions, "Ready", status, "")
}

// addNode creates a Node with an address that no kubelet changes.
func (f *fixture) addNode(ctx context.Context, name, addr string) error {
	if err := f.create(ctx, "{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {name: %s}}}", name, name); err != nil {
		return err
	}
	return f.patch(ctx, &corev1.Node{ObjectMeta: named(name)}, "{status: {addresses: [{type: InternalIP, address: "+addr+"}]}}", "status")
}

// virtualIP creates a Service and waits for its VirtualIP. It returns the name of the VirtualIP.
func (f *fixture) virtualIP(ctx context.Context, service string) (name string, err error) {
	service = cmp.Or(service, f.name("web"))
	if err := f.service(ctx, service, "", ""); err != nil {
		return "", err
	}
	return f.virtualIPOf(ctx, service)
}

func (f *fixture) virtualIPOf(ctx context.Context, service string) (name string, err error) {
	return name, f.soon(ctx, func(ctx context.Context) error {
		var all v1alpha1.VirtualIPList
		if err := f.Objects.List(ctx, &all); err != nil {
			return err
		}
		for _, vip := range all.Items {
			if slices.ContainsFunc(vip.Spec.Services, func(s v1alpha1.ServiceReference) bool { return s.Name == service }) {
				name = vip.Name
				return nil
			}
		}
		return fmt.Errorf("no VirtualIP is of Service %s", service)
	})
}

// withoutNode creates an address, makes its only node ineligible, and waits for the effect on its VirtualIP.
func (f *fixture) withoutNode(ctx context.Context, effect func(context.Context, *v1alpha1.VirtualIP) error) error {
	name, label := f.name("alone"), &corev1.Node{ObjectMeta: named(f.node.Name)}
	err := errors.Join(f.patch(ctx, label, "{metadata: {labels: {test: "+name+"}}}"),
		f.own(ctx, "IPAddressPool", name, "{addresses: [%q]}", f.addresses()),
		f.own(ctx, "L2Advertisement", name, "{ipAddressPools: [%s], nodeSelectors: [{matchLabels: {test: %s}}]}", name, name),
		f.service(ctx, name, "ironlb.io/ip-pool: "+name, ""))
	if err != nil {
		return err
	}
	vip, err := f.virtualIPOf(ctx, name)
	if err != nil {
		return err
	}
	var o v1alpha1.VirtualIP
	if err := f.soon(ctx, func(ctx context.Context) error {
		if err := f.get(ctx, &o, vip); err != nil || slices.Contains(o.Spec.Nodes, f.node.Name) {
			return err
		}
		return fmt.Errorf("VirtualIP %s lists %v", vip, o.Spec.Nodes)
	}); err != nil {
		return err
	}
	if err := f.patch(ctx, label, "{metadata: {labels: {test: null}}}"); err != nil {
		return err
	}
	return f.soon(ctx, func(ctx context.Context) error {
		var o v1alpha1.VirtualIP
		if err := f.get(ctx, &o, vip); err != nil {
			return err
		}
		return effect(ctx, &o)
	})
}

// wrongAdvertisement creates an L2Advertisement of a missing pool, and waits for the Event.
func (f *fixture) wrongAdvertisement(ctx context.Context) (name string, err error) {
	name = f.name("l2")
	if err := f.own(ctx, "L2Advertisement", name, "{ipAddressPools: [absent]}"); err != nil {
		return "", err
	}
	return name, f.soon(ctx, func(ctx context.Context) error { return f.event(ctx, ccm, name, "UnknownPool", 1) })
}

// event returns nil if the program has written an Event about the object at least count times.
func (f *fixture) event(ctx context.Context, component, about, reason string, count int32) error {
	events, err := f.Kube.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + about})
	if err != nil {
		return err
	}
	var have []string
	for _, e := range events.Items {
		if e.Source.Component == component && (reason == "" || e.Reason == reason) && e.Count >= count {
			return nil
		}
		have = append(have, fmt.Sprintf("%d %s by %s", e.Count, e.Reason, e.Source.Component))
	}
	return fmt.Errorf("%s has the Events %q, want %d %s by %s", about, have, count, reason, component)
}

// scraper returns a token of an account that may or may not read /metrics.
func (f *fixture) scraper(ctx context.Context, may bool) (string, error) {
	name := fmt.Sprintf("scraper-%t", may)
	err := []error{f.create(ctx, "{apiVersion: v1, kind: ServiceAccount, metadata: {name: %s, namespace: default}}", name)}
	if may {
		err = append(err, f.create(ctx, "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: %s}, rules: [{nonResourceURLs: [/metrics], verbs: [get]}]}", name),
			f.create(ctx, "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: %s}, "+
				"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %s}, subjects: [{kind: ServiceAccount, name: %s, namespace: default}, {kind: User, name: %s}]}", name, name, name, clientName))
	}
	for _, e := range err {
		if e != nil && !apierrors.IsAlreadyExists(errors.Unwrap(e)) {
			return "", e
		}
	}
	answer, e := f.Kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if e != nil {
		return "", e
	}
	return answer.Status.Token, nil
}

// scrape reads /metrics and checks the status of the response.
func (f *fixture) scrape(ctx context.Context, want string, flags ...string) error {
	argv := append([]string{"curl", "-sSk", "--max-time", "3", "-o", "/dev/null", "-w", "%{http_code}"}, flags...)
	got, err := f.Management.Exec(ctx, append(argv, "https://127.0.0.1:10258/metrics")...)
	if err == nil && got != want {
		err = fmt.Errorf("/metrics answers %s, want %s", got, want)
	}
	return err
}
