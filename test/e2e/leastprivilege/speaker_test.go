package leastprivilege

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/manifest"
	"github.com/ironlb/ironlb/test/lab/router"
)

// speakerChecks are the checks of ironlb-speaker.
var speakerChecks = []check{
	{"requests of a client on the LAN reach a Pod", append(reads("services", "endpointslices", "virtualips"), "NET_ADMIN", "NET_RAW"), func(ctx context.Context, w *world) error {
		name := ""
		return w.each(ctx, func(int) error {
			name = w.name("web")
			return w.service(ctx, name, "", "")
		}, func(ctx context.Context, _ int) error { return w.answers(ctx, name) })
	}},
	{"a VirtualIP names its owner", []string{"patch virtualips/status"}, func(ctx context.Context, w *world) error {
		service := w.name("web")
		vip, err := w.virtualIP(ctx, service)
		if err != nil {
			return err
		}
		return w.soon(ctx, func(ctx context.Context) error { return w.owned(ctx, vip) })
	}},
	{"an L2Advertisement has addresses announced", reads("l2advertisements"), func(ctx context.Context, w *world) error {
		name := ""
		return w.each(ctx, func(int) error {
			name = w.name("l2")
			return errors.Join(w.own(ctx, "IPAddressPool", name, "{addresses: [%q]}", w.addresses()),
				w.own(ctx, "L2Advertisement", name, "{ipAddressPools: [%s]}", name), w.service(ctx, name, "ironlb.io/ip-pool: "+name, ""))
		}, func(ctx context.Context, _ int) error { return w.announced(ctx, name) })
	}},
	{"the labels of an IPAddressPool select its advertisement", reads("ipaddresspools"), func(ctx context.Context, w *world) error {
		set, name := w.name("set"), ""
		if err := w.own(ctx, "L2Advertisement", set, "{ipAddressPoolSelectors: [{matchLabels: {set: %s}}]}", set); err != nil {
			return err
		}
		return w.each(ctx, func(int) error {
			name = w.name("pool")
			return errors.Join(w.create(ctx, "{apiVersion: ironlb.io/v1alpha1, kind: IPAddressPool, metadata: {name: %s, labels: {set: %s}}, spec: {addresses: [%q]}}",
				name, set, w.addresses()), w.service(ctx, name, "ironlb.io/ip-pool: "+name, ""))
		}, func(ctx context.Context, _ int) error { return w.announced(ctx, name) })
	}},
	{"a BGPPeer gets a session", reads("bgppeers"), func(ctx context.Context, w *world) error {
		name := ""
		return w.each(ctx, func(i int) error {
			name = w.name("peer")
			return w.own(ctx, "BGPPeer", name, "{myASN: %d, peerASN: %d, peerAddress: 192.0.2.%d}", nodeASN, routerASN, 240+i)
		}, func(ctx context.Context, _ int) error {
			return w.session(ctx, name, func(*v1alpha1.SessionStatus) error { return nil })
		})
	}},
	{"a BGPPeer's sessions follow the labels of nodes", reads("nodes"), func(ctx context.Context, w *world) error {
		name := w.name("labelled")
		if err := w.own(ctx, "BGPPeer", name, "{myASN: %d, peerASN: %d, peerAddress: 192.0.2.250, nodeSelectors: [{matchLabels: {test: %s}}]}", nodeASN, routerASN, name); err != nil {
			return err
		}
		return w.each(ctx, func(i int) error {
			label := name
			if i%2 == 1 {
				label = "null"
			}
			return w.patch(ctx, &corev1.Node{ObjectMeta: named(w.node.Name)}, "{metadata: {labels: {test: "+label+"}}}")
		}, func(ctx context.Context, i int) error {
			err := w.session(ctx, name, func(*v1alpha1.SessionStatus) error { return nil })
			if i%2 == 0 || err != nil && !errors.Is(err, errNoSession) {
				return err
			}
			if err == nil {
				return fmt.Errorf("there is a session with %s, whose nodeSelectors do not match", name)
			}
			return nil
		})
	}},
	{"the router has the routes of a BGPAdvertisement", reads("bgpadvertisements"), func(ctx context.Context, w *world) error {
		pool, prefix, err := w.routed(ctx)
		if err != nil {
			return err
		}
		ad := &v1alpha1.BGPAdvertisement{ObjectMeta: named(w.name("bgp"))}
		return w.each(ctx, func(i int) error {
			return w.toggle(ctx, i, ad, "BGPAdvertisement", "{ipAddressPools: ["+pool+"]}")
		}, func(ctx context.Context, i int) error {
			return w.route(ctx, prefix, func(p *router.Path) error {
				if (p != nil) != (i%2 == 0) {
					return fmt.Errorf("the router has the route: %t", p != nil)
				}
				return nil
			})
		})
	}},
	{"the router has the communities of a route", reads("communities"), func(ctx context.Context, w *world) error {
		pool, prefix, err := w.routed(ctx)
		if err != nil {
			return err
		}
		name := w.name("colour")
		if err := errors.Join(w.own(ctx, "Community", name, "{communities: [{name: %s, value: '65000:99'}]}", name),
			w.own(ctx, "BGPAdvertisement", name, "{ipAddressPools: [%s], communities: [%s]}", pool, name)); err != nil {
			return err
		}
		return w.each(ctx, func(i int) error {
			return w.patch(ctx, &v1alpha1.Community{ObjectMeta: named(name)}, fmt.Sprintf("{spec: {communities: [{name: %s, value: '65000:%d'}]}}", name, 100+i))
		}, func(ctx context.Context, i int) error {
			return w.route(ctx, prefix, func(p *router.Path) error {
				if want := fmt.Sprintf("65000:%d", 100+i); p == nil || !slices.Equal(p.Communities, []string{want}) {
					return fmt.Errorf("the router has %+v, want community %s", p, want)
				}
				return nil
			})
		})
	}},
	{"a BFDProfile is used by its sessions", reads("bfdprofiles"), func(ctx context.Context, w *world) error {
		peer, profile := w.name("peer"), ""
		return w.each(ctx, func(i int) error { // a deleted one would stay in force
			if i%2 == 1 {
				return w.own(ctx, "BFDProfile", profile, "{}")
			}
			profile = w.name("profile")
			if i > 0 {
				return w.patch(ctx, &v1alpha1.BGPPeer{ObjectMeta: named(peer)}, "{spec: {bfdProfile: "+profile+"}}")
			}
			return w.own(ctx, "BGPPeer", peer, "{myASN: %d, peerASN: %d, peerAddress: 192.0.2.251, bfdProfile: %s}", nodeASN, routerASN, profile)
		},
			func(ctx context.Context, i int) error {
				return w.session(ctx, peer, func(s *v1alpha1.SessionStatus) error {
					if strings.Contains(s.Message, "there is no BFDProfile "+profile) != (i%2 == 0) {
						return fmt.Errorf("the session has the message %q", s.Message)
					}
					return nil
				})
			})
	}},
	{"the session with a router that wants a password is established", []string{"list secrets"}, func(ctx context.Context, w *world) error {
		name := w.name("secret")
		if err := errors.Join(w.secret(ctx, name, 0),
			w.own(ctx, "BGPPeer", name, "{myASN: %d, peerASN: %d, peerAddress: %q, connectTime: 1s, passwordSecret: {name: %s}}", nodeASN, routerASN, w.Router.Addr6, name)); err != nil {
			return err
		}
		return w.soon(ctx, func(ctx context.Context) error {
			all, err := w.bird.Sessions(ctx)
			if err == nil && !all["secret"].Established {
				err = fmt.Errorf("the router's session is %s", all["secret"].State)
			}
			return err
		})
	}},
	{"a BGPPeer reports whether its Secret exists", []string{"watch secrets"}, func(ctx context.Context, w *world) error {
		name := w.name("secret")
		if err := w.own(ctx, "BGPPeer", name, "{myASN: %d, peerASN: %d, peerAddress: 192.0.2.252, passwordSecret: {name: %s}}", nodeASN, routerASN, name); err != nil {
			return err
		}
		return w.each(ctx, func(i int) error { return w.secret(ctx, name, i) }, func(ctx context.Context, i int) error {
			return w.session(ctx, name, func(s *v1alpha1.SessionStatus) error {
				if (s.Reason == "PasswordMissing") != (i%2 == 1) {
					return fmt.Errorf("the session has the reason %q", s.Reason)
				}
				return nil
			})
		})
	}},
	{"the node has a SpeakerStatus", []string{"create speakerstatuses", "patch speakerstatuses/status"}, func(ctx context.Context, w *world) error {
		return w.soon(ctx, func(ctx context.Context) error {
			var o v1alpha1.SpeakerStatus
			if err := w.get(ctx, &o, w.node.Name); err != nil {
				return err
			}
			if o.Status.Updated == nil || !o.Status.DataPlane.Healthy {
				return fmt.Errorf("its status is %+v", o.Status)
			}
			return nil
		})
	}},
	{"a deleted SpeakerStatus is written again", reads("speakerstatuses"), func(ctx context.Context, w *world) error {
		var o v1alpha1.SpeakerStatus
		if err := w.soon(ctx, func(ctx context.Context) error { return w.get(ctx, &o, w.node.Name) }); err != nil {
			return err
		}
		return w.each(ctx, func(int) error { return w.Objects.Delete(ctx, &v1alpha1.SpeakerStatus{ObjectMeta: named(w.node.Name)}) },
			func(ctx context.Context, _ int) error {
				uid := o.UID
				if err := w.get(ctx, &o, w.node.Name); err != nil {
					return err
				}
				if o.UID == uid {
					return errors.New("it is the deleted one")
				}
				return nil
			})
	}},
	{"an Event explains why a session does not come up", []string{"create events"}, func(ctx context.Context, w *world) error {
		_, err := w.withoutSecret(ctx)
		return err
	}},
	{"ClusterIPs of a new ServiceCIDR do not leave the node", reads("servicecidrs"), func(ctx context.Context, w *world) error {
		var cidr netip.Prefix
		return w.each(ctx, func(i int) error {
			a := lab.FreeRange.Addr().As4()
			a[3] = byte(144 + 16*i)
			cidr = netip.PrefixFrom(netip.AddrFrom4(a), 28)
			return w.create(ctx, "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: %s}, spec: {cidrs: [%q]}}", w.name("cidr"), cidr)
		}, func(ctx context.Context, _ int) error {
			out, err := w.node.Exec(ctx, "nft", "list", "set", "ip", "ironlb", "service-networks")
			if err == nil && !strings.Contains(out, cidr.String()) {
				err = fmt.Errorf("the packet filter does not know %v:\n%s", cidr, out)
			}
			return err
		})
	}},
	{"the thread that other nodes wait for runs before others", []string{"SYS_NICE"}, func(ctx context.Context, w *world) error {
		return w.soon(ctx, func(context.Context) error { return before(w.node.Speaker().Pid()) })
	}},
	{"the node's kernel parameters are set", []string{manifest.Privileged}, func(ctx context.Context, w *world) error {
		return w.soon(ctx, func(ctx context.Context) error {
			out, err := w.node.Exec(ctx, "sysctl", "-n", "net.ipv4.conf.all.arp_ignore")
			if err == nil && strings.TrimSpace(out) != "1" {
				err = fmt.Errorf("arp_ignore is %s: the kernel answers ARP for addresses that another node owns", out)
			}
			return err
		})
	}},
}

