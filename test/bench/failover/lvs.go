package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/probe"
	"github.com/ironlb/ironlb/test/lab/process"
	"github.com/ironlb/ironlb/test/lab/steady"
)

// lvs is keepalived as a load balancer. Each address has a VRRP instance, and an IPVS virtual_server with TCP_CHECK
// whose real servers are the Pods. This machine's kernel may lack IPVS, so the candidates are virtual machines. No Pods
// run on those: each is paired with a node with Pods, and a fault affects both.
type lvs struct {
	keepalived
	delay string // delay_loop; empty: keepalived's default
}

const (
	lvsDefaultDelay = 60 * time.Second // delay_loop
	// lvsCheck is the duration of a TCP_CHECK of a silent server: connect_timeout, delay_before_retry (both by
	// default), and connect_timeout again.
	lvsCheck = 5*time.Second + time.Second + 5*time.Second
)

func newLVS(b *bench, name, family string) *lvs {
	k := &lvs{keepalived: keepalived{b: b, family: family, interval: "1"}}
	if name != keepalivedName {
		k.delay = strings.TrimSuffix(strings.TrimPrefix(name, keepalivedName+"-"), "s")
	}
	return k
}

// checked returns the maximum time until a silent server receives no new connections.
func (k *lvs) checked() time.Duration {
	if k.delay == "" {
		return lvsDefaultDelay + lvsCheck
	}
	return time.Second + lvsCheck
}

// podNode returns the node with Pods that is paired with a candidate.
func (k *lvs) podNode(n *lab.Node) *lab.Node { return k.b.c.Node(candidates + k.b.index(n)) }

// config adds the virtual servers to the VRRP configuration.
func (k *lvs) config(node int, servers []string) string {
	var s strings.Builder
	s.WriteString(k.keepalived.config(node))
	for _, addr := range k.addrs() {
		k.virtual(&s, addr, "TCP", servicePortTCP, probe.PortStream, servers)
		k.virtual(&s, addr, "UDP", servicePortUDP, probe.PortUDP, servers)
	}
	return s.String()
}

func (k *lvs) virtual(s *strings.Builder, addr netip.Addr, protocol string, port, target int, servers []string) {
	fmt.Fprintf(s, "virtual_server %v %d {\n  lb_algo rr\n  lb_kind NAT\n  protocol %s\n", addr, port, protocol)
	if k.delay != "" {
		fmt.Fprintf(s, "  delay_loop %s\n", k.delay)
	}
	for _, server := range servers {
		const real = "  real_server %s %d {\n    TCP_CHECK {\n      connect_port %d\n    }\n  }\n"
		fmt.Fprintf(s, real, server, target, probe.PortStream)
	}
	s.WriteString("}\n")
}

// servers returns the addresses of the Pods.
func (k *lvs) servers(ctx context.Context) (all []string, err error) {
	some := metav1.ListOptions{LabelSelector: "app=" + appBench}
	pods, err := k.b.c.Kube.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, some)
	if err != nil {
		return nil, err
	}
	for _, pod := range pods.Items {
		for _, ip := range pod.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil && a.Is4() == (k.family == "ipv4") {
				all = append(all, a.String())
			}
		}
	}
	return all, nil
}

// lvsSetUp makes a director forward IPVS connections to Pods with a source address of its own, as kube-proxy's mode
// ipvs does, so that the replies return through it.
const lvsSetUp = `set -e
modprobe -a ip_vs ip_vs_rr nft_masq
sysctl -qw net.ipv4.vs.conntrack=1
nft -f - <<END
table inet bench {
 chain prerouting {
  type filter hook prerouting priority mangle
  ip daddr %[1]s meta mark set 1
  ip6 daddr %[2]s meta mark set 1
 }
 chain postrouting {
  type nat hook postrouting priority srcnat
  meta mark 1 masquerade
 }
}
END`

func (k *lvs) start(ctx context.Context) error {
	k.running, k.answering = map[*lab.Node]*process.Process{}, map[*lab.Node]*process.Process{}
	for _, n := range k.b.nodes {
		if _, err := n.Exec(ctx, "sh", "-c", fmt.Sprintf(lvsSetUp, lab.FreeRange, lab.FreeRange6)); err != nil {
			return fmt.Errorf("set up %s for IPVS: %w", n.Name, err)
		}
		if err := k.startOn(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// lvsClean removes the kernel state of a killed keepalived.
const lvsClean = `ipvsadm -C; ip addr show dev eth0 | awk '/inet6? .*\/(32|128) |fe80::5e:/ {print $2}' |
while read a; do ip addr del "$a" dev eth0; done; rm -rf /run/keepalived-bench; mkdir -p /run/keepalived-bench`

func (k *lvs) clean(ctx context.Context, n *lab.Node) error {
	if _, err := n.Exec(ctx, "sh", "-c", lvsClean); err != nil {
		return fmt.Errorf("remove what keepalived left on %s: %w", n.Name, err)
	}
	return nil
}

func (k *lvs) startOn(ctx context.Context, n *lab.Node) error {
	if p := k.running[n]; p != nil && p.Running() {
		return nil
	}
	if err := k.clean(ctx, n); err != nil {
		return err
	}
	servers, err := k.servers(ctx)
	if err != nil {
		return fmt.Errorf("configure keepalived on %s: %w", n.Name, err)
	}
	conf := filepath.Join(k.b.c.Dir, "keepalived-"+n.Name+".conf") // shared with the virtual machine
	if err := os.WriteFile(conf, []byte(k.config(k.b.index(n), servers)), 0o600); err != nil {
		return fmt.Errorf("configure keepalived on %s: %w", n.Name, err)
	}
	k.running[n], err = n.Start(ctx, "keepalived", host.Cmd{Argv: []string{
		"keepalived", "--dont-fork", "--log-console", "--use-file", conf,
		"--pid", "/run/keepalived-bench/keepalived.pid", "--vrrp_pid", "/run/keepalived-bench/vrrp.pid",
		"--checkers_pid", "/run/keepalived-bench/checkers.pid"}})
	return err
}

// signal sends a signal to all of keepalived's processes.
func (k *lvs) signal(n *lab.Node, s syscall.Signal) error {
	if s == syscall.SIGKILL {
		return k.running[n].Kill() // the group
	}
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	_, err := n.Exec(ctx, "kill", fmt.Sprintf("-%d", s), "--", fmt.Sprintf("-%d", k.running[n].Pid()))
	return err
}

// powerOff cuts off both nodes, and ends all processes on them.
func (k *lvs) powerOff(ctx context.Context, n *lab.Node) error {
	return errors.Join(n.Unplug(ctx), k.podNode(n).PowerOff(ctx), k.running[n].Kill())
}

// powerOn repairs powerOff.
func (k *lvs) powerOn(ctx context.Context, n *lab.Node) error {
	pods := k.podNode(n)
	if err := errors.Join(k.clean(ctx, n), pods.PowerOn(ctx), n.RestoreLAN(ctx), n.RestoreAPI(ctx)); err != nil {
		return err
	}
	if err := pods.WaitReady(ctx, settleLimit, corev1.ConditionTrue); err != nil {
		return err
	}
	return k.startOn(ctx, n)
}

// has: the Ready condition of a node has no effect on keepalived.
func (k *lvs) has(fault string) bool { return fault != "kubelet" }

func (k *lvs) target(addr netip.Addr) steady.Target {
	return steady.Target{UDP: netip.AddrPortFrom(addr, servicePortUDP), TCP: netip.AddrPortFrom(addr, servicePortTCP)}
}
