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
	"github.com/ironlb/ironlb/test/lab"
)

// managerChecks are the checks of ironlb-ccm.
var managerChecks = []check{
	{"a Service gets an address", append(reads("services"), "patch services/status"), func(ctx context.Context, w *world) error {
		name := ""
		return w.each(ctx, func(i int) error {
			name = w.name("web")
			class := ""
			if i%2 == 1 {
				class = "loadBalancerClass: ironlb.io/lb"
			}
			return w.service(ctx, name, "", class)
		}, func(ctx context.Context, _ int) error { return w.hasAddress(ctx, metav1.NamespaceDefault, name) })
	}},
	{"a deleted Service releases its finalizer and address", nil, func(ctx context.Context, w *world) error {
		name := w.name("web")
		if err := w.service(ctx, name, "", ""); err != nil {
			return err
		}
		if err := w.soon(ctx, func(ctx context.Context) error { return w.hasAddress(ctx, metav1.NamespaceDefault, name) }); err != nil {
			return err
		}
		if err := w.Objects.Delete(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}}); err != nil {
			return err
		}
		return w.soon(ctx, func(ctx context.Context) error { return w.gone(ctx, &corev1.Service{}, name) })
	}},
	{"a namespace's labels select its pool", reads("namespaces"), func(ctx context.Context, w *world) error {
		pool, namespace := w.name("team"), ""
		if err := w.own(ctx, "IPAddressPool", pool, "{addresses: [%q, %q], serviceAllocation: {namespaceSelectors: [{matchLabels: {pool: %s}}]}}",
			w.addresses(), w.addresses(), pool); err != nil {
			return err
		}
		return w.each(ctx, func(int) error {
			namespace = w.name("team") + "-" + strings.ToLower(fmt.Sprintf("%x", time.Now().UnixNano()))
			if err := w.create(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {pool: %s}}}", namespace, pool); err != nil {
				return err
			}
			return w.create(ctx, "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: %s, annotations: {ironlb.io/ip-pool: %s}}, "+
				"spec: {type: LoadBalancer, ports: [{port: 80}]}}", namespace, pool)
		}, func(ctx context.Context, _ int) error { return w.hasAddress(ctx, namespace, "web") })
	}},
	{"no Service gets the address of a node", reads("nodes"), func(ctx context.Context, w *world) error {
		addr := lab.FreeRange.Addr().Next()
		return w.each(ctx, func(int) error {
			addr = addr.Next()
			return w.addNode(ctx, w.name("other"), addr.String())
		}, func(ctx context.Context, _ int) error {
			var pool v1alpha1.IPAddressPool
			if err := w.get(ctx, &pool, "lan"); err != nil {
				return err
			}
			return conditionIs(pool.Status.Conditions, "Withheld", metav1.ConditionTrue, addr.String())
		})
	}},
	{"a Service with an address in a new ServiceCIDR gets an Event", reads("servicecidrs"), func(ctx context.Context, w *world) error {
		name := ""
		return w.each(ctx, func(int) error {
			addresses := w.addresses()
			name = w.name("covered")
			return errors.Join(w.own(ctx, "IPAddressPool", name, "{addresses: [%q], autoAssign: false}", addresses),
				w.service(ctx, name, "ironlb.io/ip-pool: "+name, ""),
				w.create(ctx, "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: %s}, spec: {cidrs: [%q]}}", name, addresses))
		}, func(ctx context.Context, _ int) error {
			var o corev1.Service
			if err := w.Objects.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}, &o); err != nil {
				return err
			}
			return conditionIs(o.Status.Conditions, "ironlb.io/Warnings", metav1.ConditionTrue, "(rule ServiceCIDR)")
		})
	}},
	{"IPAddressPools have status", append(reads("ipaddresspools"), "patch ipaddresspools/status"), func(ctx context.Context, w *world) error {
		name := ""
		return w.each(ctx, func(int) error {
			name = w.name("pool")
			return w.own(ctx, "IPAddressPool", name, "{addresses: [%q]}", w.addresses())
		}, func(ctx context.Context, _ int) error {
			var o v1alpha1.IPAddressPool
			if err := w.get(ctx, &o, name); err != nil {
				return err
			}
			return conditionIs(o.Status.Conditions, "Ready", metav1.ConditionTrue, "")
		})
	}},
	{"L2Advertisements have status", append(reads("l2advertisements"), "patch l2advertisements/status"), func(ctx context.Context, w *world) error {
		name := ""
		return w.each(ctx, func(int) error {
			name = w.name("l2")
			return w.own(ctx, "L2Advertisement", name, "{ipAddressPools: [lan]}")
		}, func(ctx context.Context, _ int) error {
			var o v1alpha1.L2Advertisement
			if err := w.get(ctx, &o, name); err != nil {
				return err
			}
			return conditionIs(o.Status.Conditions, "Ready", metav1.ConditionTrue, "")
		})
	}},
	{"BGPPeers have status", append(reads("bgppeers"), "patch bgppeers/status"), func(ctx context.Context, w *world) error {
		name := ""
		return w.each(ctx, func(int) error {
			name = w.name("peer")
			return w.own(ctx, "BGPPeer", name, "%s", idlePeer(w))
		}, func(ctx context.Context, _ int) error {
			return w.peerIs(ctx, name, "Ready", metav1.ConditionTrue, "")
		})
	}},
	{"BGPAdvertisements have status", append(reads("bgpadvertisements"), "patch bgpadvertisements/status"), func(ctx context.Context, w *world) error {
		name := ""
		return w.each(ctx, func(int) error {
			name = w.name("bgp")
			return w.own(ctx, "BGPAdvertisement", name, "{ipAddressPools: [lan]}")
		}, func(ctx context.Context, _ int) error {
			return w.advertisementIs(ctx, name, metav1.ConditionTrue)
		})
	}},
	{"a BGPPeer reports whether its BFDProfile exists", reads("bfdprofiles"), func(ctx context.Context, w *world) error {
		peer, profile := w.name("peer"), w.name("profile")
		if err := w.own(ctx, "BGPPeer", peer, "{bfdProfile: %s, %s", profile, strings.TrimPrefix(idlePeer(w), "{")); err != nil {
			return err
		}
		return w.each(ctx, func(i int) error {
			return w.toggle(ctx, i, &v1alpha1.BFDProfile{ObjectMeta: named(profile)}, "BFDProfile", "{}")
		},
			func(ctx context.Context, i int) error { return w.peerIs(ctx, peer, "Ready", existing(i), "") })
	}},
	{"a BGPAdvertisement reports whether its community exists", reads("communities"), func(ctx context.Context, w *world) error {
		ad, community := w.name("bgp"), w.name("community")
		if err := w.own(ctx, "BGPAdvertisement", ad, "{ipAddressPools: [lan], communities: [%s]}", community); err != nil {
			return err
		}
		return w.each(ctx, func(i int) error {
			return w.toggle(ctx, i, &v1alpha1.Community{ObjectMeta: named(community)}, "Community", "{communities: [{name: "+community+", value: '65000:1'}]}")
		}, func(ctx context.Context, i int) error { return w.advertisementIs(ctx, ad, existing(i)) })
	}},
	{"a BGPPeer reports the sessions of nodes", reads("speakerstatuses"), func(ctx context.Context, w *world) error {
		peer, node := w.name("peer"), w.name("other")
		if err := errors.Join(w.addNode(ctx, node, "192.0.2.99"), w.own(ctx, "BGPPeer", peer, "%s", idlePeer(w)),
			w.patch(ctx, &v1alpha1.BGPPeer{ObjectMeta: named(peer)}, "{spec: {nodeSelectors: [{matchLabels: {name: "+node+"}}]}}"),
			w.create(ctx, "{apiVersion: ironlb.io/v1alpha1, kind: SpeakerStatus, metadata: {name: %s}}", node)); err != nil {
			return err
		}
		return w.each(ctx, func(i int) error {
			return w.patch(ctx, &v1alpha1.SpeakerStatus{ObjectMeta: named(node)}, fmt.Sprintf(
				"{status: {dataPlane: {healthy: true}, virtualIPs: 0, alive: 1/1, bgp: {established: 0/1, sessions: [{peer: %s, state: Idle, reason: Round%d, prefixes: 0}]}}}", peer, i), "status")
		}, func(ctx context.Context, i int) error {
			return w.peerIs(ctx, peer, "Established", metav1.ConditionFalse, fmt.Sprintf("Round%d", i))
		})
	}},
	{"a BGPAdvertisement lists addresses without an endpoint", reads("endpointslices"), func(ctx context.Context, w *world) error {
		name, peer, names := w.name("bgp"), w.name("peer"), make([]string, rounds)
		unserved := func(ctx context.Context, want int32) error {
			var o v1alpha1.BGPAdvertisement
			if err := w.get(ctx, &o, name); err != nil {
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
		if err := errors.Join(w.addNode(ctx, name, "192.0.2.98"), w.own(ctx, "BGPPeer", peer, "%s", idlePeer(w)),
			w.own(ctx, "IPAddressPool", name, "{addresses: [%q, %q], autoAssign: false}", w.addresses(), w.addresses()),
			w.create(ctx, "{apiVersion: ironlb.io/v1alpha1, kind: SpeakerStatus, metadata: {name: %s}}", name),
			w.patch(ctx, &v1alpha1.SpeakerStatus{ObjectMeta: named(name)}, fmt.Sprintf("{status: {dataPlane: {healthy: true}, virtualIPs: 0, "+
				"bgp: {sessions: [{peer: %s, state: Idle, families: [IPv4], prefixes: 0}]}}}", peer), "status"),
			w.own(ctx, "BGPAdvertisement", name, "{ipAddressPools: [%s], nodeSelectors: [{matchLabels: {name: %s}}]}", name, name)); err != nil {
			return err
		}
		for i := range names {
			names[i] = w.name("idle")
			if err := w.create(ctx, "{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: default, annotations: {ironlb.io/ip-pool: %s}}, "+
				"spec: {type: LoadBalancer, ports: [{port: 80}]}}", names[i], name); err != nil {
				return err
			}
		}
		// They count after ten seconds.
		if err := until(ctx, 40*time.Second, func(ctx context.Context) error { return unserved(ctx, rounds) }); err != nil {
			return err
		}
		return w.each(ctx, func(i int) error {
			return w.create(ctx, "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %s, namespace: default, labels: {kubernetes.io/service-name: %s}}, "+
				"addressType: IPv4, ports: [{port: 80}], endpoints: [{addresses: [192.0.2.97]}]}", names[i], names[i])
		}, func(ctx context.Context, i int) error { return unserved(ctx, int32(rounds-1-i)) })
	}},
	{"an address gets a VirtualIP", []string{"create virtualips", "list virtualips"}, func(ctx context.Context, w *world) error {
		_, err := w.virtualIP(ctx, "")
		return err
	}},
	{"a deleted VirtualIP is recreated", []string{"watch virtualips"}, func(ctx context.Context, w *world) error {
		name, err := w.virtualIP(ctx, "")
		if err != nil {
			return err
		}
		if err := w.soon(ctx, func(ctx context.Context) error { return w.owned(ctx, name) }); err != nil {
			return err
		}
		return w.each(ctx, func(int) error { return w.Objects.Delete(ctx, &v1alpha1.VirtualIP{ObjectMeta: named(name)}) },
			func(ctx context.Context, _ int) error { return w.owned(ctx, name) })
	}},
	{"a VirtualIP lists the nodes that may answer", []string{"patch virtualips"}, func(ctx context.Context, w *world) error {
		return w.withoutNode(ctx, func(ctx context.Context, vip *v1alpha1.VirtualIP) error {
			if len(vip.Spec.Nodes) > 0 {
				return fmt.Errorf("it lists %v, though no node matches", vip.Spec.Nodes)
			}
			return nil
		})
	}},
	{"a VirtualIP reports that no node may answer", []string{"patch virtualips/status"}, func(ctx context.Context, w *world) error {
		return w.withoutNode(ctx, func(_ context.Context, vip *v1alpha1.VirtualIP) error {
			return conditionIs(vip.Status.Conditions, v1alpha1.ConditionNoEligibleNode, metav1.ConditionTrue, "")
		})
	}},
	{"a VirtualIP is deleted with its Service", []string{"delete virtualips"}, func(ctx context.Context, w *world) error {
		service := w.name("web")
		vip, err := w.virtualIP(ctx, service)
		if err != nil {
			return err
		}
		if err := w.Objects.Delete(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: service, Namespace: metav1.NamespaceDefault}}); err != nil {
			return err
		}
		return w.soon(ctx, func(ctx context.Context) error { return w.gone(ctx, &v1alpha1.VirtualIP{}, vip) })
	}},
	{"an Event explains what is wrong", []string{"create events"}, func(ctx context.Context, w *world) error {
		_, err := w.wrongAdvertisement(ctx)
		return err
	}},
	{"a repeated Event is counted", []string{"patch events"}, func(ctx context.Context, w *world) error {
		name, err := w.wrongAdvertisement(ctx)
		if err != nil {
			return err
		}
		ad := &v1alpha1.L2Advertisement{ObjectMeta: named(name)}
		if err := w.patch(ctx, ad, "{spec: {ipAddressPools: [lan]}}"); err != nil {
			return err
		}
		if err := w.soon(ctx, func(ctx context.Context) error {
			var o v1alpha1.L2Advertisement
			if err := w.get(ctx, &o, name); err != nil {
				return err
			}
			return conditionIs(o.Status.Conditions, "Ready", metav1.ConditionTrue, "")
		}); err != nil {
			return err
		}
		if err := w.patch(ctx, ad, "{spec: {ipAddressPools: [absent]}}"); err != nil {
			return err
		}
		return w.soon(ctx, func(ctx context.Context) error { return w.event(ctx, ccm, name, "UnknownPool", 2) })
	}},
	{"the leader renews its Lease", []string{"create leases", "get leases", "update leases"}, func(ctx context.Context, w *world) error {
		var times []time.Time
		return w.soon(ctx, func(ctx context.Context) error {
			var lease coordinationv1.Lease
			if err := w.get(ctx, &lease, ccm); err != nil {
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
	{"/metrics is served to an account that may read it, and to no other", []string{"system:auth-delegator"}, func(ctx context.Context, w *world) error {
		allowed, err := w.scraper(ctx, true)
		if err != nil {
			return err
		}
		denied, err := w.scraper(ctx, false)
		if err != nil {
			return err
		}
		return w.soon(ctx, func(ctx context.Context) error {
			return cmp.Or(w.scrape(ctx, "200", "-H", "Authorization: Bearer "+allowed), w.scrape(ctx, "403", "-H", "Authorization: Bearer "+denied))
		})
	}},
	{"/metrics is served to a holder of a client certificate of the cluster", []string{"extension-apiserver-authentication-reader"}, func(ctx context.Context, w *world) error {
		if _, err := w.scraper(ctx, true); err != nil { // covers the name of the certificate, too
			return err
		}
		return w.soon(ctx, func(ctx context.Context) error {
			return w.scrape(ctx, "200", "--cert", w.ca.clientCert, "--key", w.ca.clientKey)
		})
	}},
	{"a second replica takes over", nil, func(ctx context.Context, w *world) error {
		holder := func(ctx context.Context) (string, error) {
			var lease coordinationv1.Lease
			if err := w.get(ctx, &lease, ccm); err != nil {
				return "", err
			}
			if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
				return "", errors.New("the Lease has no holder")
			}
			return *lease.Spec.HolderIdentity, nil
		}
		before := ""
		if err := w.soon(ctx, func(ctx context.Context) (err error) { before, err = holder(ctx); return err }); err != nil {
			return err
		}
		second, err := w.StartCCM(ctx, "--probe-bind-address=127.0.0.1:7475", "--secure-port=10259")
		if err != nil {
			return err
		}
		second.Expect()
		err = until(ctx, w.limits.first, func(ctx context.Context) error {
			_, err := w.Management.Exec(ctx, "curl", "-sS", "--fail", "--max-time", "2", "http://127.0.0.1:7475/livez")
			return err
		})
		if err := errors.Join(err, w.manager.Stop(10*time.Second)); err != nil {
			return err
		}
		w.manager = second
		if err := w.soon(ctx, func(ctx context.Context) error {
			now, err := holder(ctx)
			if err == nil && now == before {
				err = fmt.Errorf("%s still holds the Lease", now)
			}
			return err
		}); err != nil {
			return err
		}
		name := w.name("web")
		if err := w.service(ctx, name, "", ""); err != nil {
			return err
		}
		return w.soon(ctx, func(ctx context.Context) error { return w.hasAddress(ctx, metav1.NamespaceDefault, name) })
	}},
}

// idlePeer returns the spec of a BGPPeer that selects no node.
func idlePeer(w *world) string {
	return fmt.Sprintf("{myASN: %d, peerASN: %d, peerAddress: 192.0.2.%d, nodeSelectors: [{matchLabels: {none: here}}]}", nodeASN, routerASN, 200+w.seq%50)
}

// existing returns the expected status of a condition in round i, if toggle creates in the even rounds.
func existing(i int) metav1.ConditionStatus {
	if i%2 == 0 {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// toggle creates the object in even rounds and deletes it in odd ones.
func (w *world) toggle(ctx context.Context, i int, o client.Object, kind, spec string) error {
	if i%2 == 0 {
		return w.own(ctx, kind, o.GetName(), "%s", spec)
	}
	return w.Objects.Delete(ctx, o)
}

func (w *world) hasAddress(ctx context.Context, namespace, name string) error {
	svc, err := w.Kube.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
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

func (w *world) peerIs(ctx context.Context, name, condition string, status metav1.ConditionStatus, text string) error {
	var o v1alpha1.BGPPeer
	if err := w.get(ctx, &o, name); err != nil {
		return err
	}
	return conditionIs(o.Status.Conditions, condition, status, text)
}

func (w *world) advertisementIs(ctx context.Context, name string, status metav1.ConditionStatus) error {
	var o v1alpha1.BGPAdvertisement
	if err := w.get(ctx, &o, name); err != nil {
		return err
	}
	return conditionIs(o.Status.Conditions, "Ready", status, "")
}

// addNode creates a Node with an address that no kubelet changes.
func (w *world) addNode(ctx context.Context, name, addr string) error {
	if err := w.create(ctx, "{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {name: %s}}}", name, name); err != nil {
		return err
	}
	return w.patch(ctx, &corev1.Node{ObjectMeta: named(name)}, "{status: {addresses: [{type: InternalIP, address: "+addr+"}]}}", "status")
}

// virtualIP creates a Service and waits for its VirtualIP. It returns the name of the VirtualIP.
func (w *world) virtualIP(ctx context.Context, service string) (name string, err error) {
	service = cmp.Or(service, w.name("web"))
	if err := w.service(ctx, service, "", ""); err != nil {
		return "", err
	}
	return w.virtualIPOf(ctx, service)
}

func (w *world) virtualIPOf(ctx context.Context, service string) (name string, err error) {
	return name, w.soon(ctx, func(ctx context.Context) error {
		var all v1alpha1.VirtualIPList
		if err := w.Objects.List(ctx, &all); err != nil {
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
func (w *world) withoutNode(ctx context.Context, effect func(context.Context, *v1alpha1.VirtualIP) error) error {
	name, label := w.name("alone"), &corev1.Node{ObjectMeta: named(w.node.Name)}
	err := errors.Join(w.patch(ctx, label, "{metadata: {labels: {test: "+name+"}}}"),
		w.own(ctx, "IPAddressPool", name, "{addresses: [%q]}", w.addresses()),
		w.own(ctx, "L2Advertisement", name, "{ipAddressPools: [%s], nodeSelectors: [{matchLabels: {test: %s}}]}", name, name),
		w.service(ctx, name, "ironlb.io/ip-pool: "+name, ""))
	if err != nil {
		return err
	}
	vip, err := w.virtualIPOf(ctx, name)
	if err != nil {
		return err
	}
	var o v1alpha1.VirtualIP
	if err := w.soon(ctx, func(ctx context.Context) error {
		if err := w.get(ctx, &o, vip); err != nil || slices.Contains(o.Spec.Nodes, w.node.Name) {
			return err
		}
		return fmt.Errorf("VirtualIP %s lists %v", vip, o.Spec.Nodes)
	}); err != nil {
		return err
	}
	if err := w.patch(ctx, label, "{metadata: {labels: {test: null}}}"); err != nil {
		return err
	}
	return w.soon(ctx, func(ctx context.Context) error {
		var o v1alpha1.VirtualIP
		if err := w.get(ctx, &o, vip); err != nil {
			return err
		}
		return effect(ctx, &o)
	})
}

// wrongAdvertisement creates an L2Advertisement of a missing pool, and waits for the Event.
func (w *world) wrongAdvertisement(ctx context.Context) (name string, err error) {
	name = w.name("l2")
	if err := w.own(ctx, "L2Advertisement", name, "{ipAddressPools: [absent]}"); err != nil {
		return "", err
	}
	return name, w.soon(ctx, func(ctx context.Context) error { return w.event(ctx, ccm, name, "UnknownPool", 1) })
}

// event returns nil if the program has written an Event about the object at least count times.
func (w *world) event(ctx context.Context, component, about, reason string, count int32) error {
	events, err := w.Kube.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + about})
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
func (w *world) scraper(ctx context.Context, may bool) (string, error) {
	name := fmt.Sprintf("scraper-%t", may)
	err := []error{w.create(ctx, "{apiVersion: v1, kind: ServiceAccount, metadata: {name: %s, namespace: default}}", name)}
	if may {
		err = append(err, w.create(ctx, "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: %s}, rules: [{nonResourceURLs: [/metrics], verbs: [get]}]}", name),
			w.create(ctx, "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: %s}, "+
				"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %s}, subjects: [{kind: ServiceAccount, name: %s, namespace: default}, {kind: User, name: %s}]}", name, name, name, clientName))
	}
	for _, e := range err {
		if e != nil && !apierrors.IsAlreadyExists(errors.Unwrap(e)) {
			return "", e
		}
	}
	answer, e := w.Kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if e != nil {
		return "", e
	}
	return answer.Status.Token, nil
}

// scrape reads /metrics and checks the status of the response.
func (w *world) scrape(ctx context.Context, want string, flags ...string) error {
	argv := append([]string{"curl", "-sSk", "--max-time", "3", "-o", "/dev/null", "-w", "%{http_code}"}, flags...)
	got, err := w.Management.Exec(ctx, append(argv, "https://127.0.0.1:10258/metrics")...)
	if err == nil && got != want {
		err = fmt.Errorf("/metrics answers %s, want %s", got, want)
	}
	return err
}