// daemonChecks are the checks of ironlb-bgpd.
var daemonChecks = []check{
	{"BFD with the router is up", nil, func(ctx context.Context, w *world) error { return w.soon(ctx, w.bfdUp) }},
	{"the thread of BFD runs before others", []string{"SYS_NICE"}, func(ctx context.Context, w *world) error {
		if err := w.soon(ctx, w.bfdUp); err != nil {
			return err
		}
		return w.soon(ctx, func(context.Context) error { return before(w.node.BGP().Pid()) })
	}},
}

func (w *world) bfdUp(ctx context.Context) error {
	return w.session(ctx, "router", func(s *v1alpha1.SessionStatus) error {
		if s.State != v1alpha1.SessionEstablished || s.BFD == nil || s.BFD.State != v1alpha1.BFDUp {
			return fmt.Errorf("the session is %s, BFD %+v", s.State, s.BFD)
		}
		return nil
	})
}

// before returns nil if a thread of the process has a reserved CPU share (SCHED_DEADLINE), or the best nice value.
func before(pid int) error {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return err
	}
	const nice, policy, deadline = 19 - 3, 41 - 3, 6 // fields of proc_pid_stat(5), from the state on; SCHED_DEADLINE
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // it has ended
		}
		_, after, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(after)
		if len(fields) <= policy {
			return fmt.Errorf("%s has %d fields", task, len(fields))
		}
		value, err := strconv.Atoi(fields[nice])
		if err == nil && (value == -20 || fields[policy] == strconv.Itoa(deadline)) {
			return nil
		}
	}
	return fmt.Errorf("none of %d threads runs before others", len(tasks))
}

