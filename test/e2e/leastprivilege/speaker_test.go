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
	{"requests of a client on the LAN reach a Pod", append(reads("services", "endpointslices", "virtualips"), "NET_ADMIN", "NET_RAW"), func(ctx context.Context, f *fixture) error {
		name := ""
		return f.each(ctx, func(int) error {
			name = f.name("web")
			return f.service(ctx, name, "", "")
		}, func(ctx context.Context, _ int) error { return f.answers(ctx, name) })
	}},
	{"a VirtualIP names its owner", []string{"patch virtualips/status"}, func(ctx context.Context, f *fixture) error {
		service := f.name("web")
		vip, err := f.virtualIP(ctx, service)
		if err != nil {
			return err
		}
		return f.soon(ctx, func(ctx context.Context) error { return f.owned(ctx, vip) })
	}},
	{"an L2Advertisement has addresses announced", reads("l2advertisements"), func(ctx context.Context, f *fixture) error {
		name := ""
		return f.each(ctx, func(int) error {
			name = f.name("l2")
			return errors.Join(f.own(ctx, "IPAddressPool", name, "{addresses: [%q]}", f.addresses()),
				f.own(ctx, "L2Advertisement", name, "{ipAddressPools: [%s]}", name), f.service(ctx, name, "ironlb.io/ip-pool: "+name, ""))
		}, func(ctx context.Context, _ int) error { return f.announced(ctx, name) })
	}},
	{"the labels of an IPAddressPool select its advertisement", reads("ipaddresspools"), func(ctx context.Context, f *fixture) error {
		set, name := f.name("set"), ""
		if err := f.own(ctx, "L2Advertisement", set, "{ipAddressPoolSelectors: [{matchLabels: {set: %s}}]}", set); err != nil {
			return err
		}
		return f.each(ctx, func(int) error {
			name = f.name("pool")
			return errors.Join(f.create(ctx, "{apiVersion: ironlb.io/v1alpha1, kind: IPAddressPool, metadata: {name: %s, labels: {set: %s}}, spec: {addresses: [%q]}}",
				name, set, f.addresses()), f.service(ctx, name, "ironlb.io/ip-pool: "+name, ""))
		}, func(ctx context.Context, _ int) error { return f.announced(ctx, name) })
	}},
	{"a BGPPeer gets a session", reads("bgppeers"), func(ctx context.Context, f *fixture) error {
		name := ""
		return f.each(ctx, func(i int) error {
			name = f.name("peer")
			return f.own(ctx, "BGPPeer", name, "{myASN: %d, peerASN: %d, peerAddress: 192.0.2.%d}", nodeASN, routerASN, 240+i)
		}, func(ctx context.Context, _ int) error {
			return f.session(ctx, name, func(*v1alpha1.SessionStatus) error { return nil })
		})
	}},
	{"a BGPPeer's sessions follow the labels of nodes", reads("nodes"), func(ctx context.Context, f *fixture) error {
		name := f.name("labelled")
		if err := f.own(ctx, "BGPPeer", name, "{myASN: %d, peerASN: %d, peerAddress: 192.0.2.250, nodeSelectors: [{matchLabels: {test: %s}}]}", nodeASN, routerASN, name); err != nil {
			return err
		}
		return f.each(ctx, func(i int) error {
			label := name
			if i%2 == 1 {
				label = "null"
			}
			return f.patch(ctx, &corev1.Node{ObjectMeta: named(f.node.Name)}, "{metadata: {labels: {test: "+label+"}}}")
		}, func(ctx context.Context, i int) error {
			err := f.session(ctx, name, func(*v1alpha1.SessionStatus) error { return nil })
			if i%2 == 0 || err != nil && !errors.Is(err, errNoSession) {
				return err
			}
			if err == nil {
				return fmt.Errorf("there is a session with %s, whose nodeSelectors do not match", name)
			}
			return nil
		})
	}},
	{"the router has the routes of a BGPAdvertisement", reads("bgpadvertisements"), func(ctx context.Context, f *fixture) error {
		pool, prefix, err := f.routed(ctx)
		if err != nil {
			return err
		}
		ad := &v1alpha1.BGPAdvertisement{ObjectMeta: named(f.name("bgp"))}
		return f.each(ctx, func(i int) error {
			return f.toggle(ctx, i, ad, "BGPAdvertisement", "{ipAddressPools: ["+pool+"]}")
		}, func(ctx context.Context, i int) error {
			return f.route(ctx, prefix, func(p *router.Path) error {
				if (p != nil) != (i%2 == 0) {
					return fmt.Errorf("the router has the route: %t", p != nil)
				}
				return nil
			})
		})
	}},
	{"the router has the communities of a route", reads("communities"), func(ctx context.Context, f *fixture) error {
		pool, prefix, err := f.routed(ctx)
		if err != nil {
			return err
		}
		name := f.name("colour")
		if err := errors.Join(f.own(ctx, "Community", name, "{communities: [{name: %s, value: '65000:99'}]}", name),
			f.own(ctx, "BGPAdvertisement", name, "{ipAddressPools: [%s], communities: [%s]}", pool, name)); err != nil {
			return err
		}
		return f.each(ctx, func(i int) error {
			return f.patch(ctx, &v1alpha1.Community{ObjectMeta: named(name)}, fmt.Sprintf("{spec: {communities: [{name: %s, value: '65000:%d'}]}}", name, 100+i))
		}, func(ctx context.Context, i int) error {
			return f.route(ctx, prefix, func(p *router.Path) error {
				if want := fmt.Sprintf("65000:%d", 100+i); p == nil || !slices.Equal(p.Communities, []string{want}) {
					return fmt.Errorf("the router has %+v, want community %s", p, want)
				}
				return nil
			})
		})
	}},
	{"a BFDProfile is used by its sessions", reads("bfdprofiles"), func(ctx context.Context, f *fixture) error {
		peer, profile := f.name("peer"), ""
		return f.each(ctx, func(i int) error { // a deleted one would stay in force
			if i%2 == 1 {
				return f.own(ctx, "BFDProfile", profile, "{}")
			}
			profile = f.name("profile")
			if i > 0 {
				return f.patch(ctx, &v1alpha1.BGPPeer{ObjectMeta: named(peer)}, "{spec: {bfdProfile: "+profile+"}}")
			}
			return f.own(ctx, "BGPPeer", peer, "{myASN: %d, peerASN: %d, peerAddress: 192.0.2.251, bfdProfile: %s}", nodeASN, routerASN, profile)
		},
			func(ctx context.Context, i int) error {
				return f.session(ctx, peer, func(s *v1alpha1.SessionStatus) error {
					if strings.Contains(s.Message, "there is no BFDProfile "+profile) != (i%2 == 0) {
						return fmt.Errorf("the session has the message %q", s.Message)
					}
					return nil
				})
			})
	}},
	{"the session with a router that wants a password is established", []string{"list secrets"}, func(ctx context.Context, f *fixture) error {
		name := f.name("secret")
		if err := errors.Join(f.secret(ctx, name, 0),
			f.own(ctx, "BGPPeer", name, "{myASN: %d, peerASN: %d, peerAddress: %q, connectTime: 1s, passwordSecret: {name: %s}}", nodeASN, routerASN, f.Router.Addr6, name)); err != nil {
			return err
		}
		return f.soon(ctx, func(ctx context.Context) error {
			all, err := f.bird.Sessions(ctx)
			if err == nil && !all["secret"].Established {
				err = fmt.Errorf("the router's session is %s", all["secret"].State)
			}
			return err
		})
	}},
	{"a BGPPeer reports whether its Secret exists", []string{"watch secrets"}, func(ctx context.Context, f *fixture) error {
		name := f.name("secret")
		if err := f.own(ctx, "BGPPeer", name, "{myASN: %d, peerASN: %d, peerAddress: 192.0.2.252, passwordSecret: {name: %s}}", nodeASN, routerASN, name); err != nil {
			return err
		}
		return f.each(ctx, func(i int) error { return f.secret(ctx, name, i) }, func(ctx context.Context, i int) error {
			return f.session(ctx, name, func(s *v1alpha1.SessionStatus) error {
				if (s.Reason == "PasswordMissing") != (i%2 == 1) {
					return fmt.Errorf("the session has the reason %q", s.Reason)
				}
				return nil
			})
		})
	}},
	{"the node has a SpeakerStatus", []string{"create speakerstatuses", "patch speakerstatuses/status"}, func(ctx context.Context, f *fixture) error {
		return f.soon(ctx, func(ctx context.Context) error {
			var o v1alpha1.SpeakerStatus
			if err := f.get(ctx, &o, f.node.Name); err != nil {
				return err
			}
			if o.Status.Updated == nil || !o.Status.DataPlane.Healthy {
				return fmt.Errorf("its status is %+v", o.Status)
			}
			return nil
		})
	}},
	{"a deleted SpeakerStatus is written again", reads("speakerstatuses"), func(ctx context.Context, f *fixture) error {
		var o v1alpha1.SpeakerStatus
		if err := f.soon(ctx, func(ctx context.Context) error { return f.get(ctx, &o, f.node.Name) }); err != nil {
			return err
		}
		return f.each(ctx, func(int) error { return f.Objects.Delete(ctx, &v1alpha1.SpeakerStatus{ObjectMeta: named(f.node.Name)}) },
			func(ctx context.Context, _ int) error {
				uid := o.UID
				if err := f.get(ctx, &o, f.node.Name); err != nil {
					return err
				}
				if o.UID == uid {
					return errors.New("it is the deleted one")
				}
				return nil
			})
	}},
	{"an Event explains why a session does not come up", []string{"create events"}, func(ctx context.Context, f *fixture) error {
		_, err := f.withoutSecret(ctx)
		return err
	}},
	{"ClusterIPs of a new ServiceCIDR do not leave the node", reads("servicecidrs"), func(ctx context.Context, f *fixture) error {
		var cidr netip.Prefix
		return f.each(ctx, func(i int) error {
			a := lab.FreeRange.Addr().As4()
			a[3] = byte(144 + 16*i)
			cidr = netip.PrefixFrom(netip.AddrFrom4(a), 28)
			return f.create(ctx, "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: %s}, spec: {cidrs: [%q]}}", f.name("cidr"), cidr)
		}, func(ctx context.Context, _ int) error {
			out, err := f.node.Exec(ctx, "nft", "list", "set", "ip", "ironlb", "service-networks")
			if err == nil && !strings.Contains(out, cidr.String()) {
				err = fmt.Errorf("the packet filter does not know %v:\n%s", cidr, out)
			}
			return err
		})
	}},
	{"the thread that other nodes wait for runs before others", []string{"SYS_NICE"}, func(ctx context.Context, f *fixture) error {
		return f.soon(ctx, func(context.Context) error { return before(f.node.Speaker().Pid()) })
	}},
	{"the node's kernel parameters are set", []string{manifest.Privileged}, func(ctx context.Context, f *fixture) error {
		return f.soon(ctx, func(ctx context.Context) error {
			out, err := f.node.Exec(ctx, "sysctl", "-n", "net.ipv4.conf.all.arp_ignore")
			if err == nil && strings.TrimSpace(out) != "1" {
				err = fmt.Errorf("arp_ignore is %s: the kernel answers ARP for addresses that another node owns", out)
			}
			return err
		})
	}},
}