// answers returns nil if requests to the Service's address are answered.
func (w *world) answers(ctx context.Context, service string) error {
	svc, err := w.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, service, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if len(svc.Status.LoadBalancer.Ingress) == 0 {
		return errors.New("the Service has no address")
	}
	addr, err := netip.ParseAddr(svc.Status.LoadBalancer.Ingress[0].IP)
	if err != nil {
		return err
	}
	s, err := w.Client.Ask(ctx, lab.Probe{Network: "tcp", Target: netip.AddrPortFrom(addr, 80), Count: 2, Every: 10 * time.Millisecond, Timeout: 500 * time.Millisecond})
	if err == nil && s.Failed > 0 {
		err = errors.New(s.String())
	}
	return err
}

// owned returns nil if the status of the VirtualIP names the node.
func (w *world) owned(ctx context.Context, vip string) error {
	var o v1alpha1.VirtualIP
	if err := w.get(ctx, &o, vip); err != nil {
		return err
	}
	if o.Status.Node != w.node.Name {
		return fmt.Errorf("the owner of VirtualIP %s is %q", vip, o.Status.Node)
	}
	return nil
}

// announced returns nil if the node owns the address of the Service.
func (w *world) announced(ctx context.Context, service string) error {
	svc, err := w.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, service, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if len(svc.Status.LoadBalancer.Ingress) == 0 {
		return errors.New("the Service has no address")
	}
	return w.owned(ctx, svc.Status.LoadBalancer.Ingress[0].IP)
}

var errNoSession = errors.New("the SpeakerStatus has no session with the BGPPeer")

// session calls check with the node's reported session with the BGPPeer.
func (w *world) session(ctx context.Context, peer string, check func(*v1alpha1.SessionStatus) error) error {
	var o v1alpha1.SpeakerStatus
	if err := w.get(ctx, &o, w.node.Name); err != nil {
		return err
	}
	if o.Status.BGP != nil {
		for i := range o.Status.BGP.Sessions {
			if s := &o.Status.BGP.Sessions[i]; s.Peer == peer {
				return check(s)
			}
		}
	}
	return errNoSession
}

// routed creates a pool with a Service, and waits for its address and the session with the router.
func (w *world) routed(ctx context.Context) (pool string, prefix netip.Prefix, err error) {
	pool = w.name("routed")
	if err := errors.Join(w.own(ctx, "IPAddressPool", pool, "{addresses: [%q]}", w.addresses()),
		w.service(ctx, pool, "ironlb.io/ip-pool: "+pool, "")); err != nil {
		return "", prefix, err
	}
	return pool, prefix, w.soon(ctx, func(ctx context.Context) error {
		svc, err := w.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, pool, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(svc.Status.LoadBalancer.Ingress) == 0 {
			return errors.New("the Service has no address")
		}
		addr, err := netip.ParseAddr(svc.Status.LoadBalancer.Ingress[0].IP)
		if err != nil {
			return err
		}
		prefix = netip.PrefixFrom(addr, 32)
		all, err := w.bird.Sessions(ctx)
		if err == nil && !all["plain"].Established {
			err = fmt.Errorf("the router's session is %s", all["plain"].State)
		}
		return err
	})
}

// route calls check with the router's path of the prefix, nil for none.
func (w *world) route(ctx context.Context, prefix netip.Prefix, check func(*router.Path) error) error {
	paths, err := w.bird.RIB(ctx, prefix.String())
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		return check(nil)
	}
	return check(&paths[0])
}

// secret creates the password of a BGPPeer in even rounds and deletes it in odd ones.
func (w *world) secret(ctx context.Context, name string, i int) error {
	if i%2 == 1 {
		return w.Objects.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: v1alpha1.PasswordNamespace}})
	}
	return w.create(ctx, "{apiVersion: v1, kind: Secret, metadata: {name: %s, namespace: %s}, type: kubernetes.io/basic-auth, stringData: {password: %s}}",
		name, v1alpha1.PasswordNamespace, password)
}

// withoutSecret creates a BGPPeer whose Secret does not exist, and waits for the Event.
func (w *world) withoutSecret(ctx context.Context) (name string, err error) {
	name = w.name("secret")
	if err := w.own(ctx, "BGPPeer", name, "{myASN: %d, peerASN: %d, peerAddress: 192.0.2.253, passwordSecret: {name: %s}}", nodeASN, routerASN, name); err != nil {
		return "", err
	}
	return name, w.soon(ctx, func(ctx context.Context) error { return w.event(ctx, speaker, name, "PasswordMissing", 1) })
}