// daemonChecks are the checks of ironlb-bgpd.
var daemonChecks = []check{
	{"BFD with the router is up", nil, func(ctx context.Context, f *fixture) error { return f.soon(ctx, f.bfdUp) }},
	{"the thread of BFD runs before others", []string{"SYS_NICE"}, func(ctx context.Context, f *fixture) error {
		if err := f.soon(ctx, f.bfdUp); err != nil {
			return err
		}
		return f.soon(ctx, func(context.Context) error { return before(f.node.BGP().Pid()) })
	}},
}

func (f *fixture) bfdUp(ctx context.Context) error {
	return f.session(ctx, "router", func(s *v1alpha1.SessionStatus) error {
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
func (f *fixture) answers(ctx context.Context, service string) error {
	svc, err := f.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, service, metav1.GetOptions{})
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
	s, err := f.Client.Ask(ctx, lab.Probe{Network: "tcp", Target: netip.AddrPortFrom(addr, 80), Count: 2, Every: 10 * time.Millisecond, Timeout: 500 * time.Millisecond})
	if err == nil && s.Failed > 0 {
		err = errors.New(s.String())
	}
	return err
}

// owned returns nil if the status of the VirtualIP names the node.
func (f *fixture) owned(ctx context.Context, vip string) error {
	var o v1alpha1.VirtualIP
	if err := f.get(ctx, &o, vip); err != nil {
		return err
	}
	if o.Status.Node != f.node.Name {
		return fmt.Errorf("the owner of VirtualIP %s is %q", vip, o.Status.Node)
	}
	return nil
}

// announced returns nil if the node owns the address of the Service.
func (f *fixture) announced(ctx context.Context, service string) error {
	svc, err := f.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, service, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if len(svc.Status.LoadBalancer.Ingress) == 0 {
		return errors.New("the Service has no address")
	}
	return f.owned(ctx, svc.Status.LoadBalancer.Ingress[0].IP)
}

var errNoSession = errors.New("the SpeakerStatus has no session with the BGPPeer")

// session calls check with the node's reported session with the BGPPeer.
func (f *fixture) session(ctx context.Context, peer string, check func(*v1alpha1.SessionStatus) error) error {
	var o v1alpha1.SpeakerStatus
	if err := f.get(ctx, &o, f.node.Name); err != nil {
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
func (f *fixture) routed(ctx context.Context) (pool string, prefix netip.Prefix, err error) {
	pool = f.name("routed")
	if err := errors.Join(f.own(ctx, "IPAddressPool", pool, "{addresses: [%q]}", f.addresses()),
		f.service(ctx, pool, "ironlb.io/ip-pool: "+pool, "")); err != nil {
		return "", prefix, err
	}
	return pool, prefix, f.soon(ctx, func(ctx context.Context) error {
		svc, err := f.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, pool, metav1.GetOptions{})
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
		all, err := f.bird.Sessions(ctx)
		if err == nil && !all["plain"].Established {
			err = fmt.Errorf("the router's session is %s", all["plain"].State)
		}
		return err
	})
}

// route calls check with the router's path of the prefix, nil for none.
func (f *fixture) route(ctx context.Context, prefix netip.Prefix, check func(*router.Path) error) error {
	paths, err := f.bird.RIB(ctx, prefix.String())
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		return check(nil)
	}
	return check(&paths[0])
}

// secret creates the password of a BGPPeer in even rounds and deletes it in odd ones.
func (f *fixture) secret(ctx context.Context, name string, i int) error {
	if i%2 == 1 {
		return f.Objects.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: v1alpha1.PasswordNamespace}})
	}
	return f.create(ctx, "{apiVersion: v1, kind: Secret, metadata: {name: %s, namespace: %s}, type: kubernetes.io/basic-auth, stringData: {password: %s}}",
		name, v1alpha1.PasswordNamespace, password)
}

// withoutSecret creates a BGPPeer whose Secret does not exist, and waits for the Event.
func (f *fixture) withoutSecret(ctx context.Context) (name string, err error) {
	name = f.name("secret")
	if err := f.own(ctx, "BGPPeer", name, "{myASN: %d, peerASN: %d, peerAddress: 192.0.2.253, passwordSecret: {name: %s}}", nodeASN, routerASN, name); err != nil {
		return "", err
	}
	return name, f.soon(ctx, func(ctx context.Context) error { return f.event(ctx, speaker, name, "PasswordMissing", 1) })
}
